"""The drawings of a comparison of policies: distributions, load over time, slowdowns and gSLAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dovetail.executor.simulation.results import RunResult
from dovetail.simulating import wording
from dovetail.simulating.groups import Group, Groups
from dovetail.toolkit.charts import (
    SIDE,
    Axis,
    FloatArray,
    area,
    binned,
    count_axis,
    dots,
    line,
    log_time_axis,
    part_axis,
    ratio_axis,
    stretches,
    time_axis,
)

OVERLAID: Final = 6
"""So many policies are drawn into one picture; more get a picture each, with the others in grey."""

QUANTILES: Final = 200
"""Points of each distribution."""

BINS: Final = 240
"""Stretches of time whose means are drawn."""

MOST_POINTS: Final = 1200
"""Of more different points so many are drawn, taken at random with a fixed seed."""

_GRID: Final = 250
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True)
class Curve:
    """A distribution as a path; ``style`` numbers colours and dashes."""

    policy: str
    style: int
    path: str
    median: str


@dataclass(frozen=True)
class Distribution:
    """Completion times of all policies on the same axes."""

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    overlaid: bool


@dataclass(frozen=True)
class Load:
    """How many jobs wait and how many GPUs are busy and shared over the first seed's run."""

    policy: str
    waiting: str
    busy: str
    shared: str
    longest_queue: int
    ends: str


@dataclass(frozen=True)
class Loads:
    """The load under every policy on the same axes."""

    x: Axis
    queue: Axis
    gpus: Axis
    seed: int
    bin: str
    every: tuple[Load, ...]


@dataclass(frozen=True)
class Promises:
    """Slowdowns over gSLAs of a policy's jobs: points that kept the promise, and that broke it."""

    policy: str
    kept: str
    broken: str
    jobs: int
    violations: int
    left_out: int

    @property
    def rate(self) -> str:
        """Violations in per cent of the jobs with a gSLA."""
        return f"{wording.three_digits(100 * self.violations / self.jobs)} %"


@dataclass(frozen=True)
class PromiseDrawings:
    """Slowdowns over gSLAs on the same axes for all policies, with the line y = x."""

    x: Axis
    y: Axis
    equal: str
    every: tuple[Promises, ...]
    most: int = MOST_POINTS

    @property
    def thinned(self) -> bool:
        """Whether different points were left out."""
        return any(each.left_out for each in self.every)


def distribution(groups: Groups) -> Distribution:
    """Return the part of jobs, of all seeds, that ended within a time of their arrival."""
    parts = np.linspace(0.0, 1.0, QUANTILES + 1)
    times = [np.quantile(group.jobs("jct_s"), parts) for group in groups.every]
    low = max(min(float(t[0]) for t in times), 1e-3)
    overlaid = len(times) <= OVERLAID
    x = log_time_axis(low, max(float(t[-1]) for t in times), 90 if overlaid else 150)
    y = part_axis()
    curves = tuple(
        Curve(
            group.policy,
            k % OVERLAID,
            line(x.at(t), y.at(parts)),
            wording.duration(float(np.median(t))),
        )
        for k, (group, t) in enumerate(zip(groups.every, times, strict=True))
    )
    return Distribution(x, y, curves, overlaid)


def loads(groups: Groups) -> Loads:
    """Return queue and use of GPUs over time under each policy, in the run of its first seed."""
    runs = [group.first for group in groups.every]
    end = max((float(run.jobs["finish_s"].max()) for run in runs), default=1.0)
    edges = np.linspace(0.0, end, BINS + 1)
    waiting = [_waiting(run) for run in runs]
    busy = [_on_gpus(run) for run in runs]
    gpus = max(gpu_count(run) for run in runs)
    means = [binned(*each, edges) for each in waiting]
    x = time_axis(end)
    queue = count_axis(max(float(each.max()) for each in means))
    machines = count_axis(float(gpus))
    at = x.at(edges)
    return Loads(
        x=x,
        queue=queue,
        gpus=machines,
        seed=runs[0].seed,
        bin=wording.duration(end / BINS),
        every=tuple(
            Load(
                policy=run.policy,
                waiting=area(*stretches(at, queue.at(mean))),
                busy=area(*stretches(at, machines.at(binned(moments, used, edges)))),
                shared=area(*stretches(at, machines.at(binned(moments, several, edges)))),
                longest_queue=round(float(queued[1].max(initial=0.0))),
                ends=wording.duration(float(run.jobs["finish_s"].max())),
            )
            for run, mean, queued, (moments, used, several) in zip(
                runs, means, waiting, busy, strict=True
            )
        ),
    )


