"""The agent of one node as an actor of Ray: what runs in the actor's process, on the node.

Ray is not imported here; ``ray_driver`` makes an actor of the class, and Ray decides who may call
it. Arguments and results are plain data, as driver and agent may be of two versions.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypedDict

from dovetail.executor.nodes.agent import Agent, Kind, Method, started
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError

KILLS: Final = "RAY_kill_child_processes_on_worker_exit"
"""What Ray must not do on a node: kill the guards of the jobs when the agent ends."""

OWN_DIRECTORY: Final = "DOVETAIL_AGENT_DIRECTORY"
OWN_POOL: Final = "DOVETAIL_AGENT_POOL"
"""What only a node knows of its agent, in place of what is planned, such as GPUs from Slurm."""

_LEAKED: Final = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""What Ray sets for its own workers, and what a job or an MPS daemon must not inherit."""


class AgentPlan(TypedDict):
    """What the agent of a node should be.

    Its node's name, which also names its directory; the node's address; its pool
    (``opening.opener``); where agents keep their state (``agents_directory``); and the version of
    Dovetail that asks for it.
    """

    node: str
    address: str
    pool: str
    directory: str | None
    version: str


class RayAgent:
    """Keeps the jobs of its node as long as its process lives; Ray starts it anew when it dies."""

    def __init__(self) -> None:
        for name in _LEAKED:
            os.environ.pop(name, None)
        self._agent: Agent | None = None

    async def call(
        self, plan: AgentPlan, method: Method, text: str
    ) -> tuple[tuple[Kind, str] | None, list[str]]:
        """Return the agent's answer to a call (``Agent.call``), and notes for people.

        The answer is None where the agent was started by another plan and keeps no run: it is to be
        replaced.
        """
        if self._agent is None:
            try:
                self._agent, self._plan = _started(plan), plan
            except (DovetailError, OSError) as error:
                # The next call tries again.
                return ("error", " ".join(str(error).split())), []
        notes = warnings()
        if plan["version"] != VERSION:
            notes.append(f"its agent runs Dovetail {VERSION}, this service {plan['version']}")
        if self._plan != plan:
            if not self._agent.busy:
                return None, []
            notes.append("its agent was started with other options; replaced once nothing runs")
        return await self._agent.call(method, text), notes


def _started(plan: AgentPlan) -> Agent:
    directory = agents_directory(plan["directory"]) / plan["node"]
    own, pool = os.environ.get(OWN_DIRECTORY), os.environ.get(OWN_POOL, plan["pool"])
    return started(Path(own or directory), pool, plan["address"])


def warnings() -> list[str]:
    """Return what people should know of the Ray of this node."""
    if os.environ.get(KILLS, "").lower() in ("false", "0"):
        return []
    return [f"{KILLS}=false is not set there: jobs may die with the agent"]


def agents_directory(given: str | None) -> Path:
    """Return where the agents of this machine keep their state, each in a folder of its own."""
    if given is not None:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/dovetail/agents")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dovetail" / "agents"
