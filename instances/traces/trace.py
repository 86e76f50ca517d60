"""The records of a trace: jobs with their arrival times and durations."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from dovetail.instances._record import ONE_LINE, shown
from dovetail.instances.errors import InputError

PRIORITIES: Final = ("batch", "latency")
_MOST_S: Final = 1e11
"""Three thousand years: double precision loses the seconds of far larger times."""

_MOST_WORKERS: Final = 1_000_000
_NAME: Final = re.compile(ONE_LINE)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    Attributes
    ----------
    id : str
        Its unique name. Names (this, ``workload`` and ``tenant``) are one line of printable
        characters, not all blank.
    arrival_s : float
        Seconds from the beginning of the trace, >= 0.
    workers : int
        GPUs it asks for, >= 1.
    duration_s : float
        Seconds it runs alone on a GPU of speed 1, > 0.
    workload : str or None
        Its workload; None if the trace does not give it.
    gsla : float or None
        The largest slowdown its owner accepts, >= 1.
    weight : float
        Its weight, >= 0.
    priority : str
        ``batch`` or ``latency``.
    tenant : str or None
        Its owner: the user, or the virtual cluster.
    """

    id: str
    arrival_s: float
    workers: int
    duration_s: float
    workload: str | None = None
    gsla: float | None = None
    weight: float = 1.0
    priority: Literal["batch", "latency"] = "batch"
    tenant: str | None = None

    def broken_rule(self) -> tuple[str, str] | None:
        """Return the field that breaks a rule and the rule; None if all is well."""
        for field, name in (("id", self.id), ("workload", self.workload), ("tenant", self.tenant)):
            if name is not None and not _NAME.fullmatch(name):
                return field, f"must be one line of printable characters, got {shown(name)}"
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            return "arrival_s", f"must be a finite number >= 0, got {self.arrival_s}"
        for field, seconds in (("arrival_s", self.arrival_s), ("duration_s", self.duration_s)):
            if math.isfinite(seconds) and seconds > _MOST_S:
                return field, f"must be <= {_MOST_S:g} s, got {seconds} (milliseconds?)"
        if self.workers < 1:
            return "workers", f"must be >= 1, got {self.workers}"
        if self.workers > _MOST_WORKERS:
            return "workers", f"must be <= {_MOST_WORKERS}, got {shown(self.workers)}"
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            return "duration_s", f"must be a finite number > 0, got {self.duration_s}"
        if self.gsla is not None and not (math.isfinite(self.gsla) and self.gsla >= 1):
            return "gsla", f"must be a finite number >= 1, got {self.gsla}"
        if not (math.isfinite(self.weight) and self.weight >= 0):
            return "weight", f"must be a finite number >= 0, got {self.weight}"
        if self.priority not in PRIORITIES:
            return "priority", f"must be batch or latency, got {shown(self.priority)}"
        return None


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of their arrival.

    Attributes
    ----------
    name : str
        Its name in reports.
    jobs : tuple of TraceJob
        Sorted by ``arrival_s``; ids differ.
    notes : tuple of str
        Notes for readers, for example on jobs of a file that were left out.

    Raises
    ------
    InputError
        When a job breaks a rule, with its position in the sorted trace.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], notes: Iterable[str] = ()) -> Trace:
        """Return the trace of jobs in any order; jobs that arrive together keep their order."""
        return cls(name, tuple(sorted(jobs, key=lambda job: job.arrival_s)), tuple(notes))

    def __post_init__(self) -> None:
        seen: set[str] = set()
        before = 0.0
        for k, job in enumerate(self.jobs):
            broken = job.broken_rule()
            if broken:
                raise InputError(broken[1], f"jobs[{k}].{broken[0]}", self.name)
            if job.id in seen:
                raise InputError(
                    f"ids must differ, got {job.id!r} twice", f"jobs[{k}].id", self.name
                )
            if job.arrival_s < before:
                raise InputError(
                    "jobs must be in order of arrival", f"jobs[{k}].arrival_s", self.name
                )
            seen.add(job.id)
            before = job.arrival_s

    def replace(self, jobs: Iterable[TraceJob]) -> Trace:
        """Return the trace with other jobs, and the same notes."""
        return dataclasses.replace(self, jobs=tuple(jobs))

    @property
    def gpu_seconds(self) -> float:
        """The total work of the jobs: workers times duration, summed."""
        return math.fsum(job.workers * job.duration_s for job in self.jobs)