def gpu_count(run: RunResult) -> int:
    """Return the GPUs of the pool: GPU time over utilisation and makespan."""
    one = run.summary["utilisation"] * run.summary["makespan_s"]
    return max(1, round(run.summary["gpu_time_h"] * 3600 / one)) if one > 0 else 1


def promises(groups: Groups) -> PromiseDrawings | None:
    """Return slowdowns over gSLAs of all seeds; None where no job has a gSLA."""
    found = [_slowdowns(group) for group in groups.every]
    asked = np.concatenate([gsla for gsla, _ in found])
    if not len(asked):
        return None
    x = ratio_axis(float(asked.max()))
    y = ratio_axis(max(float(slowdown.max()) for _, slowdown in found))
    ends = np.array([1.0, min(x.high, y.high)])
    return PromiseDrawings(
        x,
        y,
        line(x.at(ends), y.at(ends)),
        tuple(
            _promises(group, *each, x, y) for group, each in zip(groups.every, found, strict=True)
        ),
    )


def _waiting(run: RunResult) -> tuple[FloatArray, FloatArray]:
    """Return when the number of waiting jobs changes, and to what.

    From arrivals, ends and stays: a job waits while it is there and on no GPU. The series of a
    run is thinned and would not give true means.
    """
    _, first = np.unique(run.stays["stay"], return_index=True)
    start, end = (run.stays[name][first] for name in ("start_s", "end_s"))
    return _counted([(run.jobs["arrival_s"], 1), (start, -1), (end, 1), (run.jobs["finish_s"], -1)])


def _on_gpus(run: RunResult) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return when the use of GPUs changes, and how many are busy and shared from then on."""
    stays = run.stays
    gpu = np.tile(stays["gpu"], 2)
    time = np.concatenate([stays["start_s"], stays["end_s"]]).astype(float)
    step = np.repeat([1, -1], len(stays["gpu"]))
    order = np.lexsort((step, time, gpu))
    present = np.cumsum(step[order])
    before = np.concatenate([[0], present[:-1]])
    busy = (present > 0).astype(int) - (before > 0)
    shared = (present > 1).astype(int) - (before > 1)
    moments, counts = _counted([(time[order], busy)])
    return moments, counts, _counted([(time[order], shared)])[1]


def _counted(
    changes: Sequence[tuple[FloatArray, FloatArray | int]],
) -> tuple[FloatArray, FloatArray]:
    """Return the moments of changes, each once, and the sum of all changes up to each."""
    times = np.concatenate([np.asarray(time, float) for time, _ in changes])
    steps = np.concatenate([np.broadcast_to(step, np.shape(time)) for time, step in changes])
    moments, which = np.unique(times, return_inverse=True)
    sums = np.cumsum(np.bincount(which, steps, len(moments)))
    return moments, np.asarray(sums, dtype=np.float64)


def _slowdowns(group: Group) -> tuple[FloatArray, FloatArray]:
    gsla, slowdown = group.jobs("gsla"), group.jobs("slowdown")
    asked = np.isfinite(gsla) & np.isfinite(slowdown)
    return gsla[asked], slowdown[asked]


def _promises(group: Group, gsla: FloatArray, slowdown: FloatArray, x: Axis, y: Axis) -> Promises:
    violates = slowdown > gsla * (1 + _TOLERANCE)
    *kept, more_kept = _thin(x.at(gsla[~violates]), y.at(slowdown[~violates]))
    *broken, more_broken = _thin(x.at(gsla[violates]), y.at(slowdown[violates]))
    return Promises(
        group.policy,
        dots(*kept),
        dots(*broken),
        len(gsla),
        int(violates.sum()),
        more_kept + more_broken,
    )


def _thin(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    """Return points once for each cell of a fine grid, and how many are too many to be drawn."""
    step = SIDE / _GRID
    cells = np.unique(np.stack([np.round(x / step), np.round(y / step)], axis=1), axis=0)
    left_out = max(0, len(cells) - MOST_POINTS)
    if left_out:
        chosen = np.random.default_rng(0).choice(len(cells), MOST_POINTS, replace=False)
        cells = cells[np.sort(chosen)]
    return step * cells[:, 0], step * cells[:, 1], left_out
