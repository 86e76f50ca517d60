"""Run the checks on one GPU, and keep what came of each as soon as it is there."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from dovetail import __version__
from dovetail.executor.live.first_contact import attaching, breaking, memory, sharing, watching
from dovetail.executor.live.first_contact.bench import Bench, CouldNotTryError, Notes, limited
from dovetail.executor.live.first_contact.records import Check, Machine, Proof, Verdict
from dovetail.executor.live.first_contact.seen import Checking, Seen
from dovetail.executor.live.nvml import Gpu, Nvml
from dovetail.instances.errors import InputError

CHECKS: Final[tuple[Checking, ...]] = (
    *attaching.CHECKS,
    *memory.CHECKS,
    *watching.CHECKS,
    *sharing.CHECKS,
    attaching.LAST,
    *breaking.CHECKS,
)
"""All checks in the order in which they run: what breaks things comes last."""

ELSEWHERE: Final[Mapping[int, str]] = MappingProxyType(
    {
        24: "needs a service with running jobs: kill it and start it again",
        25: "a GPU cannot be taken off the bus and brought back without harm to others",
        26: "gangs over two daemons need two GPUs",
        **dict.fromkeys(range(28, 37), "a campaign shows it: dovetail measure"),
    }
)
"""The lines of docs/hardware.md that no check can settle, and why."""

_BINARY: Final = b"\x7fELF"

_EACH_S: Final = 10.0
"""What starting and ending a check may take beside it."""


class Job(NamedTuple):
    """What is to be run.

    Attributes
    ----------
    only : tuple of str
        Ids; empty for all that have no result yet.
    faults : bool
        Whether checks that break things may run.
    minutes : float or None
        After which no check is begun.
    """

    only: tuple[str, ...] = ()
    faults: bool = True
    minutes: float | None = None


def machine_of(nvml: Nvml, gpu: Gpu, program: str | None) -> Machine:
    """Return what tells this GPU, driver and control program from others.

    A control program that is no binary is not NVIDIA's: then the proof says that it is of a
    stand-in, whoever has put it there.
    """
    return Machine(
        stand_in=None if program is None else _stand_in(program),
        gpu_model=gpu.name,
        uuid=gpu.uuid,
        driver=nvml.driver(),
        control="none" if program is None else os.path.realpath(program),
        compute_mode=gpu.compute_mode,
        sms=gpu.sms,
        memory_mib=gpu.memory_mib,
        uid=os.geteuid(),
        host_cores=os.cpu_count() or 1,
        kernel=platform.release(),
        dovetail=__version__,
    )


def _stand_in(program: str) -> str | None:
    with open(program, "rb") as file:
        binary = file.read(len(_BINARY)) == _BINARY
    return None if binary else f"{program} is a script, not NVIDIA's program"


def chosen(job: Job, proof: Proof) -> tuple[Checking, ...]:
    """Return the checks that are to be run, in order.

    Raises
    ------
    InputError
        An id is unknown.
    """
    known = {checking.id: checking for checking in CHECKS}
    for name in job.only:
        if name not in known:
            raise InputError(f"unknown check {name!r}; there are {', '.join(known)}", "--only")
    done = {check.id for check in proof.checks}
    return tuple(
        checking
        for checking in CHECKS
        if (checking.id in job.only if job.only else checking.id not in done)
        and (job.faults or not checking.fault)
    )


def usual_s(checks: Sequence[Checking]) -> float:
    """Return the seconds that checks are expected to take on hardware."""
    return sum(checking.usual_s for checking in checks)


def prove(
    nvml: Nvml, gpu: Gpu, program: str | None, python: str | None, job: Job, proof: Proof
) -> Iterator[Check]:
    """Run checks one after the other; each result can be kept as soon as it is there."""
    end = time.monotonic() + (job.minutes * 60 if job.minutes else 1e9)
    for checking in chosen(job, proof):
        if time.monotonic() + checking.usual_s + _EACH_S > end:
            continue
        yield run(checking, Bench(gpu, nvml, program, python))


def run(checking: Checking, bench: Bench) -> Check:
    """Run one check to its end, its time limit, or its trouble; nothing of it is left behind."""
    begun = time.monotonic()
    try:
        with bench, limited(checking.limit_s):
            seen = checking.run(bench)
        verdict: Verdict = "as taken for granted" if seen.as_taken else "otherwise"
    except CouldNotTryError as error:
        seen, verdict = Seen(str(error), False), "could not be tried"
    except Exception as error:
        # Time on hardware is short: what nobody thought of must not take the other checks with it.
        for line in traceback.format_exception(error):
            bench.notes.line("trouble", line)
        seen, verdict = Seen(f"{type(error).__name__}: {error}", False), "could not be tried"
    return _checked(checking, seen, verdict, time.monotonic() - begun, bench.notes)


def _checked(
    checking: Checking, seen: Seen, verdict: Verdict, seconds: float, notes: Notes
) -> Check:
    return Check(
        id=checking.id,
        rows=checking.rows,
        looked_at=checking.looked_at,
        taken=checking.taken,
        seen=" ".join(seen.told.split()),
        verdict=verdict,
        seconds=seconds,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        values=seen.values,
        commands=tuple(notes.commands),
        lines=tuple(notes.lines),
    )
