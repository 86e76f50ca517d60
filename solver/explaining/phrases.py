"""Figures and conditions in words."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB
from dovetail.instances._record import listed
from dovetail.instances.instance import Job
from dovetail.instances.slowdowns.entry import SlowdownEntry


def measured(entries: Iterable[SlowdownEntry]) -> str:
    """Return the condition that these combinations of workloads were measured."""
    names = dict.fromkeys(" + ".join(entry.workloads) for entry in entries)
    return f"{listed(names, 2)} were measured"


def accepting(bound: float) -> float:
    """Return the least gSLA with two decimals that a bound meets."""
    return max(1.0, math.ceil(round(bound * 100, 6)) / 100)


def figure(gsla: float) -> str:
    """Return a gSLA as the user wrote it, with at least two decimals."""
    return f"{gsla:.2f}" if round(gsla, 2) == gsla else f"{gsla:.10g}"


def compared(whose: str, job: Job, slowdown: float, bound: float, later: bool) -> str:
    """Return a job's slowdown, or the growth of its p99, against the gSLA that it exceeds.

    ``later``: it exceeds the gSLA only after co-runners have ended.
    """
    verb = "would be" if bound == slowdown else "could reach"
    text = f"{whose} slowdown {verb} {accepting(bound):.2f}"
    if job.priority == "latency":
        text = f"{whose} p99 latency could grow {accepting(bound):.2f} times"
    text += " once co-runners have ended" if later else ""
    return f"{text}, above its gSLA {figure(job.gsla or math.inf)}"


def mib(amount: float) -> str:
    """Return an amount of memory, rounded up to whole MiB."""
    return f"{math.ceil(amount - MEMORY_TOLERANCE_MIB):,} MiB"
