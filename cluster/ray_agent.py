"""The agent of one node as an actor of Ray.

``ray_driver`` creates the actor, in a process on the node, and Ray checks the token of its callers;
Ray is not imported here. Arguments and results are plain data, because driver and agent may have
different versions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

from dovetail.cluster.agent import Agent, started
from dovetail.cluster.messages import Kind, Method
from dovetail.cluster.options import KILLS, OWN_DIRECTORY, OWN_POOL
from dovetail.executor.pools.opening import opener
from dovetail.executor.system.directories import require_closed
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError, InputError

_LEAKED: Final = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables that Ray sets for its own workers; jobs and MPS daemons must not inherit them."""


_RAYLET: Final = "--raylet-name="


class AgentPlan(TypedDict):
    """The options of the agent of a node.

    The node's name, which is also the name of the agent's folder; the node's address; the agent's
    pool (``opening.opener``); the parent of the agents' folders (``agents_directory``); and the
    service's version of Dovetail.
    """

    node: str
    address: str
    pool: str
    directory: str | None
    version: str


class RayAgent:
    """Runs the agent of its node; Ray restarts its process when it dies."""

    def __init__(self) -> None:
        for name in _LEAKED:
            os.environ.pop(name, None)
        self._agent: Agent | None = None

    async def call(
        self, plan: AgentPlan, method: Method, text: str
    ) -> tuple[tuple[Kind, str] | None, list[str]]:
        """Return the agent's answer to a call (``Agent.call``), and notes for the user.

        The answer is None if the agent was started with another plan and has no run: then the
        caller must replace it.
        """
        if self._agent is None:
            try:
                self._agent, self._plan = _started(plan), plan
            except (DovetailError, OSError) as error:
                # The next call retries.
                return ("error", " ".join(str(error).split())), []
        notes = warnings()
        if plan["version"] != VERSION:
            notes.append(f"its agent runs Dovetail {VERSION}, this service {plan['version']}")
        if self._plan != plan:
            if not self._agent.busy:
                return None, []
            notes.append("its agent has other options, and is replaced once nothing runs on it")
        return await self._agent.call(method, text), notes


def require_closed_session(arguments: Sequence[str]) -> None:
    """Refuse to run under Ray if other users of the node may write to its folder.

    They could make Ray create files anywhere as its user, and prevent it from ever starting again.

    Parameters
    ----------
    arguments : sequence of str
        The arguments of this Ray worker.

    Raises
    ------
    InputError
        One line.
    """
    raylet = next((one for one in arguments if one.startswith(_RAYLET)), None)
    if raylet is None:
        return
    try:
        require_closed(Path(raylet.removeprefix(_RAYLET)).parents[1])
    except InputError as error:
        hint = "(ray start --temp-dir)"
        raise InputError(f"{error.rule} {hint}", "the folder of Ray", error.source) from None


def _started(plan: AgentPlan) -> Agent:
    require_closed_session(sys.argv)
    directory = agents_directory(plan["directory"]) / plan["node"]
    own, pool = os.environ.get(OWN_DIRECTORY), os.environ.get(OWN_POOL, plan["pool"])
    place = Path(own or directory)
    return started(place, opener(pool, place), plan["address"])


def warnings() -> list[str]:
    """Return notes for the user about Ray on this node."""
    if os.environ.get(KILLS, "").lower() in ("false", "0"):
        return []
    return [f"{KILLS}=false is not set there: jobs may die with the agent"]


def agents_directory(given: str | None) -> Path:
    """Return the parent of the agents' folders on this machine."""
    if given is not None:
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/dovetail/agents")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "dovetail" / "agents"
