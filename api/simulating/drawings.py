"""The charts of simulated runs: completion times, load, GPUs over time, slowdowns, decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult
from dovetail.instances._frames import frame
from dovetail.instances.instance import Cluster
from dovetail.simulating import units
from dovetail.simulating.groups import FloatArray, PolicyRuns, RunsByPolicy
from dovetail.toolkit import charts
from dovetail.toolkit.charts import Chart

HOUR_S: Final = 3600.0

METRIC_BARS: Final = (
    "jct_mean_s",
    "queueing_mean_s",
    "makespan_s",
    "violation_rate",
    "utilisation",
)
"""The metrics that are drawn as bars."""

SHOWN: Final = 6
"""Policies with a colour of their own among distributions; others are grey."""

QUANTILES: Final = 200
"""Points of each distribution."""

BINS: Final = 150
"""Intervals of time whose means are drawn."""

MOST_POINTS: Final = 1000
"""Most jobs of a policy that are drawn; of more, a random sample is drawn."""

MOST_BARS: Final = 20_000
"""Most bars of all policies together; of more, the longest of each policy are drawn."""

MOST_GPUS: Final = 64
"""Most GPUs that are drawn: the first ones."""

_TOLERANCE: Final = 1e-6
_GRID: Final = 100
_PLACES: Final = 500
"""Number of positions tried for the drawn part of a long run."""

_FIRST_WINDOW: Final = 250
"""Starts in the drawn part of a long run."""


def every_chart(
    groups: RunsByPolicy,
    cluster: Cluster | None,
    pool: int,
    hours: tuple[float, float] | None = None,
) -> list[Chart]:
    """Return all charts of a page, by kind, with the policies in the page's order."""
    return [
        *metric_bars(groups),
        distribution(groups),
        *loads(groups, pool),
        *lanes(groups, cluster, pool, hours),
        *promises(groups),
        *decisions(groups),
    ]


def metric_bars(groups: RunsByPolicy) -> Iterator[Chart]:
    """Yield a chart for each of ``METRIC_BARS``: means by policy, deviations over seeds."""
    seeds = len(groups.seeds)
    note = f"means over {seeds} seeds, lines: standard deviation" if seeds > 1 else "one seed"
    for metric in METRIC_BARS if len(groups.every) > 1 else ():
        means = [group.mean(metric) for group in groups.every]
        known = [mean for mean in means if math.isfinite(mean)]
        if not any(known):
            continue
        scale, unit = (1e-2, "%")
        if METRICS[metric].unit == "s":
            scale, unit = units.time_unit(max(known))
        column = f"{metric.removesuffix('_s')}_{'percent' if unit == '%' else unit}"
        rows = [
            {"policy": g.policy, column: mean / scale, "deviation": g.spread(metric) / scale}
            for g, mean in zip(groups.every, means, strict=True)
        ]
        best = groups.best(metric)
        yield charts.bars(
            f"metrics-{metric.removesuffix('_s').replace('_', '-')}",
            units.label(metric),
            frame(rows, rows[0]),
            f"{units.label(metric)}, {unit}",
            note=note,
            best=best[0].policy if best else "",
            deviation="deviation",
        )


def distribution(groups: RunsByPolicy) -> Chart:
    """Return the fraction of jobs, over all seeds, that ended within a time from arrival."""
    parts = np.linspace(0.0, 1.0, QUANTILES + 1)
    times = {group.policy: np.quantile(group.jobs("jct_s"), parts) for group in groups.every}
    rows = (
        {"policy": policy, "completion_time_s": at, "part_of_jobs": part}
        for policy, each in times.items()
        for at, part in zip(np.maximum(each, 1e-3), parts, strict=True)
    )
    data = frame(rows, ("policy", "completion_time_s", "part_of_jobs"))
    ranked = sorted(groups.every, key=lambda group: group.mean("jct_mean_s"))
    first = [g.policy for g in (groups.baseline, *groups.outstanding, *ranked)]
    chosen = set(list(dict.fromkeys(first))[:SHOWN])
    scale, unit = units.time_unit(float(np.median(np.concatenate(list(times.values())))))
    left = len(times) - len(chosen)
    return charts.curves(
        "completion-times",
        "Part of jobs over completion time",
        data,
        f"completion time, {unit}",
        "part of jobs",
        note=f"{left} other policies in grey" if left else "",
        shown=[policy for policy in times if policy in chosen],
        log=True,
        x_scale=scale,
    )


