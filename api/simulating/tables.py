"""The tables of a comparison of policies: every cell as it is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dovetail.executor.simulation.metrics import METRICS, SIZE_CLASSES
from dovetail.simulating import wording
from dovetail.simulating.groups import Group, Groups, gain
from dovetail.toolkit.wording import NO_FIGURE, number

LONGEST_WAITS: Final = 10
"""How many of the jobs that waited longest are listed for each policy."""

TABLES: Final = (
    (
        "Time",
        "How long jobs took and waited",
        (
            *("jct_mean_s", "jct_p50_s", "jct_p90_s", "jct_p99_s", "makespan_s"),
            *("throughput_jobs_h", "queueing_mean_s", "queueing_p90_s", "queueing_max_s"),
        ),
    ),
    (
        "Sharing and promises",
        "What sharing cost, and whether gSLAs held",
        (
            *("slowdown_mean", "slowdown_p99", "violation_rate", "violation_rate_shared"),
            *("excess_p50", "excess_p90", "breach_part", "sharing_benefit_mean"),
            *("sharing_loss_rate", "fairness_p90"),
        ),
    ),
    (
        "Machines",
        "What the GPUs did, and how often jobs were interrupted",
        (
            *("gpu_time_h", "shared_part", "utilisation", "effective_utilisation", "energy_kwh"),
            *("preemptions", "failures", "out_of_memory"),
        ),
    ),
)
"""Title, caption and metrics of each of the main tables."""

SIZE_METRICS: Final = tuple(f"jct_mean_{name}_s" for name in SIZE_CLASSES)


class Cell(NamedTuple):
    """A mean with its spread over seeds and how many times better than the baseline's it is."""

    mean: str
    spread: str
    gain: str
    best: bool


class Column(NamedTuple):
    """Head of a column: the metric, its unit, and which way it gets better."""

    label: str
    unit: str
    better: str


@dataclass(frozen=True)
class MetricTable:
    """Policies by metrics; ``rows`` are a policy and a cell for each column.

    Without a column: ``absent`` metrics exist for no policy, ``zero`` are 0 for all.
    """

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Group, tuple[Cell, ...]], ...]
    absent: tuple[str, ...]
    zero: tuple[str, ...]


class Wait(NamedTuple):
    """A job that waited long."""

    job: str
    seed: int
    workers: int
    arrival: str
    waited: str
    first_start: str
    jct: str


class Rounds(NamedTuple):
    """What a policy's decisions took and proved; bars in per cent of a logarithmic axis."""

    policy: str
    rounds: str
    mean: str
    p99: str
    longest: str
    proven: str
    optimal: str
    gap: str
    from_at: float
    p99_at: float
    to_at: float


def metric_tables(groups: Groups) -> list[MetricTable]:
    """Return the main tables; those of which no metric exists are left out."""
    made = [metric_table(groups, *each) for each in TABLES]
    return [table for table in made if table.columns]


def metric_table(groups: Groups, title: str, caption: str, metrics: Sequence[str]) -> MetricTable:
    """Return a table of the metrics that exist and are not 0 for at least one policy."""
    means = {metric: [group.mean(metric) for group in groups.every] for metric in metrics}
    absent = [m for m in metrics if not any(math.isfinite(mean) for mean in means[m])]
    zero = [m for m in metrics if not any(means[m])]
    columns = metric_columns(groups, [m for m in metrics if m not in absent and m not in zero])
    rows = zip(*(cells for _, cells in columns), strict=True)
    return MetricTable(
        title,
        caption,
        tuple(column for column, _ in columns),
        tuple(zip(groups.every, rows, strict=False)),
        tuple(wording.label(metric) for metric in absent),
        tuple(wording.label(metric) for metric in zero),
    )


def metric_columns(groups: Groups, metrics: Sequence[str]) -> list[tuple[Column, list[Cell]]]:
    """Return head and cells of each metric, a cell for each policy."""
    means = {metric: [group.mean(metric) for group in groups.every] for metric in metrics}
    return [_column(groups, metric, _scale(metric, means)) for metric in metrics]


def size_table(groups: Groups) -> MetricTable:
    """Return the mean completion time by the number of workers."""
    return metric_table(groups, "", "Mean JCT by number of workers", SIZE_METRICS)


