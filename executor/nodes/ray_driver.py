"""A driver of Ray, in a process of its own: it keeps an agent on every node, and calls them.

::

    python -m dovetail.executor.nodes.ray_driver PIPE

PIPE is the number of a file descriptor. Through it come a ``RayPlan`` and then calls (``caller``);
the driver returns the answers, and a ``Sighting`` every second. It ends with the pipe. It is no
part of the service, since Ray ends the process of a driver that has lost its head for a minute.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from dovetail.executor.nodes.agent import Kind
from dovetail.executor.nodes.caller import Call
from dovetail.executor.nodes.ray_agent import AgentPlan, RayAgent, Status
from dovetail.executor.nodes.ray_finding import RayPlan, Sighted, Sighting
from dovetail.executor.system.clock import boot_s
from dovetail.instances._version import VERSION

NAMESPACE: Final = "dovetail"

LOOK_S: Final = 1.0
"""Seconds between two looks at the cluster."""

FIRST_S: Final = 15.0
"""Seconds that agents have to start before the first sighting is sent without them."""

MOST_CALLS: Final = 8
"""Calls to one agent that are under way; where it hangs, they never end."""

_TWINS: Final = "two nodes of Ray have this name: start each with a label, --labels=node=NAME"
_OPEN: Final = (
    "the cluster lets everybody in who reaches it, and who is in runs anything as anybody: "
    "start all of it with RAY_AUTH_MODE=token (or take open=yes among the pool's options)"
)
_TOKEN: Final = (
    "the cluster wants its token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, as on its nodes"
)
_KNOCK: Final = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    sys.exit(3)
"""
_REFUSED: Final = 3
_KNOCK_S: Final = 30.0


class RayNode(NamedTuple):
    """A node as Ray has it; a raylet that was started anew is another one."""

    ray_id: str
    name: str
    address: str
    sighted: Sighted


def wanted_nodes(table: Sequence[Mapping[str, Any]], plan: RayPlan) -> list[RayNode]:
    """Return the nodes that are alive and that a plan wants, from Ray's table of nodes.

    A node is called what its label ``node`` says, or else as its host.
    """
    found = []
    for entry in table:
        if entry["Alive"] and _is_wanted(entry, plan):
            labels = entry["Labels"]
            name = labels.get("node") or entry["NodeManagerHostname"]
            sighted = Sighted(labels.get("rack"), labels.get("pilot"))
            found.append(RayNode(entry["NodeID"], name, entry["NodeManagerAddress"], sighted))
    return found


def _is_wanted(entry: Mapping[str, Any], plan: RayPlan) -> bool:
    name, _, value = (plan.label or "").partition(":")
    if plan.label is not None and entry["Labels"].get(name) != value:
        return False
    return bool(entry["Resources"].get(plan.needed_resource, 0) > 0)


@dataclass(eq=False)
class _Kept:
    """A node that is kept, its actor, and the last status of that."""

    node: RayNode
    task: asyncio.Task[None] | None = None
    actor: Any = None
    status: Status | None = None
    trouble: str = ""
    calls: int = 0


