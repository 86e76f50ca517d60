"""Where the agents are: what an engine has to know, and the finder of a list that people keep."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Protocol

from pydantic import AfterValidator, Field, StrictInt

from dovetail.executor.live.nodes.serving import read_token
from dovetail.instances._record import Name, Record, rule_broken
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data

_FIRST_OPEN: Final = 1024
_log = logging.getLogger(__name__)


class NodeAddress(NamedTuple):
    """Where the agent of a node answers, and what it wants to hear.

    Attributes
    ----------
    address, port : str, int
        Of the agent.
    token : str
        What it lets its controller in by.
    rack : str or None
        Where the node stands.
    leaving : str
        Why no new jobs are to be started there; empty: they are.
    """

    address: str
    port: int
    token: str
    rack: str | None = None
    leaving: str = ""


class NodeFinder(Protocol):
    """Finds nodes and has agents run there; one more kind of engine is one more class like this.

    ``nodes`` is called often, from several threads, and returns at once what is known now: a node
    may come, go, or change its address when its agent was started anew. A node keeps its id for as
    long as it keeps its agent's directory.

    Attributes
    ----------
    name : str
        ``nodes``, ``ray``, ``slurm``: what the pool is called.
    """

    name: str

    def start(self) -> None:
        """Begin to find nodes; called once."""
        ...

    def nodes(self) -> Mapping[str, NodeAddress]:
        """Return the nodes that are known now, by id."""
        ...

    def awaited(self) -> Sequence[str]:
        """Return what has no nodes yet, though it is to have some, each in a few words."""
        ...

    def close(self) -> None:
        """Let go; agents and their jobs run on."""
        ...


def _node_id(text: str) -> str:
    if "/" in text or text.split() != [text]:
        raise rule_broken("", f"must have no slash and no blank, got {text!r}")
    return text


class _Node(Record):
    id: Annotated[Name, AfterValidator(_node_id)]
    address: Name
    port: Annotated[StrictInt, Field(ge=1, le=65_535)]
    rack: Name | None = None


class _Nodes(Record):
    token_file: Name
    nodes: Annotated[tuple[_Node, ...], Field(min_length=1)]


class ListedNodes:
    """Finds the agents that a file names; read again when it changes.

    ::

        token_file: token        # beside this file, or an absolute path
        nodes:
          - {id: n1, address: 10.0.0.1, port: 7070, rack: r1}

    Parameters
    ----------
    path : path
        The file.
    privileged : bool
        Whether agents have to listen where only root can (``refuse_open``).

    Raises
    ------
    InputError
        When the file is not like that.
    """

    name = "nodes"

    def __init__(self, path: Path, privileged: bool = False) -> None:
        self._path, self._privileged = path, privileged
        self._changed_ns = path.stat().st_mtime_ns if path.exists() else 0
        self._known = read_nodes(path, privileged)
        self._told = ""

    def start(self) -> None:
        """Do nothing: agents are started by others."""

    def nodes(self) -> Mapping[str, NodeAddress]:
        """Return the nodes that the file names; a file that is broken meanwhile changes nothing."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                self._known = read_nodes(self._path, self._privileged)
                self._changed_ns, self._told = changed_ns, ""
        except OSError as error:
            self._tell(f"{self._path}: cannot be read: {error.strerror}")
        except InputError as error:
            self._tell(str(error))
        return self._known

    def awaited(self) -> Sequence[str]:
        """Return nothing: the file names all nodes that there are."""
        return ()

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            _log.warning("%s; the nodes named before stay", trouble)
        self._told = trouble

    def close(self) -> None:
        """Do nothing."""


def refuse_open(port: int, where: str, source: str = "") -> None:
    """Refuse a port of root's agent on which any user may listen while the agent is down.

    Who listens there is shown the token, with which agents run anything as anybody.

    Raises
    ------
    InputError
        When any user may.
    """
    if port >= _FIRST_OPEN or not port:
        rule = f"must be a port below {_FIRST_OPEN}, got {port}: on others any user could listen "
        raise InputError(f"{rule}and be shown the token (--insecure: all the same)", where, source)


def read_nodes(path: Path, privileged: bool = False) -> Mapping[str, NodeAddress]:
    """Return the nodes that a file names.

    Raises
    ------
    InputError
        One line: what the file should say.
    """
    named = _Nodes.from_data(read_data(path), str(path))
    ids: set[str] = set()
    agents: dict[tuple[str, int], str] = {}
    for k, node in enumerate(named.nodes):
        if node.id in ids:
            rule = f"node ids must differ, got {node.id!r} twice"
            raise InputError(rule, f"nodes[{k}].id", str(path))
        if privileged:
            refuse_open(node.port, f"nodes[{k}].port", str(path))
        ids.add(node.id)
        # The devices of an agent with two names would be given away twice.
        first = agents.setdefault((node.address, node.port), node.id)
        if first != node.id:
            agent = f"{node.address}:{node.port}"
            rule = f"must have an agent of its own, got that of {first} ({agent})"
            raise InputError(rule, f"nodes[{k}]", str(path))
    token = read_token(path.parent / named.token_file, f"token_file of {path}")
    return {node.id: NodeAddress(node.address, node.port, token, node.rack) for node in named.nodes}
