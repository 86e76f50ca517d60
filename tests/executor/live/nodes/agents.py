"""Agents as processes of their own, on this machine's loopback addresses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from dovetail.executor.live.nodes.finding import NodeAddress
from tests.executor.live.local_runs import cleared

TOKEN = "a-token-of-the-tests"


class AgentProcess:
    """One agent with its own directory and address; it can be killed and started again."""

    def __init__(self, directory: Path, node: str, address: str, pool: str) -> None:
        self.directory, self.node, self.address, self.pool = directory / node, node, address, pool
        self.directory.mkdir(parents=True)
        self.token_file = self.directory / "token"
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)
        self.port = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dovetail.executor.live.nodes.serving"),
                *("--directory", str(self.directory / "state"), "--pool", self.pool),
                *("--listen", f"{self.address}:{self.port}"),
                *("--token-file", str(self.token_file)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the agent of {self.node} has not started"
        self.port = json.loads(line)["port"]

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
        for home in (self.directory / "state" / "homes").glob("*"):
            with cleared(home):
                pass

    @property
    def where(self) -> NodeAddress:
        return NodeAddress(self.address, self.port, TOKEN)


def start_agents(directory: Path, count: int, pool: str) -> list[AgentProcess]:
    """Start agents ``n1``, ``n2``, ... at 127.0.0.2, .3, ..."""
    return [AgentProcess(directory, f"n{k}", f"127.0.0.{k + 1}", pool) for k in range(1, count + 1)]


class Finder:
    """Finds agents where a test says."""

    name = "nodes"

    def __init__(self, agents: list[AgentProcess]) -> None:
        self.known = {agent.node: agent.where for agent in agents}

    def start(self) -> None:
        pass

    def nodes(self) -> dict[str, NodeAddress]:
        return self.known

    def awaited(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
