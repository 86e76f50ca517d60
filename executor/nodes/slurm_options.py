"""What ``--pool slurm:OPTIONS`` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.nodes.lease import LEASE_S, LEAST_S
from dovetail.executor.pools.opening import opener
from dovetail.instances.errors import InputError

MOST_LEASE_S: Final = 30
"""What runs under a longer one might not be over when a pilot ends that was let go."""

IDLE_S: Final = 600.0
"""Seconds without a job after which a pilot that is not needed is given back."""

_FLAG: Final = "--pool"


class Asked(NamedTuple):
    """What ``slurm:...`` asks for.

    Attributes
    ----------
    job : str or None
        An allocation that exists; None: pilots are submitted.
    options : tuple of str
        Of ``sbatch``.
    pool : str
        Of each agent.
    scratch : str or None
        Where agents keep their files, on each node.
    lease_s : float
        Seconds that jobs run on where their node is cut off.
    pilots : tuple of int
        How many pilots there are at least, and at most while jobs lack devices.
    idle_s : float
        Seconds without a job after which a pilot beyond the least is given back.
    head : str or None
        The address of this machine at which nodes reach Ray's head; None: the one that
        ``slurmctld`` sees.
    """

    job: str | None
    options: tuple[str, ...] = ()
    pool: str = "gpu"
    scratch: str | None = None
    lease_s: float = LEASE_S
    pilots: tuple[int, int] = (1, 1)
    idle_s: float = IDLE_S
    head: str | None = None


def asked_for(text: str, environment: Mapping[str, str]) -> Asked:
    """Return what the options of a Slurm pool ask for.

    ``NAME=VALUE`` separated by commas: ``job``, ``scratch``, ``lease``, ``head``, ``pilots``,
    ``idle``, and ``pool``, which comes last as its own options have commas, too; any other is an
    option of ``sbatch``. A part without ``=`` belongs to the value before it; ``NAME=`` is an
    option without value.

    Raises
    ------
    InputError
        When it asks for nothing, for both an allocation and a new one, or for no pool that is.
    """
    text, has_pool, pool = text.partition("pool=")
    parts: list[tuple[str, str]] = []
    for piece in filter(None, text.split(",")):
        name, equals, value = piece.partition("=")
        if equals:
            parts.append((_new_name(name.strip(), parts, piece), value))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]},{piece}")
        else:
            parts.append(("job", piece.strip()))
    given = dict(parts)
    scratch = given.pop("scratch", None)
    lease_s = _lease_s(given.pop("lease", f"{LEASE_S:g}"))
    head = given.pop("head", None)
    job = given.pop("job", None)
    if job is None and not given:
        job = environment.get("SLURM_JOB_ID")
        if job is None:
            rule = "must name an allocation (slurm:JOBID) or what to ask for (slurm:nodes=N,...)"
            raise InputError(rule, _FLAG)
    pilots, idle_s = (1, 1), IDLE_S
    if job is None:
        pilots = _pilots(given.pop("pilots", "1..1"))
        idle_s = _idle_s(given.pop("idle", f"{IDLE_S:g}"))
    if job is not None and (given or not job.isdecimal()):
        extra = f"{next(iter(given))}=" if given else job
        raise InputError(f"an allocation has a number and takes no options, got {extra!r}", _FLAG)
    options = tuple(f"--{name}={value}" if value else f"--{name}" for name, value in given.items())
    if has_pool:
        opener(pool, Path())
    pool = pool if has_pool else "gpu"
    return Asked(job, options, pool, scratch, lease_s, pilots, idle_s, head)


def _new_name(name: str, parts: Sequence[tuple[str, str]], piece: str) -> str:
    if not name:
        raise InputError(f"must be NAME=VALUE,..., got {piece!r}", _FLAG)
    if name in dict(parts):
        raise InputError(f"{name} must be given once, got {piece!r}, too", _FLAG)
    return name


def _pilots(text: str) -> tuple[int, int]:
    least, dots, most = text.partition("..")
    if dots and least.isdecimal() and most.isdecimal() and int(least) <= int(most) > 0:
        return int(least), int(most)
    raise InputError(f"pilots must be MIN..MAX, MAX >= 1, got {text!r}", _FLAG)


def _idle_s(text: str) -> float:
    if text.isdecimal() and int(text) > 0:
        return float(text)
    raise InputError(f"idle must be whole seconds >= 1, got {text!r}", _FLAG)


def _lease_s(text: str) -> float:
    if text.isdecimal() and LEAST_S <= int(text) <= MOST_LEASE_S:
        return float(text)
    raise InputError(
        f"lease must be {LEAST_S:g} to {MOST_LEASE_S} whole seconds, got {text!r}", _FLAG
    )