@dataclass
class Driver:
    """Keeps an agent on every node of a cluster, and calls them.

    Parameters
    ----------
    plan : RayPlan
        What is wanted.
    ray : module
        Ray, connected.
    pipe : Connection
        To the service.
    """

    plan: RayPlan
    ray: Any
    pipe: Connection
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _named: dict[str, _Kept] = field(default_factory=dict)

    async def run(self) -> None:
        """Keep agents and hand on calls until the input ends.

        Raises
        ------
        ConnectionError
            When the Ray of this machine has ended.
        """
        ours = self.ray.get_runtime_context().get_node_id()
        loop, calling = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(call: Call) -> None:
            task = loop.create_task(self._carry(call))
            calling.add(task)
            task.add_done_callback(calling.discard)

        def read() -> None:
            with suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(begin, self.pipe.recv())
            os._exit(0)

        threading.Thread(target=read, daemon=True).start()
        first_s = boot_s() + FIRST_S
        while True:
            table = await asyncio.to_thread(self.ray.nodes)
            if not any(entry["NodeID"] == ours and entry["Alive"] for entry in table):
                # Without it, it would reach no actor that is started from now on.
                raise ConnectionError("the Ray of its own machine has ended")
            nodes = wanted_nodes(table, self.plan)
            sighting = self._look(nodes)
            if boot_s() > first_s or len(sighting.nodes) == len(nodes):
                first_s = 0.0
                self.pipe.send(sighting)
            await asyncio.sleep(LOOK_S if not first_s else LOOK_S / 4)

    # Sightings.

    def _look(self, nodes: Sequence[RayNode]) -> Sighting:
        """Keep agents where they should be, and return what is known of them."""
        for gone in self._kept.keys() - {node.ray_id for node in nodes}:
            task = self._kept.pop(gone).task
            if task is not None:
                task.cancel()
        for node in nodes:
            if node.ray_id not in self._kept:
                kept = self._kept[node.ray_id] = _Kept(node)
                kept.task = asyncio.get_running_loop().create_task(self._keep(kept))
        known = [kept for kept in self._kept.values() if kept.status]
        self._named = {
            kept.node.name: kept
            for kept in reversed(known)
            if kept.status and kept.status["answers"]
        }
        sighted = {name: kept.node.sighted for name, kept in self._named.items()}
        counted = Counter(kept.node.name for kept in known)
        twins = [f"{name}: {_TWINS}" for name, count in counted.items() if count > 1]
        return Sighting(sighted, (*self._notes(), *twins))

    def _notes(self) -> list[str]:
        found = []
        for kept in self._kept.values():
            notes = [kept.trouble] if kept.trouble else []
            if kept.status is not None:
                notes += kept.status["notes"]
                version = kept.status["version"]
                if version != VERSION:
                    notes.append(f"its agent runs Dovetail {version}, this service {VERSION}")
                if kept.status["busy"] and self._is_other(kept):
                    notes.append(
                        "its agent was started with other options; replaced once nothing runs"
                    )
            found += [f"{kept.node.name}: {note}" for note in notes]
        return found

    # Agents.

    async def _keep(self, kept: _Kept) -> None:
        """Keep an agent on a node, as planned, and ask for its status again and again."""
        while True:
            try:
                if kept.actor is None:
                    kept.actor = await asyncio.to_thread(self._actor_on, kept.node)
                status = kept.status = await kept.actor.status.remote()
                kept.trouble = ""
                if not status["busy"] and self._is_other(kept):
                    self.ray.kill(kept.actor)
                    kept.actor = kept.status = None
            except self.ray.exceptions.ActorUnavailableError:
                pass  # it is asked again at the next look, and may answer then
            except Exception as error:  # whatever its class's import raised on the node
                kept.actor = kept.status = None
                kept.trouble = f"its agent has died: {_lines(error)[-1]}"
            await asyncio.sleep(LOOK_S)

    def _agent_plan(self, node: RayNode) -> AgentPlan:
        return {
            "node": node.name,
            "address": node.address,
            "pool": self.plan.pool,
            "directory": self.plan.directory,
            "version": VERSION,
        }

    def _is_other(self, kept: _Kept) -> bool:
        return kept.status is not None and kept.status["plan"] != self._agent_plan(kept.node)

    def _actor_on(self, node: RayNode) -> Any:  # noqa: ANN401 (Ray's own)
        """Return the actor of a node, which is made if there is none.

        It asks for no processor and no GPU, so that Ray sets nothing for it.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        made = self.ray.remote(RayAgent).options(
            name=f"agent-{node.ray_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.ray_id, soft=False),
        )
        return made.remote(self._agent_plan(node))

    # Calls.

    async def _carry(self, call: Call) -> None:
        """Hand a call on to its agent, and return the answer."""
        number, node, method, text = call
        kept = self._named.get(node)
        answer: tuple[Kind, str]
        if kept is None or kept.actor is None:
            answer = "error", "Ray knows no agent there"
        elif kept.calls >= MOST_CALLS:
            answer = "error", "its agent has many calls, and answers none"
        else:
            kept.calls += 1
            try:
                answer = await kept.actor.call.remote(method, text)
            except Exception as error:  # Ray's own
                answer = "error", f"Ray cannot reach its agent ({type(error).__name__})"
            finally:
                kept.calls -= 1
        self.pipe.send((number, *answer))


def _lines(error: Exception) -> list[str]:
    """Return what an error says, in lines that are not blank; one at least."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines or [type(error).__name__]


def connected(address: str) -> Any:  # noqa: ANN401 (a module)
    """Return Ray, connected to the cluster of an address.

    Raises
    ------
    PermissionError, Exception
        When Ray refuses.
    """
    import ray

    # Refused, it tries again for long.
    try:
        importlib.import_module("ray._raylet").GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        raise PermissionError(_TOKEN) from None
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def is_open(address: str) -> bool:
    """Return whether a cluster admits drivers without a token, as Ray before 2.52 does."""
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    knock = [sys.executable, "-c", _KNOCK, address]
    done = subprocess.run(knock, env=env, capture_output=True, timeout=_KNOCK_S)
    return done.returncode != _REFUSED


def main() -> None:
    """Drive until the service is gone."""
    with Connection(int(sys.argv[1])) as pipe:
        plan = pipe.recv()
        try:
            ray = connected(plan.address)
            if not plan.open and is_open(plan.address):
                raise PermissionError(_OPEN)
            asyncio.run(Driver(plan, ray, pipe).run())
        except Exception as error:  # one line for the service, which tries again
            pipe.send(Sighting(trouble=_lines(error)[0]))
    # Tasks may wait for calls that never end.
    os._exit(1)


if __name__ == "__main__":
    main()