def size_label(metric: str) -> str:
    """Return which jobs a class of sizes holds."""
    least, most = SIZE_CLASSES[metric.removeprefix("jct_mean_").removesuffix("_s")]
    if least == most:
        return number(least, "worker")
    return f"{least} to {most:g} workers" if math.isfinite(most) else f"{least} workers or more"


def longest_waits(group: Group) -> list[Wait]:
    """Return the jobs that waited longest in the runs of a policy, those that waited at all."""
    found: list[tuple[float, int, int]] = []
    for place, run in enumerate(group.runs):
        waited = np.asarray(run.jobs["queueing_s"], float)
        top = np.argsort(-waited, kind="stable")[:LONGEST_WAITS]
        found += [(float(waited[k]), place, int(k)) for k in top if waited[k] > 0]
    found.sort(key=lambda each: -each[0])
    return [_wait(group, *each) for each in found[:LONGEST_WAITS]]


def round_table(groups: Groups) -> list[Rounds]:
    """Return what decisions took and proved, a row for each policy."""
    known = [t for group in groups.every for t in _decision_times(group) if t > 0]
    low, high = (min(known), max(known)) if known else (1e-3, 1.0)
    return [_round_row(group, low, max(high, 2 * low)) for group in groups.every]


def _decision_times(group: Group) -> tuple[float, float, float]:
    """Return mean and 99th percentile, means over runs, and the longest of all runs."""
    longest = max(group.values("decide_max_s"))
    return group.mean("decide_mean_s"), group.mean("decide_p99_s"), longest


def _scale(metric: str, means: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    """Return the unit of a column: the same for all metrics of a kind, as all of JCT."""
    kind = metric.partition("_")[0]
    alike = [value for name in means if name.startswith(f"{kind}_") for value in means[name]]
    return wording.scale(metric, alike)


def _column(groups: Groups, metric: str, scale: tuple[float, str]) -> tuple[Column, list[Cell]]:
    means = [group.mean(metric) for group in groups.every]
    size, unit = scale
    best = groups.best(metric)
    cells = []
    for group, mean in zip(groups.every, means, strict=True):
        spread = group.spread(metric) / size
        shown = METRICS[metric].better and group is not groups.baseline
        times = gain(group, groups.baseline, metric) if shown else math.nan
        cells.append(
            Cell(
                wording.three_digits(mean / size),
                f"± {wording.three_digits(spread)}" if math.isfinite(spread) else "",
                "" if math.isnan(times) else f"{wording.multiple(times)} ×",
                group in best,
            )
        )
    label = size_label(metric) if metric in SIZE_METRICS else wording.label(metric)
    return Column(label, unit, METRICS[metric].better), cells


def _wait(group: Group, waited: float, place: int, job: int) -> Wait:
    run = group.runs[place]
    return Wait(
        job=str(run.jobs["job"][job]),
        seed=run.seed,
        workers=int(run.jobs["workers"][job]),
        arrival=wording.duration(float(run.jobs["arrival_s"][job])),
        waited=wording.duration(waited),
        first_start=wording.duration(float(run.jobs["first_start_delay_s"][job])),
        jct=wording.duration(float(run.jobs["jct_s"][job])),
    )


def _round_row(group: Group, low: float, high: float) -> Rounds:
    mean, p99, longest = _decision_times(group)
    proven, rounds = sum(group.values("proven_rounds")), sum(group.values("rounds"))
    optimal = sum(group.values("optimal_rounds"))
    gaps = [gap for gap in group.values("gap_max") if math.isfinite(gap)]
    return Rounds(
        policy=group.policy,
        rounds=f"{group.mean('rounds'):,.0f}",
        mean=wording.duration(mean),
        p99=wording.duration(p99),
        longest=wording.duration(longest),
        proven=_part(proven, rounds) if proven else NO_FIGURE,
        optimal=_part(optimal, proven) if proven else NO_FIGURE,
        gap=f"{wording.three_digits(100 * max(gaps))} %" if gaps else NO_FIGURE,
        from_at=_log_part(mean, low, high),
        p99_at=_log_part(p99, low, high),
        to_at=_log_part(longest, low, high),
    )


def _part(some: float, of: float) -> str:
    return f"{wording.three_digits(100 * some / of)} %" if of else NO_FIGURE


def _log_part(value: float, low: float, high: float) -> float:
    """Return where a time lies between two others, in per cent."""
    if not value > low:
        return 0.0
    return round(100 * math.log(value / low) / math.log(high / low), 2)
