"""Agents on this machine behind a socket: the calls of Ray's driver without Ray.

    python benchmarks/live/socket_agents.py --node n1 --directory DIR --pool cpu --address 127.0.0.2

What goes through it are the calls of ``dovetail.executor.nodes.caller``. The socket has no file:
its name is made of the directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from dovetail.executor.nodes.agent import Agent, Method, started
from dovetail.executor.nodes.caller import Call, Caller, no_answer
from dovetail.executor.nodes.ray_finding import Sighted


def _name(directory: Path) -> str:
    return f"\0dovetail{str(directory.resolve())[-90:]}"


async def serve(directory: Path, agents: Mapping[str, Agent], ready: Callable[[], None]) -> None:
    """Let agents answer calls at the socket of a directory, until this process is ended."""
    listener = Listener(_name(directory), "AF_UNIX", backlog=16)
    accept = (listener, agents, asyncio.get_running_loop())
    threading.Thread(target=_accept, args=accept, daemon=True).start()
    ready()
    await asyncio.Event().wait()


def say_ready() -> None:
    """Print a line."""
    print("ready", flush=True)


async def keep(
    node: str, directory: Path, pool: str, address: str, ready: Callable[[], None] = say_ready
) -> None:
    """Keep an agent until this process is ended."""
    await serve(directory, {node: started(directory, pool, address)}, ready)


def _accept(
    listener: Listener, agents: Mapping[str, Agent], loop: asyncio.AbstractEventLoop
) -> None:
    while True:
        pipe = listener.accept()
        threading.Thread(target=_serve, args=(pipe, agents, loop), daemon=True).start()


def _serve(pipe: Connection, agents: Mapping[str, Agent], loop: asyncio.AbstractEventLoop) -> None:
    async def answer(call: Call) -> None:
        number, node, method, text = call
        kind, told = await agents[node].call(method, text)
        with contextlib.suppress(OSError):  # the caller may have ended
            pipe.send((number, kind, told))

    with pipe, contextlib.suppress(EOFError, OSError):
        while True:
            asyncio.run_coroutine_threadsafe(answer(pipe.recv()), loop)


@dataclass
class SocketNodes:
    """Nodes whose agents answer at sockets of this machine (in place of a ``RayFinder``).

    Attributes
    ----------
    known : dict of str to Path
        The directory of each node's socket.
    cut : set of str
        Nodes to which no call, and from which no answer, comes.
    delay_s : float
        How much later all comes, either way.
    """

    known: dict[str, Path]
    racks: Mapping[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    delay_s: float = 0.0
    name: str = "nodes"
    _callers: dict[Path, tuple[Caller, Connection]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs."""
        return {**self.__dict__, "_callers": {}}

    def start(self) -> None:
        """Do nothing: agents are started by others."""

    def nodes(self) -> Mapping[str, Sighted]:
        """Return the nodes."""
        return {node: Sighted(rack=self.racks.get(node)) for node in self.known}

    def weigh(self, lacking: int, busy: Collection[str]) -> None:
        """Do nothing."""

    def awaited(self) -> Sequence[str]:
        """Return nothing."""
        return ()

    def taken_back(self, node: str) -> str:
        """Return nothing."""
        return ""

    def close(self) -> None:
        """Do nothing: connections end with this process."""

    def call(self, node: str, method: Method, text: str) -> Future[str]:
        """Have the agent of a node answer a call."""
        if node not in self.known:
            return no_answer("its agent is not known")
        answer: Future[str] = Future()
        if not self.delay_s:
            self._pass_on(node, method, text, answer)
        else:
            later = (node, method, text, answer)
            threading.Timer(self.delay_s, self._pass_on, later).start()
        return answer

    def _pass_on(self, node: str, method: Method, text: str, answer: Future[str]) -> None:
        if node not in self.cut:
            try:
                asked = self._caller(self.known[node]).call(node, method, text)
            except OSError as error:
                asked = no_answer(error.strerror or str(error))
            asked.add_done_callback(lambda told: self._pass_back(node, told, answer))

    def _pass_back(self, node: str, told: Future[str], answer: Future[str]) -> None:
        time.sleep(self.delay_s)
        if node in self.cut:
            return
        error = told.exception()
        if error is None:
            answer.set_result(told.result())
        else:
            answer.set_exception(error)

    def _caller(self, directory: Path) -> Caller:
        if directory not in self._callers:
            pipe = Client(_name(directory), "AF_UNIX")
            caller = Caller(pipe)
            self._callers[directory] = caller, pipe
            reading = (directory, pipe, caller)
            threading.Thread(target=self._read, args=reading, daemon=True).start()
        return self._callers[directory][0]

    def _read(self, directory: Path, pipe: Connection, caller: Caller) -> None:
        with pipe, contextlib.suppress(EOFError, OSError):
            while True:
                caller.take_in(*pipe.recv())
        self._callers.pop(directory, None)
        caller.end("its agent has ended")


def main() -> None:
    """Keep an agent; a line says that it answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("node", "pool", "address"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(keep(options.node, options.directory, options.pool, options.address))


if __name__ == "__main__":
    main()