def loads(groups: RunsByPolicy, pool: int) -> Iterator[Chart]:
    """Yield queue and use of GPUs over time under each policy, in the run of its first seed."""
    runs = [group.first for group in groups.every]
    end = max(float(run.jobs["finish_s"].max()) for run in runs)
    edges = np.linspace(0.0, end, BINS + 1)
    queues = [_waiting(run) for run in runs]
    means = [binned(*each, edges) for each in queues]
    most = max(float(each.max()) for each in means), float(pool)
    unit = units.time_unit(end)
    for run, queue, mean in zip(runs, queues, means, strict=True):
        moments, busy, shared = _on_gpus(run)
        columns = (mean, binned(moments, busy, edges), binned(moments, shared, edges))
        values = np.column_stack([edges, *(np.append(each, each[-1]) for each in columns)])
        names = ("time_s", "waiting_jobs", "busy_gpus", "shared_gpus")
        data = frame((dict(zip(names, row, strict=True)) for row in values), names)
        last = units.duration(float(run.jobs["finish_s"].max()))
        longest = round(float(queue[1].max(initial=0.0)))
        note = f"longest queue {longest:,}; last job ends after {last}"
        yield charts.load(
            f"load-{run.policy}", f"Load under {run.policy}", data, unit, most, note=note
        )


def gpu_count(run: RunResult) -> int:
    """Return the GPUs of the pool: GPU time over utilisation and makespan."""
    one = run.summary["utilisation"] * run.summary["makespan_s"]
    return max(1, round(run.summary["gpu_time_h"] * 3600 / one)) if one > 0 else 1


class Bar(NamedTuple):
    """A job on a GPU while nothing changes there: lane ``lane`` of ``lanes``; times in seconds."""

    start_s: float
    end_s: float
    gpu: int
    lane: int
    lanes: int
    job: int


