"""The agent of one node as an actor of Ray: what runs in the actor's process, on the node.

Ray is not imported here; ``ray_driver`` makes an actor of the class. Who may call it is for Ray to
say: who may call actors of a cluster can run what he likes on it anyway.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.calls import answer_of
from dovetail.executor.live.nodes.hosting import hosted
from dovetail.instances._record import Name, Record
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError

KILLS: Final = "RAY_kill_child_processes_on_worker_exit"
"""What Ray must not do on a node: kill what watches over the jobs when the agent ends."""

OWN_DIRECTORY: Final = "DOVETAIL_AGENT_DIRECTORY"
OWN_POOL: Final = "DOVETAIL_AGENT_POOL"
"""What only a node knows of its agent, in place of what is planned: Slurm tells it its GPUs."""

_LEAKED: Final = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""What Ray sets for its own workers, and what a job or an MPS daemon must not inherit."""


class AgentPlan(Record):
    """What the agent of a node should be.

    Attributes
    ----------
    node : str
        Its name, which also names its directory.
    address : str
        Where the node is reached.
    pool : str
        As ``hosting.opener`` has it.
    directory : str or None
        Where agents keep their state, each in a folder of its node's name; by default
        ``/var/lib/dovetail/agents`` for root, ``~/.local/state/dovetail/agents`` for others.
    version : str
        Of Dovetail.
    """

    node: Name
    address: Name
    pool: Name
    directory: Name | None = None
    version: Name = VERSION


class AgentReply(Record):
    """What an actor tells.

    Attributes
    ----------
    plan : AgentPlan
        What it was started as.
    version : str
        The Dovetail that it runs.
    answers : bool
        Whether its agent does.
    busy : bool
        Whether it keeps runs.
    notes : tuple of str
        What people should know, a line each.
    """

    plan: AgentPlan
    version: Name = VERSION
    answers: bool = False
    busy: bool = False
    notes: tuple[str, ...] = ()


class RayAgent:
    """Keeps the jobs of its node as long as its process lives; Ray starts it anew when it dies.

    Its methods are called from many threads.

    Parameters
    ----------
    plan : mapping
        The plain data of an ``AgentPlan``.
    """

    def __init__(self, plan: Mapping[str, object]) -> None:
        for name in _LEAKED:
            os.environ.pop(name, None)
        self._plan = AgentPlan.from_data(plan)
        self._agent: Agent | None = None
        self._stack = ExitStack()
        self._starting = threading.Lock()
        self._trouble = ""

    def status(self) -> dict[str, object]:
        """Return the plain data of an ``AgentReply``; an agent that could not start tries again."""
        with self._starting:
            if self._agent is None:
                self._trouble = self._start()
        reply = AgentReply(
            plan=self._plan,
            answers=self._agent is not None,
            busy=self._agent is not None and self._agent.is_busy(),
            notes=(self._trouble,) if self._trouble else _warnings(),
        )
        return reply.model_dump(mode="json")

    def call(self, method: str, body: str) -> Mapping[str, str]:
        """Return what the agent answers to a call (``calls.answer_of``)."""
        if self._agent is None:
            return {"error": self._trouble or "its agent has not been started"}
        return answer_of(self._agent, method, body)

    def _start(self) -> str:
        """Start the agent, and return why that is impossible; empty: it runs."""
        directory = agents_directory(self._plan.directory) / self._plan.node
        own, pool = os.environ.get(OWN_DIRECTORY), os.environ.get(OWN_POOL, self._plan.pool)
        try:
            agent = hosted(Path(own or directory), pool, self._plan.address)
            self._agent = self._stack.enter_context(agent)
        except (DovetailError, OSError) as error:
            return " ".join(str(error).split())
        return ""


def _warnings() -> tuple[str, ...]:
    if os.environ.get(KILLS, "").lower() in ("false", "0"):
        return ()
    return (f"{KILLS}=false is not set there: jobs may die with the agent",)


def agents_directory(given: str | None) -> Path:
    """Return where the agents of this machine keep their state."""
    if given is not None:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/dovetail/agents")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dovetail" / "agents"
