"""The driver of Ray, a process that keeps an agent on every node and forwards calls to it.

::

    python -m dovetail.cluster.ray_driver PIPE

PIPE is the number of a file descriptor. Through it, the service sends a ``RayPlan`` and then calls
(``caller``); the driver returns the answers, and a ``ClusterReport`` every second. It ends when the
pipe is closed. It is a separate process because Ray ends a driver that has lost its head for a
minute.
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

from dovetail.cluster.caller import Call
from dovetail.cluster.messages import Kind, Method
from dovetail.cluster.options import RayPlan
from dovetail.cluster.ray_agent import AgentPlan, RayAgent
from dovetail.cluster.ray_finder import ClusterReport, NodeInfo
from dovetail.instances._version import VERSION

NAMESPACE: Final = "dovetail"

REPORT_S: Final = 1.0
"""Seconds between two reports of the nodes."""

MOST_CALLS: Final = 8
"""The most open calls to one agent; calls to an agent that hangs never end."""

_TWINS: Final = "two Ray nodes have this name: start each with a label, --labels=node=NAME"
_OPEN: Final = (
    "the cluster admits every connection, and a connection can run anything as any user: "
    "start all its nodes with RAY_AUTH_MODE=token (or add open=yes to the pool's options)"
)
_TOKEN: Final = (
    "the cluster requires its token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH, as on its nodes"
)
_TRY_WITHOUT_TOKEN: Final = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    sys.exit(3)
"""
_REFUSED: Final = 3
_TRY_S: Final = 30.0


class RayNode(NamedTuple):
    """A Ray node. A restarted raylet has a new ``ray_id``."""

    ray_id: str
    name: str
    address: str
    info: NodeInfo


def selected_nodes(table: Sequence[Mapping[str, Any]], plan: RayPlan) -> list[RayNode]:
    """Return the live nodes of Ray's table that a plan selects.

    The name of a node is its label ``node``, or its host name without one.
    """
    found = []
    for entry in table:
        if entry["Alive"] and _is_selected(entry, plan):
            labels = entry["Labels"]
            name = labels.get("node") or entry["NodeManagerHostname"]
            info = NodeInfo(labels.get("rack"), labels.get("pilot"))
            found.append(RayNode(entry["NodeID"], name, entry["NodeManagerAddress"], info))
    return found


def _is_selected(entry: Mapping[str, Any], plan: RayPlan) -> bool:
    name, _, value = (plan.label or "").partition(":")
    if plan.label is not None and entry["Labels"].get(name) != value:
        return False
    return bool(entry["Resources"].get(plan.needed_resource, 0) > 0)


@dataclass
class _AgentActor:
    """The actor of a node, the number of its open calls, and its last notes for the user."""

    actor: Any = None
    calls: int = 0
    notes: Sequence[str] = ()


@dataclass
class RayDriver:
    """Keeps an agent on every node of a cluster, and forwards calls to it.

    Parameters
    ----------
    plan : RayPlan
        Selects the nodes, and has the options of their agents.
    ray : module
        Ray, connected.
    pipe : Connection
        The connection to the service.
    """

    plan: RayPlan
    ray: Any
    pipe: Connection
    _nodes: Mapping[str, RayNode] = field(default_factory=dict)
    _agents: dict[str, _AgentActor] = field(default_factory=dict)

    async def run(self) -> None:
        """Report the nodes of the cluster and forward calls until the pipe is closed.

        Raises
        ------
        ConnectionError
            When the Ray of this machine has ended.
        """
        ours = self.ray.get_runtime_context().get_node_id()
        loop, forwarding = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(call: Call) -> None:
            task = loop.create_task(self._forward(call))
            forwarding.add(task)
            task.add_done_callback(forwarding.discard)

        def read() -> None:
            with suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(begin, self.pipe.recv())
            os._exit(0)

        threading.Thread(target=read, daemon=True).start()
        while True:
            table = await asyncio.to_thread(self.ray.nodes)
            if not any(entry["NodeID"] == ours and entry["Alive"] for entry in table):
                # Without it, actors that start from now on cannot be reached.
                raise ConnectionError("the Ray of its own machine has ended")
            self.pipe.send(self._report(selected_nodes(table, self.plan)))
            await asyncio.sleep(REPORT_S)

    def _report(self, nodes: Sequence[RayNode]) -> ClusterReport:
        self._nodes = {node.name: node for node in reversed(nodes)}
        for gone in self._agents.keys() - {node.ray_id for node in nodes}:
            del self._agents[gone]
        names = Counter(node.name for node in nodes)
        notes = [f"{name}: {_TWINS}" for name, count in names.items() if count > 1]
        for node in nodes:
            agent = self._agents.get(node.ray_id, _AgentActor())
            notes += [f"{node.name}: {note}" for note in agent.notes]
        return ClusterReport({node.name: node.info for node in nodes}, tuple(notes))

    async def _forward(self, call: Call) -> None:
        """Forward a call to its agent, and send back the answer."""
        number, name, method, text = call
        node = self._nodes.get(name)
        answer: tuple[Kind, str] = "error", "Ray does not list it"
        if node is not None:
            answer = await self._answer(node, method, text)
        self.pipe.send((number, *answer))

    async def _answer(self, node: RayNode, method: Method, text: str) -> tuple[Kind, str]:
        agent = self._agents.setdefault(node.ray_id, _AgentActor())
        if agent.calls >= MOST_CALLS:
            return "error", f"its agent has not answered {MOST_CALLS} calls"
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
        except Exception as error:  # including errors of importing its class on the node
            agent.actor = None
            return "error", f"its agent has died: {_lines(error)[-1]}"
        finally:
            agent.calls -= 1

    def _actor_on(self, node: RayNode) -> Any:  # noqa: ANN401 (Ray's own)
        """Return the actor of a node, created if there is none.

        It requests neither processors nor GPUs, so that Ray sets no variables for it.
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
    """Return the non-blank lines of an error's text, at least one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines or [type(error).__name__]


def connected(address: str) -> Any:  # noqa: ANN401 (a module)
    """Return Ray, connected to the cluster at an address.

    Raises
    ------
    PermissionError, Exception
        When Ray refuses.
    """
    import ray

    # ray.init retries for a long time when it is refused.
    try:
        importlib.import_module("ray._raylet").GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        raise PermissionError(_TOKEN) from None
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def is_open(address: str) -> bool:
    """Return whether a cluster admits drivers without a token; Ray before 2.52 always does."""
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    attempt = [sys.executable, "-c", _TRY_WITHOUT_TOKEN, address]
    done = subprocess.run(attempt, env=env, capture_output=True, timeout=_TRY_S)
    return done.returncode != _REFUSED


def main() -> None:
    """Run the driver until the service is gone."""
    with Connection(int(sys.argv[1])) as pipe:
        plan = pipe.recv()
        try:
            ray = connected(plan.address)
            if not plan.open and is_open(plan.address):
                raise PermissionError(_OPEN)
            asyncio.run(RayDriver(plan, ray, pipe).run())
        except Exception as error:  # one line for the service, which starts another driver
            pipe.send(ClusterReport(trouble=_lines(error)[0]))
    # Open calls may never end.
    os._exit(1)


if __name__ == "__main__":
    main()