def lanes(
    groups: RunsByPolicy,
    cluster: Cluster | None,
    pool: int,
    hours: tuple[float, float] | None = None,
) -> Iterator[Chart]:
    """Yield charts of the jobs on each GPU over time, in the first seed's run of every policy.

    All show the same time: ``hours``, or the choice of ``_window``.
    """
    runs = [group.first for group in groups.every]
    gpus = min(pool, MOST_GPUS)
    end_s = max(float(run.jobs["finish_s"].max()) for run in runs)
    window = _window(runs, end_s) if hours is None else (hours[0] * HOUR_S, hours[1] * HOUR_S)
    unit = units.time_unit(window[1])
    nodes = list(_nodes(cluster, gpus))
    for run in runs:
        every = [b for b in bars(run, gpus) if b.end_s > window[0] and b.start_s < window[1]]
        every.sort(key=lambda bar: bar.start_s - bar.end_s)
        kept = every[: MOST_BARS // len(runs)]
        rows = ({**bar._asdict(), "name": run.jobs["job"][bar.job]} for bar in kept)
        data = frame(rows, (*Bar._fields, "name"))
        note = _bars_text(every, kept)
        title = f"GPUs over time under {run.policy}"
        yield charts.lanes(f"gpus-{run.policy}", title, data, unit, window, nodes, note=note)


def bars(run: RunResult, gpus: int) -> Iterator[Bar]:
    """Yield the bars of every GPU in the order of time.

    A job that shares has a lane while it shares, jobs that came first above others; a job alone
    has the whole row.
    """
    by_gpu: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    columns = (run.stays[name].tolist() for name in ("gpu", "start_s", "end_s", "job"))
    for gpu, start, end, job in zip(*columns, strict=True):
        if gpu < gpus and end > start:
            by_gpu[gpu].append((start, end, job))
    for gpu, stays in sorted(by_gpu.items()):
        yield from _row(gpu, sorted(stays))


def _row(gpu: int, stays: Sequence[tuple[float, float, int]]) -> Iterator[Bar]:
    moments = sorted({moment for stay in stays for moment in stay[:2]})
    waiting = list(reversed(stays))
    present: list[tuple[float, float, int]] = []
    since: dict[int, float] = {}
    had: dict[int, tuple[int, int]] = {}
    for start, stop in pairwise([*moments, moments[-1]]):
        present = [stay for stay in present if stay[1] > start]
        while waiting and waiting[-1][0] <= start:
            present.append(waiting.pop())
        seats = {job: (lane, len(present)) for lane, (_, _, job) in enumerate(present)}
        for job in [job for job, seat in had.items() if seats.get(job) != seat]:
            yield Bar(since.pop(job), start, gpu, *had.pop(job), job)
        for job, seat in seats.items():
            if job not in had and stop > start:
                since[job], had[job] = start, seat


def _bars_text(every: Sequence[Bar], kept: Sequence[Bar]) -> str:
    """Return the number of drawn bars, and the part of the time that they cover."""
    if len(kept) == len(every):
        return f"{len(every):,} bars"
    drawn, whole = (sum(bar.end_s - bar.start_s for bar in some) for some in (kept, every))
    part = units.three_digits(100 * drawn / whole)
    return f"the longest {len(kept):,} of {len(every):,} bars, {part} % of the time on GPUs"


def _nodes(cluster: Cluster | None, gpus: int) -> Iterator[tuple[str, int, int]]:
    """Yield each node, its first row and the row after its last; one for all without a cluster."""
    if cluster is None:
        yield "GPUs", 0, gpus
        return
    first = 0
    for node in cluster.nodes:
        last = min(first + len(node.devices), gpus)
        if last > first:
            yield node.id, first, last
        first = last


def _window(runs: Sequence[RunResult], end_s: float) -> tuple[float, float]:
    """Return the drawn part of the time: all of it, or for many jobs a part with starts of each.

    Its length follows the shortest time in which a policy has ``_FIRST_WINDOW`` starts; it lies
    where the policy with the fewest starts has the most.
    """
    starts = [np.sort(np.asarray(run.stays["start_s"], float)) for run in runs]
    many = [each for each in starts if len(each) > 2 * _FIRST_WINDOW]
    if not many:
        return 0.0, end_s
    least = min(float((s[_FIRST_WINDOW:] - s[:-_FIRST_WINDOW]).min()) for s in many)
    length = min(max(1.5 * least, end_s / 100), end_s)
    begins = np.linspace(0.0, end_s - length, _PLACES)
    within = [np.diff(np.searchsorted(s, [begins, begins + length]), axis=0)[0] for s in starts]
    begin = float(begins[int(np.argmax(np.min(within, axis=0)))])
    return begin, begin + length


def promises(groups: RunsByPolicy) -> Iterator[Chart]:
    """Yield slowdowns over gSLAs of all seeds under each policy; nothing if no job has a gSLA."""
    found = [_slowdowns(group) for group in groups.every]
    if not any(len(gsla) for gsla, _ in found):
        return
    limits = _ends([gsla for gsla, _ in found]), _ends([slowdown for _, slowdown in found])
    for group, (gsla, slowdown) in zip(groups.every, found, strict=True):
        violates = slowdown > gsla * (1 + _TOLERANCE)
        if len(gsla):
            share = units.three_digits(100 * violates.sum() / len(gsla))
            note = f"{violates.sum():,} of {len(gsla):,} jobs above their gSLA ({share} %)"
        else:
            note = "no job with a gSLA"
        rows, left_out = _thinned(gsla, slowdown, violates, limits)
        if left_out:
            note += f"; {len(rows):,} points, taken at random"
        columns = ("gsla", "slowdown", "broken")
        data = frame((dict(zip(columns, row, strict=True)) for row in rows), columns)
        labels = ("gSLA kept", "gSLA broken")
        yield charts.points(
            f"gslas-{group.policy}",
            f"Slowdowns and gSLAs under {group.policy}",
            data,
            "gSLA",
            "slowdown",
            labels,
            note=note,
            limits=limits,
        )


def _ends(values: Sequence[FloatArray]) -> tuple[float, float]:
    every = np.concatenate(values)
    return 0.97 * min(1.0, float(every.min())), 1.03 * max(1.3, float(every.max()))


def _thinned(
    gsla: FloatArray,
    slowdown: FloatArray,
    violates: np.ndarray[tuple[int], np.dtype[np.bool_]],
    limits: tuple[tuple[float, float], tuple[float, float]],
) -> tuple[list[tuple[float, float, bool]], int]:
    """Return points without coinciding ones, at most a sample, and the number left out of it."""
    x, y = (
        np.round(_GRID * np.log(values / low) / np.log(high / low))
        for values, (low, high) in zip((gsla, slowdown), limits, strict=True)
    )
    _, kept = np.unique(np.stack([x, y, violates]), axis=1, return_index=True)
    left_out = max(0, len(kept) - MOST_POINTS)
    if left_out:
        kept = np.random.default_rng(0).choice(kept, MOST_POINTS, replace=False)
    rows = [(float(gsla[k]), float(slowdown[k]), bool(violates[k])) for k in np.sort(kept)]
    return rows, left_out


def decisions(groups: RunsByPolicy) -> Iterator[Chart]:
    """Yield how long decisions took; nothing if none took any time."""
    rows = [
        {"policy": g.policy, "mean_s": mean, "p99_s": p99, "longest_s": longest}
        for g in groups.every
        for mean, p99, longest in [decision_times(g)]
        if longest > 0
    ]
    if rows:
        data = frame(rows, rows[0])
        title = "Time of a decision on the computer that ran the simulation"
        ends = ("mean_s", "longest_s")
        scale, unit = units.time_unit(float(data["mean_s"].median()))
        x_label = f"time, {unit}"
        yield charts.dots("decisions", title, data, x_label, log=True, joined=ends, x_scale=scale)


def decision_times(group: PolicyRuns) -> tuple[float, float, float]:
    """Return mean and 99th percentile, means over runs, and the longest of all runs."""
    longest = max(group.values("decide_max_s"))
    return group.mean("decide_mean_s"), group.mean("decide_p99_s"), longest


def _waiting(run: RunResult) -> tuple[FloatArray, FloatArray]:
    """Return the moments at which the number of waiting jobs changes, and the new numbers.

    They follow from arrivals, ends and stays: a job waits between arrival and end while it is on
    no GPU. The series of a run is thinned and would not give true means.
    """
    _, first = np.unique(run.stays["stay"], return_index=True)
    start, end = (run.stays[name][first] for name in ("start_s", "end_s"))
    return _counted([(run.jobs["arrival_s"], 1), (start, -1), (end, 1), (run.jobs["finish_s"], -1)])


def _on_gpus(run: RunResult) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the moments at which the use of GPUs changes, and the numbers busy and shared."""
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
    """Return the distinct moments of changes, and at each the sum of all changes so far."""
    times = np.concatenate([np.asarray(time, float) for time, _ in changes])
    steps = np.concatenate([np.broadcast_to(step, np.shape(time)) for time, step in changes])
    moments, which = np.unique(times, return_inverse=True)
    sums = np.cumsum(np.bincount(which, steps, len(moments)))
    return moments, np.asarray(sums, dtype=np.float64)


def _slowdowns(group: PolicyRuns) -> tuple[FloatArray, FloatArray]:
    gsla, slowdown = group.jobs("gsla"), group.jobs("slowdown")
    asked = np.isfinite(gsla) & np.isfinite(slowdown)
    return gsla[asked], slowdown[asked]


def binned(time_s: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the mean over time, in each bin, of a step function.

    Parameters
    ----------
    time_s, values : ndarray
        The function is ``values[k]`` from ``time_s[k]`` to the next moment, and 0 before the first.
    edges : ndarray
        Ends of the bins in seconds, increasing; the last value holds after the last moment.
    """
    if not len(time_s):
        return np.zeros(len(edges) - 1)
    end = max(float(edges[-1]), float(time_s[-1]))
    moments = np.concatenate([[min(0.0, float(time_s[0]))], time_s, [end]])
    steps = np.concatenate([[0.0], values])
    total = np.concatenate([[0.0], np.cumsum(steps * np.diff(moments))])
    summed = np.interp(edges, moments, total)
    means: FloatArray = np.diff(summed) / np.diff(edges)
    return means
