"""Synthetic traces: nothing here was recorded."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import InputError
from dovetail.instances.generate import PHILLY
from dovetail.instances.traces._streams import stream
from dovetail.instances.traces.trace import JobColumns, Trace


def synthetic(
    jobs: int,
    seed: int,
    gpus: int,
    load: float,
    *,
    largest: int | None = None,
    least_s: float = 60.0,
    most_s: float = 2 * 86400.0,
) -> Trace:
    """Return a synthetic trace: Poisson arrivals, gang sizes and durations as in Philly.

    A gang size is drawn with its frequency in Philly, then a log-normal duration fitted to
    Philly's jobs of that size (``dovetail.instances.generate.PHILLY``), cut to
    ``least_s``..``most_s`` and rounded to seconds. Arrivals are a Poisson process with a rate such
    that the jobs' GPU seconds, divided by the time in which they arrive, are on average ``load``
    times the cluster's.

    Parameters
    ----------
    jobs : int
        Number of jobs, >= 1.
    seed : int
        Seed of the draws, >= 0; sizes, durations and arrivals come from separate streams.
    gpus : int
        GPUs of the cluster that ``load`` refers to, >= 1.
    load : float
        Offered load, > 0; at 1 the demand equals the capacity.
    largest : int, optional
        The largest gang; by default ``gpus``.
    least_s, most_s : float
        The shortest and longest duration, s.

    Raises
    ------
    InputError
        When an argument is out of its range.
    """
    _check(jobs, gpus, load, least_s, most_s)
    workers, drawn_s = _drawn(jobs, seed, gpus if largest is None else largest)
    duration_s = np.round(np.clip(drawn_s, least_s, most_s))
    gap_s = float((workers * duration_s).mean()) / (load * gpus)
    arrival_s = np.round(np.cumsum(stream(seed, "arrival").exponential(gap_s, jobs)))
    width = len(str(jobs - 1))
    ids = [f"j{k:0{width}d}" for k in range(jobs)]
    columns = JobColumns.of(ids, arrival_s - arrival_s[0], workers, duration_s)
    return Trace.of_columns(f"synthetic-{jobs}-seed-{seed}", columns)


def _drawn(jobs: int, seed: int, largest: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return gang sizes and durations, s."""
    kinds = [kind for kind in PHILLY if kind.workers <= largest]
    if not kinds:
        raise InputError(f"must be >= 1, got {largest}", "largest")
    parts = np.array([kind.part for kind in kinds])
    size = stream(seed, "gang size").choice(len(kinds), jobs, p=parts / parts.sum())
    mean = np.array([kind.mean for kind in kinds])[size]
    deviation = np.array([kind.deviation for kind in kinds])[size]
    normal = stream(seed, "duration").standard_normal(jobs)
    workers = np.array([kind.workers for kind in kinds])[size]
    return workers, np.exp(mean + deviation * normal)


def _check(jobs: int, gpus: int, load: float, least_s: float, most_s: float) -> None:
    for name, count in (("jobs", jobs), ("gpus", gpus)):
        if count < 1:
            raise InputError(f"must be >= 1, got {count}", name)
    if not 0 < load < math.inf:
        raise InputError(f"must be a finite number > 0, got {load:g}", "load")
    if not 1 <= least_s <= most_s < math.inf:
        rule = f"must be 1 <= least_s <= most_s, got {least_s:.15g} and {most_s:.15g}"
        raise InputError(rule, "duration")
