"""The agent of one node as an actor of Ray: what runs in the actor's process, on the node.

Ray is not imported here; ``ray_driver`` makes an actor of the class. The token of the agent is
drawn on its node, kept there, and told to those who may call actors of the cluster: they can run
what they like on it anyway, and no copy of it is left in Ray's own tables.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dovetail.executor.live.nodes.serving import AgentServer, hosted, read_token
from dovetail.instances._record import Name, Record
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError

KILLS: Final = "RAY_kill_child_processes_on_worker_exit"
"""What Ray must not do on a node: kill what watches over the jobs when the agent ends."""

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
    port : int or None
        Where its agent answers; None: it does not.
    token : str
        What the agent lets its controller in by.
    busy : bool
        Whether it keeps runs.
    notes : tuple of str
        What people should know, a line each.
    """

    plan: AgentPlan
    version: Name = VERSION
    port: int | None = None
    token: str = ""
    busy: bool = False
    notes: tuple[str, ...] = ()


class RayAgent:
    """Keeps the jobs of its node as long as its process lives; Ray starts it anew when it dies.

    Parameters
    ----------
    plan : mapping
        The plain data of an ``AgentPlan``.
    """

    def __init__(self, plan: Mapping[str, object]) -> None:
        for name in _LEAKED:
            os.environ.pop(name, None)
        self._plan = AgentPlan.from_data(plan)
        self._directory = agents_directory(self._plan.directory) / self._plan.node
        self._server: AgentServer | None = None
        self._stack = ExitStack()
        self._trouble = self._start()

    def where(self) -> dict[str, object]:
        """Return the plain data of an ``AgentReply``; an agent that could not start tries again."""
        if self._server is None:
            self._trouble = self._start()
        return self._reply().model_dump(mode="json")

    def _start(self) -> str:
        """Start the agent, and return why that is impossible; empty: it runs."""
        try:
            token = own_token(self._directory)
            listen = (self._plan.address, 0)
            served = hosted(self._directory, self._plan.pool, listen, token)
            self._server = self._stack.enter_context(served)
        except (DovetailError, OSError) as error:
            return " ".join(str(error).split())
        threading.Thread(target=_serve, args=(self._server,), daemon=True).start()
        return ""

    def _reply(self) -> AgentReply:
        if self._server is None:
            return AgentReply(plan=self._plan, notes=(self._trouble,))
        return AgentReply(
            plan=self._plan,
            port=self._server.server_address[1],
            token=self._server.token.decode(),
            busy=self._server.agent.is_busy(),
            notes=_warnings(),
        )


def _serve(server: AgentServer) -> None:
    """Answer for ever; an actor without its server ends, so that Ray starts it anew."""
    try:
        server.serve_forever()
    finally:
        os._exit(1)


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


def own_token(directory: Path) -> str:
    """Return the token of the agent that keeps a directory; the first time it is drawn."""
    path = directory / "token"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(32))
    return read_token(path)


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else can read at any time; it appears whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
