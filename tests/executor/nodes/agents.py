"""Agents as processes of their own, on this machine's loopback addresses."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.socket_agents import SocketNodes, serve_agent
from tests.executor.local_runs import cleared

_FORKED = multiprocessing.get_context("forkserver")
"""Forks agents from a process that has imported all modules, so that they start quickly."""
_FORKED.set_forkserver_preload(["benchmarks.live.socket_agents"])


class AgentProcess:
    """One agent with its own directory and address; it can be killed and started again."""

    def __init__(self, directory: Path, node: str, address: str, pool: str) -> None:
        self.directory, self.node, self.address, self.pool = directory / node, node, address, pool
        self.directory.mkdir(parents=True)
        self.start()

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        receives, sends = _FORKED.Pipe(duplex=False)
        words = (self.node, self.state, self.pool, self.address, sends)
        self.process = _FORKED.Process(target=_serve, args=words)
        self.process.start()
        sends.close()
        with receives:
            assert receives.recv(), f"the agent of {self.node} has not started"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it and all processes of its jobs."""
        if self.process.is_alive():
            self.thaw()
            self.kill()
        self.process.close()
        for home in (self.state / "homes").glob("*"):
            with cleared(home):
                pass


def _serve(node: str, directory: Path, pool: str, address: str, ready) -> None:
    asyncio.run(serve_agent(node, directory, pool, address, lambda: ready.send(True)))


def start_agents(directory: Path, count: int, pool: str) -> list[AgentProcess]:
    """Start agents ``n1``, ``n2``, ... at 127.0.0.2, .3, ..."""
    return [AgentProcess(directory, f"n{k}", f"127.0.0.{k + 1}", pool) for k in range(1, count + 1)]


def finder(agents: Sequence[AgentProcess]) -> SocketNodes:
    """Return a finder of agents."""
    return SocketNodes({agent.node: agent.state for agent in agents})
