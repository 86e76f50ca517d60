"""The options of ``--pool ray:...`` and ``--pool slurm:...``."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Final, NamedTuple

from dovetail.cluster.lease import LEASE_S, LEAST_S
from dovetail.executor.pools.names import STATIC_PARTITIONS, GpuOptions, pool_options
from dovetail.instances.errors import InputError
from dovetail.toolkit.commands import host_and_port

MOST_LEASE_S: Final = 30
"""The longest lease of a Slurm pool; under a longer one, jobs might outlive a released pilot."""

IDLE_S: Final = 600.0
"""Default number of seconds without a job after which a pilot that is not needed is cancelled."""

KILLS: Final = "RAY_kill_child_processes_on_worker_exit"
"""A setting of Ray: if true, Ray kills the shims of the jobs when the agent ends."""

OWN_DIRECTORY: Final = "DOVETAIL_AGENT_DIRECTORY"

OWN_POOL: Final = "DOVETAIL_AGENT_POOL"
"""Variables that replace the plan's directory and pool on one node (GPUs that Slurm gave it)."""

_FLAG: Final = "--pool"
_OF_RAY: Final = ("label", "resource", "directory", "lease", "open", "pool")


class RayPlan(NamedTuple):
    """The options of ``ray:ADDRESS,OPTIONS``.

    Attributes
    ----------
    address : str
        ``HOST:PORT`` of the head.
    pool : str
        Pool of each agent: ``gpu``, ``gpu:ID,ID``, ``cpu`` or ``cpu:OPTIONS``. It comes last
        because its own options contain commas.
    label : str or None
        ``KEY:VALUE``: only nodes with this label.
    resource : str or None
        Only nodes with this resource of Ray. Absent: ``GPU``, or ``CPU`` for the cpu pool, which
        leaves out a head with ``--num-cpus=0``.
    directory : str or None
        The directory of the agents' state, best on a local disk. Absent:
        ``/var/lib/dovetail/agents`` for root, else ``~/.local/state/dovetail/agents``.
    lease_s : float
        Seconds for which jobs keep running on a node that is cut off, at least 5.
    open : bool
        ``yes``: accept a cluster without a token.
    """

    address: str
    pool: str = "gpu"
    label: str | None = None
    resource: str | None = None
    directory: str | None = None
    lease_s: float = LEASE_S
    open: bool = False

    @property
    def needed_resource(self) -> str:
        """The resource of Ray that a node must have."""
        return self.resource or ("CPU" if self.pool.startswith("cpu") else "GPU")


class SlurmPlan(NamedTuple):
    """The options of ``slurm:OPTIONS``.

    Attributes
    ----------
    job : str or None
        The allocation to use (also ``slurm:JOBID``). Absent: pilots are submitted.
    options : tuple of str
        Any other name is an option of ``sbatch`` without its dashes; ``NAME=`` is one without a
        value.
    pool : str
        Pool of each agent. It comes last because its own options contain commas.
    scratch : str or None
        Folder on each node for the agent's files, which must exist as long as the pilot.
        Variables in it (``$LOCAL``, quoted) are expanded on the node. Absent: its ``TMPDIR``.
    lease_s : float
        Seconds for which jobs keep running on a node that is cut off, 5 to 30.
    pilots : tuple of int
        ``MIN..MAX``: at least ``MIN`` pilots, and up to ``MAX`` while jobs lack devices.
    idle_s : float
        Seconds without a run after which a pilot beyond ``MIN`` is cancelled, while no job lacks
        devices.
    head : str or None
        Address of this machine at which nodes reach Ray's head. Absent: the address from which it
        reaches ``slurmctld``.
    """

    job: str | None
    options: tuple[str, ...] = ()
    pool: str = "gpu"
    scratch: str | None = None
    lease_s: float = LEASE_S
    pilots: tuple[int, int] = (1, 1)
    idle_s: float = IDLE_S
    head: str | None = None


def ray_plan(text: str) -> RayPlan:
    """Return the plan of ``ADDRESS[,label=KEY:VALUE][,resource=NAME]...[,pool=POOL]``.

    Raises
    ------
    InputError
        When the address or an option is invalid.
    """
    address, given, pool = _parts(text)
    try:
        host_and_port(address)
    except ArgumentTypeError:
        raise InputError(f"must be ray:HOST:PORT, got {address!r}", _FLAG) from None
    for name in given:
        if name not in _OF_RAY:
            raise InputError(f"must be one of {', '.join(_OF_RAY)}, got {name!r}", _FLAG)
    label = _matching(given, "label", r"[^:]+:[^:]+", "KEY:VALUE")
    directory = _matching(given, "directory", r"/.*", "a path that begins with /")
    is_open = _matching(given, "open", r"yes|no", "yes or no") == "yes"
    lease_s = _seconds(given, "lease", LEASE_S, LEAST_S)
    return RayPlan(address, pool, label, given.get("resource"), directory, lease_s, is_open)


