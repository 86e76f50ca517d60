"""Agents on this machine behind a socket: the calls of Ray's driver without Ray.

    python benchmarks/live/socket_agents.py --node n1 --directory DIR --pool cpu --address 127.0.0.2

Lines are those of ``dovetail.executor.live.nodes.calls``. The socket has no file: its name is
made of the directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.calls import Caller, answer_of, no_answer, one_line
from dovetail.executor.live.nodes.finding import Sighted
from dovetail.executor.live.nodes.hosting import hosted


def _name(directory: Path) -> bytes:
    return b"\0dovetail" + os.fsencode(directory.resolve())[-90:]


def listening(directory: Path) -> socket.socket:
    """Return the socket of the agents of a directory."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(_name(directory))
    server.listen()
    return server


def serve(server: socket.socket, agents: Mapping[str, Agent]) -> None:
    """Let agents answer whoever connects, for ever."""
    while True:
        connection = server.accept()[0]
        threading.Thread(target=_serve, args=(connection, agents), daemon=True).start()


def _serve(connection: socket.socket, agents: Mapping[str, Agent]) -> None:
    lock = threading.Lock()

    def answer(call: Mapping[str, str]) -> None:
        told = answer_of(agents[call["node"]], call["method"], call["body"])
        line = json.dumps({"id": call["id"], **told}).encode() + b"\n"
        try:
            with lock:
                connection.sendall(line)
        except OSError:
            pass  # nobody waits for it any more

    with connection, connection.makefile("rb") as lines:
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


@dataclass
class SocketNodes:
    """Nodes whose agents answer at sockets of this machine (a ``NodeFinder``).

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
    _callers: dict[Path, tuple[Caller, socket.socket]] = field(default_factory=dict)

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

    def close(self) -> None:
        """End all connections."""
        for _, connection in [*self._callers.values()]:
            _shut(connection)

    def call(self, node: str, method: str, body: str) -> Future[str]:
        """Have the agent of a node answer a call."""
        if node not in self.known:
            return no_answer("nobody knows where its agent is")
        answer: Future[str] = Future()
        if not self.delay_s:
            self._pass_on(node, method, body, answer)
        else:
            later = (node, method, body, answer)
            threading.Timer(self.delay_s, self._pass_on, later).start()
        return answer

    def _pass_on(self, node: str, method: str, body: str, answer: Future[str]) -> None:
        if node not in self.cut:
            try:
                asked = self._caller(self.known[node]).call(node, method, body)
            except OSError as error:
                asked = no_answer(one_line(error))
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
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(_name(directory))
            except OSError:
                connection.close()
                raise
            caller = Caller(connection.makefile("wb"))
            self._callers[directory] = caller, connection
            reading = (directory, connection, caller)
            threading.Thread(target=self._read, args=reading, daemon=True).start()
        return self._callers[directory][0]

    def _read(self, directory: Path, connection: socket.socket, caller: Caller) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                caller.take_in(json.loads(line))
        self._callers.pop(directory, None)
        caller.end("its agent has ended")


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Keep an agent until SIGTERM; a line says that it answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("node", "pool", "address"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with hosted(options.directory, options.pool, options.address) as agent:
        serving = (listening(options.directory), {options.node: agent})
        threading.Thread(target=serve, args=serving, daemon=True).start()
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
