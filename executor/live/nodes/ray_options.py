"""What ``--pool ray:ADDRESS,OPTIONS`` asks of the driver of Ray, and what that tells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import StrictBool

from dovetail.executor.live.nodes.finding import Sighted
from dovetail.executor.live.nodes.lease import LEASE_S, LEAST_S
from dovetail.executor.live.pools.opening import opener
from dovetail.instances._record import Name, Positive, Record
from dovetail.instances.errors import InputError

_FLAG: Final = "--pool"
_OPTIONS: Final = ("label", "resource", "directory", "lease", "open", "pool")


class RayPlan(Record):
    """What ``--pool ray:ADDRESS,OPTIONS`` asks for.

    Attributes
    ----------
    address : str
        ``HOST:PORT`` of the head.
    pool : str
        What each node's agent keeps: ``gpu`` or ``cpu`` and their options.
    label : str or None
        ``KEY:VALUE``: only nodes with this label.
    resource : str or None
        Only nodes that have this resource of Ray; by default ``GPU`` or ``CPU``, as the pool.
    directory : str or None
        Where agents keep their state on their nodes.
    lease_s : float
        Seconds that a node's jobs run on when the node is cut off.
    open : bool
        Whether the cluster may let everybody in.
    """

    address: Name
    pool: Name = "gpu"
    label: Name | None = None
    resource: Name | None = None
    directory: Name | None = None
    lease_s: Positive = LEASE_S
    open: StrictBool = False

    @property
    def needed_resource(self) -> str:
        """The resource that a node must have."""
        return self.resource or ("CPU" if self.pool.startswith("cpu") else "GPU")


class Sighting(NamedTuple):
    """What the driver tells every second.

    Attributes
    ----------
    nodes : mapping of str to Sighted
        The agents that answer Ray now, by node.
    notes : tuple of str
        What people should know, a line each.
    trouble : str
        Why the driver ends.
    """

    nodes: Mapping[str, Sighted] = {}
    notes: tuple[str, ...] = ()
    trouble: str = ""


def ray_plan(text: str) -> RayPlan:
    """Return the plan of ``ADDRESS[,label=KEY:VALUE][,resource=NAME]...[,pool=POOL]``.

    ``pool`` comes last, since its own options have commas, too.

    Raises
    ------
    InputError
        When the address or an option cannot be.
    """
    head, found, pool = text.partition(",pool=")
    address, *options = head.split(",")
    given = dict(_option(option) for option in options)
    if found:
        given["pool"] = pool
    try:
        host_and_port(address)
    except ValueError:
        raise InputError(f"must be ray:HOST:PORT, got {address!r}", _FLAG) from None
    lease_s = _seconds(given.pop("lease", f"{LEASE_S:g}"))
    is_open = given.pop("open", "no")
    if is_open not in ("yes", "no"):
        raise InputError(f"open must be yes or no, got {is_open!r}", _FLAG)
    asked = {"address": address, **given, "lease_s": lease_s, "open": is_open == "yes"}
    plan = RayPlan.from_data(asked, _FLAG)
    opener(plan.pool, Path())
    if plan.label is not None and not re.fullmatch(r"[^:]+:[^:]+", plan.label):
        raise InputError(f"label must be KEY:VALUE, got {plan.label!r}", _FLAG)
    if plan.directory is not None and not Path(plan.directory).is_absolute():
        raise InputError(f"directory must begin with /, got {plan.directory!r}", _FLAG)
    return plan


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name not in _OPTIONS:
        raise InputError(f"must be one of {', '.join(_OPTIONS)}, got {name!r}", _FLAG)
    return name, value


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,4}(\.\d+)?", text) or float(text) < LEAST_S:
        raise InputError(f"lease must be seconds >= {LEAST_S:g}, got {text!r}", _FLAG)
    return float(text)


def host_and_port(text: str) -> tuple[str, int]:
    """Return what ``HOST:PORT`` says.

    Raises
    ------
    ValueError
        When it says something else.
    """
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= 65_535):
        raise ValueError(f"must be HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)
