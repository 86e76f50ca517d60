"""Agents on this machine that are called through sockets instead of Ray.

The calls are the ones of ``dovetail.cluster.caller``. The socket has no file; its name is
derived from the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from dovetail.cluster.agent import Agent, started
from dovetail.cluster.caller import Call, Caller, no_answer
from dovetail.cluster.messages import Method
from dovetail.cluster.ray_finder import NodeInfo
from dovetail.executor.pools.opening import opener

_FORKED = multiprocessing.get_context("forkserver")
"""Forks agents from a process that has imported all modules, so that they start quickly."""
_FORKED.set_forkserver_preload([__name__])


def _name(directory: Path) -> str:
    return f"\0dovetail{str(directory.resolve())[-90:]}"


async def serve(directory: Path, agents: Mapping[str, Agent], ready: Callable[[], None]) -> None:
    """Serve the calls of agents at the socket of a directory, until this process is ended."""
    listener = Listener(_name(directory), "AF_UNIX", backlog=16)
    accept = (listener, agents, asyncio.get_running_loop())
    threading.Thread(target=_accept, args=accept, daemon=True).start()
    ready()
    await asyncio.Event().wait()


class AgentProcess:
    """The agent of node ``nK`` as a process; it can be frozen, killed and started again.

    Parameters
    ----------
    directory : path
        The parent of the agents' folders.
    k : int
        The node; its address is 127.0.0.(k + 1).
    pool : str
        The agent's pool.
    """

    def __init__(self, directory: Path, k: int, pool: str) -> None:
        self.node, self.address, self.pool = f"n{k}", f"127.0.0.{k + 1}", pool
        self.directory = directory / self.node
        self.state = self.directory / "state"
        self.directory.mkdir(parents=True)
        self.start()

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self.process.pid is not None
        return self.process.pid

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        receives, sends = _FORKED.Pipe(duplex=False)
        words = (self.node, self.state, self.pool, self.address, sends)
        self.process = _FORKED.Process(target=_serve_agent, args=words)
        self.process.start()
        sends.close()
        with receives:
            assert receives.recv(), f"the agent of {self.node} has not started"

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()

    def freeze(self) -> None:
        """Freeze the process."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill the process, and close its handle."""
        self.kill()
        self.process.close()


def _serve_agent(
    node: str, directory: Path, pool: str, address: str, ready: Connection[bool, bool]
) -> None:
    async def run() -> None:
        agents = {node: started(directory, opener(pool, directory), address)}
        await serve(directory, agents, lambda: ready.send(True))

    asyncio.run(run())


def _accept(
    listener: Listener, agents: Mapping[str, Agent], loop: asyncio.AbstractEventLoop
) -> None:
    while True:
        pipe = listener.accept()
        threading.Thread(target=_serve, args=(pipe, agents, loop), daemon=True).start()


def _serve(pipe: Connection, agents: Mapping[str, Agent], loop: asyncio.AbstractEventLoop) -> None:
    async def answer(call: Call) -> None:
        number, node, method, text = call
        kind, answered = await agents[node].call(method, text)
        with contextlib.suppress(OSError):  # the caller may have ended
            pipe.send((number, kind, answered))

    with pipe, contextlib.suppress(EOFError, OSError):
        while True:
            asyncio.run_coroutine_threadsafe(answer(pipe.recv()), loop)


@dataclass
class SocketNodes:
    """Finds nodes whose agents are called through sockets (in place of a ``RayFinder``).

    Attributes
    ----------
    known : dict of str to Path
        The directory of each node's socket.
    cut : set of str
        Nodes whose calls and answers are dropped.
    delay_s : float
        The delay of every call and every answer.
    """

    known: dict[str, Path]
    racks: Mapping[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    delay_s: float = 0.0
    name: str = "nodes"
    _callers: dict[Path, tuple[Caller, Connection]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields without the connections, for another process."""
        return {**self.__dict__, "_callers": {}}

    def start(self) -> None:
        """Do nothing: the agents run already."""

    def nodes(self) -> Mapping[str, NodeInfo]:
        """Return the nodes."""
        return {node: NodeInfo(rack=self.racks.get(node)) for node in self.known}

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
        """Call the agent of a node, and return the future of its answer."""
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
            asked.add_done_callback(lambda done: self._pass_back(node, done, answer))

    def _pass_back(self, node: str, done: Future[str], answer: Future[str]) -> None:
        time.sleep(self.delay_s)
        if node in self.cut:
            return
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
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
