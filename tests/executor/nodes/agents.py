"""Agents as processes of their own, on this machine's loopback addresses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live import socket_agents
from benchmarks.live.socket_agents import SocketNodes
from tests.executor.local_runs import cleared


class AgentProcess:
    """One agent with its own directory and address; it can be killed and started again."""

    def __init__(self, directory: Path, node: str, address: str, pool: str) -> None:
        self.directory, self.node, self.address, self.pool = directory / node, node, address, pool
        self.directory.mkdir(parents=True)
        self.start()

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, socket_agents.__file__, "--node", self.node),
                *("--directory", str(self.state), "--pool", self.pool),
                *("--address", self.address),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), f"the agent of {self.node} has not started"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it and whatever its jobs have left."""
        if self.process.poll() is None:
            self.thaw()
            self.kill()
        for home in (self.state / "homes").glob("*"):
            with cleared(home):
                pass


def start_agents(directory: Path, count: int, pool: str) -> list[AgentProcess]:
    """Start agents ``n1``, ``n2``, ... at 127.0.0.2, .3, ..."""
    return [AgentProcess(directory, f"n{k}", f"127.0.0.{k + 1}", pool) for k in range(1, count + 1)]


def finder(agents: Sequence[AgentProcess]) -> SocketNodes:
    """Return what finds agents."""
    return SocketNodes({agent.node: agent.state for agent in agents})
