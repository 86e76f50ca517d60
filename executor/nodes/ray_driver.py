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

from dovetail.executor.nodes.agent import Kind, Method
from dovetail.executor.nodes.caller import Call
from dovetail.executor.nodes.options import RayPlan
from dovetail.executor.nodes.ray_agent import AgentPlan, RayAgent
from dovetail.executor.nodes.ray_finding import Sighted, Sighting
from dovetail.instances._version import VERSION

NAMESPACE: Final = "dovetail"

LOOK_S: Final = 1.0
"""Seconds between two looks at the cluster."""

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


@dataclass
class _Agent:
    """The actor of a node, its calls under way, and what it last noted for people."""

    actor: Any = None
    calls: int = 0
    notes: Sequence[str] = ()


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
    _nodes: Mapping[str, RayNode] = field(default_factory=dict)
    _agents: dict[str, _Agent] = field(default_factory=dict)

    async def run(self) -> None:
        """Look at the cluster, and hand on calls, until the pipe ends.

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
        while True:
            table = await asyncio.to_thread(self.ray.nodes)
            if not any(entry["NodeID"] == ours and entry["Alive"] for entry in table):
                # Without it, no actor that starts from now on could be reached.
                raise ConnectionError("the Ray of its own machine has ended")
            self.pipe.send(self._look(wanted_nodes(table, self.plan)))
            await asyncio.sleep(LOOK_S)

    def _look(self, nodes: Sequence[RayNode]) -> Sighting:
        self._nodes = {node.name: node for node in reversed(nodes)}
        for gone in self._agents.keys() - {node.ray_id for node in nodes}:
            del self._agents[gone]
        names = Counter(node.name for node in nodes)
        notes = [f"{name}: {_TWINS}" for name, count in names.items() if count > 1]
        for node in nodes:
            agent = self._agents.get(node.ray_id, _Agent())
            notes += [f"{node.name}: {note}" for note in agent.notes]
        return Sighting({node.name: node.sighted for node in nodes}, tuple(notes))

    async def _carry(self, call: Call) -> None:
        """Hand a call on to its agent, and return the answer."""
        number, name, method, text = call
        node = self._nodes.get(name)
        answer: tuple[Kind, str] = "error", "Ray does not name it"
        if node is not None:
            answer = await self._answer(node, method, text)
        self.pipe.send((number, *answer))

    async def _answer(self, node: RayNode, method: Method, text: str) -> tuple[Kind, str]:
        agent = self._agents.setdefault(node.ray_id, _Agent())
        if agent.calls >= MOST_CALLS:
            return "error", "its agent has many calls, and answers none"
        agent.calls += 1
        plan = AgentPlan(
            node=node.name,
            address=node.address,
            pool=self.plan.pool,
            directory=self.plan.directory,
            version=VERSION,
        )
        try:
            if agent.actor is None:
                agent.actor = await asyncio.to_thread(self._actor_on, node)
            answer, agent.notes = await agent.actor.call.remote(plan, method, text)
            if answer is None:
                self.ray.kill(agent.actor)
                agent.actor = None
            return answer or ("error", "its agent is replaced")
        except self.ray.exceptions.ActorUnavailableError:
            return "error", "Ray cannot reach its agent"  # it may answer the next call
        except Exception as error:  # whatever its class's import raised on the node
            agent.actor = None
            return "error", f"its agent has died: {_lines(error)[-1]}"
        finally:
            agent.calls -= 1

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
        return made.remote()


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
