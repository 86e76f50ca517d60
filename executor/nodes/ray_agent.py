"""The agent of one node as an actor of Ray: what runs in the actor's process, on the node.

Ray is not imported here; ``ray_driver`` makes an actor of the class, and Ray decides who may call
it. Arguments and results are plain data, as driver and agent may be of two versions.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypedDict

from dovetail.executor.nodes.agent import Agent, Kind, Method, hosted
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


class Status(TypedDict):
    """How an agent is: its plan, the version that it runs, and notes for people."""

    plan: AgentPlan
    version: str
    answers: bool
    busy: bool
    notes: list[str]


class RayAgent:
    """Keeps the jobs of its node as long as its process lives; Ray starts it anew when it dies."""

    def __init__(self, plan: AgentPlan) -> None:
        for name in _LEAKED:
            os.environ.pop(name, None)
        self._plan = plan
        self._agent: Agent | None = None
        self._stack = ExitStack()

    async def status(self) -> Status:
        """Return how the agent is; one that could not start tries again."""
        trouble = "" if self._agent else self._start()
        return {
            "plan": self._plan,
            "version": VERSION,
            "answers": self._agent is not None,
            "busy": self._agent is not None and self._agent.busy,
            "notes": [trouble] if trouble else warnings(),
        }

    async def call(self, method: Method, text: str) -> tuple[Kind, str]:
        """Return the agent's answer to a call (``Agent.call``)."""
        if self._agent is None:
            return "error", "its agent has not been started"
        return await self._agent.call(method, text)

    def _start(self) -> str:
        """Start the agent, and return why that is impossible; empty: it runs."""
        directory = agents_directory(self._plan["directory"]) / self._plan["node"]
        own, pool = os.environ.get(OWN_DIRECTORY), os.environ.get(OWN_POOL, self._plan["pool"])
        try:
            agent = hosted(Path(own or directory), pool, self._plan["address"])
            self._agent = self._stack.enter_context(agent)
        except (DovetailError, OSError) as error:
            return " ".join(str(error).split())
        return ""


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
