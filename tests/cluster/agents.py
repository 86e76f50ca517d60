"""Agents as processes of their own, on this machine's loopback addresses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster.socket_agents import AgentProcess, SocketNodes
from tests.executor.local_runs import cleared


class ClearedAgent(AgentProcess):
    """An agent that is ended with its jobs."""

    def end(self) -> None:
        """End it and all processes of its jobs."""
        super().end()
        for home in (self.state / "homes").glob("*"):
            with cleared(home):
                pass


def start_agents(directory: Path, count: int, pool: str) -> list[ClearedAgent]:
    """Start agents ``n1``, ``n2``, ... at 127.0.0.2, .3, ..."""
    return [ClearedAgent(directory, k, pool) for k in range(1, count + 1)]


def finder(agents: Sequence[AgentProcess]) -> SocketNodes:
    """Return a finder of agents."""
    return SocketNodes({agent.node: agent.state for agent in agents})
