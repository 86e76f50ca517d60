"""Agents as processes of their own, on this machine's loopback addresses."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.socket_agents import SocketNodes, keep
from tests.executor.local_runs import cleared

_FORKED = multiprocessing.get_context("forkserver")
"""Agents are forked by a process that has loaded all they need, and so start at once."""
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
        answers, told = _FORKED.Pipe(duplex=False)
        words = (self.node, self.state, self.pool, self.address, told)
        self.process = _FORKED.Process(target=_keep, args=words)
        self.process.start()
        told.close()
        with answers:
            assert answers.recv(), f"the agent of {self.node} has not started"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it and whatever its jobs have left."""
        if self.process.is_alive():
            self.thaw()
            self.kill()
        self.process.close()
        for home in (self.state / "homes").glob("*"):
            with cleared(home):
                pass


def _keep(node: str, directory: Path, pool: str, address: str, told) -> None:
    asyncio.run(keep(node, directory, pool, address, lambda: told.send(True)))


def start_agents(directory: Path, count: int, pool: str) -> list[AgentProcess]:
    """Start agents ``n1``, ``n2``, ... at 127.0.0.2, .3, ..."""
    return [AgentProcess(directory, f"n{k}", f"127.0.0.{k + 1}", pool) for k in range(1, count + 1)]


def finder(agents: Sequence[AgentProcess]) -> SocketNodes:
    """Return what finds agents."""
    return SocketNodes({agent.node: agent.state for agent in agents})
