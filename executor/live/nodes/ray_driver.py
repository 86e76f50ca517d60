"""A driver of Ray, in a process of its own: it keeps an agent on every node and tells where.

::

    python -m dovetail.executor.live.nodes.ray_driver < PLAN

The first line of its standard input is a ``RayPlan``; when the input ends, so does it. Every
second it prints a ``Sighting`` as one JSON line. It is no part of the service, since Ray ends the
process of a driver that has lost its head node for a minute, and says much on standard error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final, NamedTuple

from dovetail.executor.live.nodes.ray_agent import AgentPlan, AgentReply, RayAgent
from dovetail.executor.live.nodes.ray_finding import RayPlan, Sighted, Sighting
from dovetail.executor.live.nodes.serving import host_and_port
from dovetail.instances._version import VERSION

NAMESPACE: Final = "dovetail"

LOOK_S: Final = 1.0
"""Seconds between two looks at the cluster."""

FIRST_S: Final = 15.0
"""Seconds that agents have to start before the first sighting is told without them."""

_TWINS: Final = "two nodes of Ray have this name: start each with a label, --labels=node=NAME"
_ANSWER_S: Final = 2.0
_CONNECT_S: Final = 5.0


class RayNode(NamedTuple):
    """A node as Ray has it; a raylet that was started anew is another one."""

    ray_id: str
    name: str
    address: str
    rack: str | None


def wanted_nodes(table: Sequence[Mapping[str, Any]], plan: RayPlan) -> list[RayNode]:
    """Return the nodes that are alive and that a plan wants, from Ray's table of nodes.

    A node is called what its label ``node`` says, or else as its host.
    """
    return [
        RayNode(
            entry["NodeID"],
            entry["Labels"].get("node") or entry["NodeManagerHostname"],
            entry["NodeManagerAddress"],
            entry["Labels"].get("rack"),
        )
        for entry in table
        if entry["Alive"] and _is_wanted(entry, plan)
    ]


def _is_wanted(entry: Mapping[str, Any], plan: RayPlan) -> bool:
    name, _, value = (plan.label or "").partition(":")
    if plan.label is not None and entry["Labels"].get(name) != value:
        return False
    return bool(entry["Resources"].get(plan.needed_resource, 0) > 0)


@dataclass
class _Actor:
    """The actor of a node, and the call whose answer is awaited."""

    handle: Any
    call: Any = None


@dataclass
class Driver:
    """Keeps an agent on every node of a cluster.

    Parameters
    ----------
    plan : RayPlan
        What is wanted.
    ray : module
        Ray, connected.
    """

    plan: RayPlan
    ray: Any
    _actors: dict[str, _Actor] = field(default_factory=dict)
    _replies: dict[str, AgentReply] = field(default_factory=dict)

    def look(self, within_s: float) -> Sighting:
        """Have agents where they should be, and return where they answer."""
        nodes = wanted_nodes(self.ray.nodes(), self.plan)
        alive = {node.ray_id for node in nodes}
        for gone in self._actors.keys() - alive:
            del self._actors[gone]
            self._replies.pop(gone, None)
        notes = [note for note in self._ask(nodes, within_s) if note]
        found: dict[str, Sighted] = {}
        for node in nodes:
            reply = self._replies.get(node.ray_id)
            if reply is None:
                continue
            notes += [f"{node.name}: {note}" for note in self._judged(node, reply)]
            if reply.port is not None and node.name not in found:
                found[node.name] = Sighted(
                    address=node.address, port=reply.port, token=reply.token, rack=node.rack
                )
        notes += [f"{name}: {_TWINS}" for name in self._twins(nodes)]
        return Sighting(nodes=found, notes=tuple(notes))

    def _twins(self, nodes: Sequence[RayNode]) -> list[str]:
        """Return the names that several nodes have whose actors have answered."""
        counted = Counter(node.name for node in nodes if node.ray_id in self._replies)
        return [name for name, count in counted.items() if count > 1]

    def _ask(self, nodes: Sequence[RayNode], within_s: float) -> list[str]:
        for node in nodes:
            actor = self._actors.setdefault(node.ray_id, _Actor(None))
            if actor.handle is None:
                actor.handle = self._actor_on(node)
            if actor.call is None:
                actor.call = actor.handle.where.remote()
        calls = [self._actors[node.ray_id].call for node in nodes]
        if calls:
            self.ray.wait(calls, num_returns=len(calls), timeout=within_s)
        return [self._take_answer(node) for node in nodes]

    def _take_answer(self, node: RayNode) -> str:
        """Take in what an actor has answered, and return what is wrong with it."""
        actor = self._actors[node.ray_id]
        done, _ = self.ray.wait([actor.call], timeout=0)
        if not done:
            return ""
        call, actor.call = actor.call, None
        try:
            self._replies[node.ray_id] = AgentReply.from_data(self.ray.get(call))
        except self.ray.exceptions.ActorUnavailableError:
            return ""  # it is asked again at the next look, and may answer then
        except Exception as error:  # whatever its class's import raised on the node
            actor.handle = None
            self._replies.pop(node.ray_id, None)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return (
                f"{node.name}: its agent has died: {lines[-1] if lines else type(error).__name__}"
            )
        return ""

    def _judged(self, node: RayNode, reply: AgentReply) -> Sequence[str]:
        """Return what people should know of an agent; one that is not as planned is replaced."""
        notes = list(reply.notes)
        if reply.version != VERSION:
            notes.append(f"its agent runs Dovetail {reply.version}, this service {VERSION}")
        if reply.plan == self._agent_plan(node):
            return notes
        if reply.busy:
            notes.append("its agent was started with other options; replaced once nothing runs")
        else:
            actor = self._actors[node.ray_id]
            self.ray.kill(actor.handle)
            actor.handle = actor.call = None
            del self._replies[node.ray_id]
        return notes

    def _agent_plan(self, node: RayNode) -> AgentPlan:
        return AgentPlan(
            node=node.name,
            address=node.address,
            pool=self.plan.pool,
            directory=self.plan.directory,
        )

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
        return made.remote(self._agent_plan(node).model_dump(mode="json"))


def connected(address: str) -> Any:  # noqa: ANN401 (a module)
    """Return Ray, connected to the cluster of an address.

    Raises
    ------
    OSError, Exception
        When nothing answers there, or Ray refuses.
    """
    # Ray itself waits for ever where nothing answers.
    with socket.create_connection(host_and_port(address), timeout=_CONNECT_S):
        pass
    import ray

    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def _say(out: IO[str], sighting: Sighting) -> None:
    out.write(json.dumps(sighting.model_dump(mode="json")) + "\n")
    out.flush()


def _end_with_input() -> None:
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 1024):
            pass
    os._exit(0)


def main() -> int:
    """Drive until standard input ends."""
    with open(0, "rb", buffering=0, closefd=False) as given:
        plan = RayPlan.model_validate_json(given.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        driver = Driver(plan, connected(plan.address))
        within_s = FIRST_S
        while True:
            _say(out, driver.look(within_s))
            within_s = _ANSWER_S
            time.sleep(LOOK_S)
    except Exception as error:  # told in one line to the service, which tries again
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        _say(out, Sighting(trouble=lines[0] if lines else type(error).__name__))
        return 1


if __name__ == "__main__":
    sys.exit(main())