def slurm_plan(text: str, environment: Mapping[str, str]) -> SlurmPlan:
    """Return the plan of ``[JOB][,NAME=VALUE]...[,pool=POOL]``.

    Names are ``job``, ``scratch``, ``lease``, ``head``, ``pilots`` and ``idle``; any other is an
    option of ``sbatch``, and ``NAME=`` is one without a value.

    Parameters
    ----------
    text : str
        The options.
    environment : mapping of str to str
        Its ``SLURM_JOB_ID`` is the allocation if there are no options.

    Raises
    ------
    InputError
        When an option is invalid, or neither or both of an allocation and pilots are named.
    """
    first, given, pool = _parts(text)
    job = given.pop("job", None) or first or None
    scratch, head = given.pop("scratch", None), given.pop("head", None)
    lease_s = _seconds(given, "lease", LEASE_S, LEAST_S, MOST_LEASE_S)
    if job is None and not given:
        job = environment.get("SLURM_JOB_ID")
        if job is None:
            rule = "must name an allocation (slurm:JOBID) or options of sbatch (slurm:nodes=N,...)"
            raise InputError(rule, _FLAG)
    if job is not None:
        if given or not job.isdecimal():
            extra = f"{next(iter(given))}=" if given else job
            rule = f"an allocation has a number and takes no options, got {extra!r}"
            raise InputError(rule, _FLAG)
        return SlurmPlan(job, (), pool, scratch, lease_s, head=head)
    idle_s = _seconds(given, "idle", IDLE_S, 1.0)
    pilots = given.pop("pilots", "1..1")
    least, dots, most = pilots.partition("..")
    if not (dots and least.isdecimal() and most.isdecimal() and int(least) <= int(most) > 0):
        raise InputError(f"pilots must be MIN..MAX, MAX >= 1, got {pilots!r}", _FLAG)
    options = tuple(f"--{name}={value}" if value else f"--{name}" for name, value in given.items())
    return SlurmPlan(None, options, pool, scratch, lease_s, (int(least), int(most)), idle_s, head)


def _parts(text: str) -> tuple[str, dict[str, str], str]:
    """Return the first, unnamed part, the options by name, and the pool of the agents.

    A part without ``=`` belongs to the value before it. ``pool`` comes last because its own options
    contain commas.
    """
    text, has_pool, pool = text.partition("pool=")
    if has_pool:
        asked = pool_options(pool)
        if isinstance(asked, GpuOptions) and asked.static:
            rule = f"{STATIC_PARTITIONS} is for a service on one machine, got pool={pool}"
            raise InputError(rule, _FLAG)
    first, given, last = "", dict[str, str](), ""
    for piece in filter(None, text.split(",")):
        name, equals, value = piece.partition("=")
        name = name.strip()
        if not equals and not last:
            first = name
        elif not equals:
            given[last] += f",{piece}"
        elif not name:
            raise InputError(f"must be NAME=VALUE,..., got {piece!r}", _FLAG)
        elif name in given:
            raise InputError(f"{name} must be given once, got {piece!r} as well", _FLAG)
        else:
            given[name], last = value, name
    return first, given, pool if has_pool else "gpu"


def _matching(given: Mapping[str, str], name: str, pattern: str, rule: str) -> str | None:
    value = given.get(name)
    if value is not None and not re.fullmatch(pattern, value):
        raise InputError(f"{name} must be {rule}, got {value!r}", _FLAG)
    return value


def _seconds(
    given: dict[str, str], name: str, default: float, least: float, most: float = 1e6
) -> float:
    """Remove a number of seconds from the options, and return it."""
    text = given.pop(name, f"{default:g}")
    if not re.fullmatch(r"\d{1,6}(\.\d+)?", text) or not least <= float(text) <= most:
        limits = f"{least:g} or more" if most == 1e6 else f"{least:g} to {most:g}"
        raise InputError(f"{name} must be seconds, {limits}, got {text!r}", _FLAG)
    return float(text)
