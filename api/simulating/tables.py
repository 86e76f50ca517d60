"""The tables of a page about simulated runs, with every cell as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.executor.simulation.metrics import METRICS, SIZE_CLASSES
from dovetail.simulating import units
from dovetail.simulating.drawings import decision_times
from dovetail.simulating.groups import PolicyRuns, RunsByPolicy, gain, leads
from dovetail.toolkit.pages import Cell, Head, PageTable
from dovetail.toolkit.wording import NO_FIGURE, number

LONGEST_WAITS: Final = 10
"""Number of jobs that waited longest listed for each policy."""

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
        "Latency-critical jobs",
        "Whether services got their GPUs and held them, and what that cost the others",
        (
            *("service_wait_mean_s", "service_wait_max_s", "service_off_mean_s"),
            *("service_off_max_s", "service_absent_part", "service_interruptions"),
            "best_effort_jct_mean_s",
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

DECISIVE: Final = (
    *("jct_mean_s", "jct_p99_s", "makespan_s", "queueing_mean_s"),
    *("violation_rate", "gpu_time_h", "fairness_p90", "energy_kwh"),
)
"""The metrics whose best policies are listed first."""

KEPT: Final = 0.99
"""A policy that keeps this fraction of its gSLAs is treated as keeping them."""

SIZE_METRICS: Final = tuple(f"jct_mean_{name}_s" for name in SIZE_CLASSES)


class Mean(NamedTuple):
    """A mean, its spread over seeds, and how many times better it is than the baseline's."""

    mean: str
    spread: str
    gain: str
    best: bool


class MetricColumn(NamedTuple):
    """A metric with its unit, its better direction, and a mean for each policy."""

    label: str
    unit: str
    better: str
    means: tuple[Mean, ...]


class MetricTable(NamedTuple):
    """Policies by metrics.

    Metrics without a column: ``absent`` ones exist for no policy, ``zero`` ones are 0 for all.
    """

    title: str
    table: PageTable
    absent: tuple[str, ...]
    zero: tuple[str, ...]


def metric_tables(groups: RunsByPolicy) -> list[MetricTable]:
    """Return the main tables and completion times by size, without tables that have no column."""
    sizes = ("By size", "Mean JCT by number of workers", SIZE_METRICS)
    made = [metric_table(groups, *each) for each in (*TABLES, sizes)]
    return [each for each in made if len(each.table.heads) > 1]


def metric_table(
    groups: RunsByPolicy, title: str, caption: str, metrics: Sequence[str]
) -> MetricTable:
    """Return a table of the metrics that exist and are not 0 for at least one policy."""
    means = {metric: [group.mean(metric) for group in groups.every] for metric in metrics}
    absent = [m for m in metrics if not any(math.isfinite(mean) for mean in means[m])]
    zero = [m for m in metrics if not any(means[m])]
    columns = metric_columns(groups, [m for m in metrics if m not in absent and m not in zero])
    several = len(groups.every) > 1
    heads = [
        Head(column.label, ", ".join(filter(None, (column.unit, several * column.better))))
        for column in columns
    ]
    rows = zip(groups.every, *(column.means for column in columns), strict=True)
    return MetricTable(
        title,
        PageTable(
            caption,
            [Head("policy", number=False), *heads],
            [(group.policy, *map(_cell, means)) for group, *means in rows],
        ),
        tuple(units.label(metric) for metric in absent),
        tuple(units.label(metric) for metric in zero),
    )


def _cell(mean: Mean) -> Cell:
    return Cell(mean.mean, tuple(filter(None, (mean.spread, mean.gain))), mean.best)


def metric_columns(groups: RunsByPolicy, metrics: Sequence[str]) -> list[MetricColumn]:
    """Return a column for each metric; all metrics of a kind, such as JCT, have one unit."""
    means = {metric: [group.mean(metric) for group in groups.every] for metric in metrics}
    return [_column(groups, metric, _scale(metric, means)) for metric in metrics]


def _scale(metric: str, means: Mapping[str, Sequence[float]]) -> tuple[float, str]:
    kind = metric.partition("_")[0]
    alike = [value for name in means if name.startswith(f"{kind}_") for value in means[name]]
    return units.scale(metric, alike)


def _column(groups: RunsByPolicy, metric: str, scale: tuple[float, str]) -> MetricColumn:
    size, unit = scale
    scaled = [group.mean(metric) / size for group in groups.every]
    digits = units.digits(scaled)
    best, better = groups.best(metric), METRICS[metric].better
    means = []
    for group, mean in zip(groups.every, scaled, strict=True):
        spread = group.spread(metric) / size
        compared = better and group is not groups.baseline
        times = gain(group, groups.baseline, metric) if compared else math.nan
        means.append(
            Mean(
                units.fixed(mean, digits),
                f"± {units.fixed(spread, digits)}" if math.isfinite(spread) else "",
                "" if math.isnan(times) else f"{units.three_digits(times)} ×",
                group in best,
            )
        )
    label = size_label(metric) if metric in SIZE_METRICS else units.label(metric)
    return MetricColumn(label, unit, better, tuple(means))


def size_label(metric: str) -> str:
    """Return the jobs in a class of sizes, as text."""
    least, most = SIZE_CLASSES[metric.removeprefix("jct_mean_").removesuffix("_s")]
    if least == most:
        return number(least, "worker")
    return f"{least} to {most:g} workers" if math.isfinite(most) else f"{least} workers or more"


def best_line(groups: RunsByPolicy) -> str:
    """Return the policy with the best mean JCT, and the gSLAs that it breaks.

    Of several with the same mean, it is the one that breaks fewest; the others follow. If it
    breaks more than the fraction that ``KEPT`` allows, the best that does not follows.
    """
    metric = "jct_mean_s"
    best = sorted(groups.best(metric), key=lambda each: each.mean("violation_rate"))
    if not best:
        every = groups.every[0].policy if len(groups.every) == 1 else "all policies the same"
        return f"mean JCT: {every}, {units.measured(metric, groups.every[0].mean(metric))}"
    line = f"best mean JCT: {_with_broken(best[0])}"
    if len(best) > 1:
        line += f"; the same: {', '.join(each.policy for each in best[1:])}"
    keepers = [each for each in groups.every if not each.mean("violation_rate") > 1 - KEPT]
    if best[0] in keepers:
        return line
    broken = f"breaks at most {100 * (1 - KEPT):.0f} % of its gSLAs"
    if not keepers:
        return f"{line}; no policy {broken}"
    return f"{line}; best that {broken}: {_with_broken(min(keepers, key=lambda g: g.mean(metric)))}"


def _with_broken(group: PolicyRuns) -> str:
    mean = units.measured("jct_mean_s", group.mean("jct_mean_s"))
    rate = group.mean("violation_rate")
    broken = f"; {units.measured('violation_rate', rate)} of gSLAs broken"
    return f"{group.policy} {mean}{broken if math.isfinite(rate) else ''}"


def best_table(groups: RunsByPolicy) -> PageTable | None:
    """Return the best policy at each decisive metric, and the next; None if none is the best."""
    seeds = len(groups.seeds)
    heads = (
        *("metric", "best", "next"),
        *((f"better than the next in seeds (of {seeds})",) if seeds > 1 else ()),
    )
    rows = []
    for metric in DECISIVE:
        if best := groups.best(metric):
            rest = [group for group in groups.every if group not in best]
            sign = 1 if METRICS[metric].better == "lower" else -1
            second = min(rest, key=lambda group: sign * group.mean(metric))
            names = ", ".join(group.policy for group in best)
            cells = [Cell(names, (units.measured(metric, best[0].mean(metric)),))]
            cells.append(Cell(second.policy, (units.measured(metric, second.mean(metric)),)))
            won = (str(leads(best[0], second, metric)[0]),) if seeds > 1 else ()
            rows.append((units.label(metric), *cells, *won))
    if not rows:
        return None
    caption = "The best policies; one seed: small differences may be chance"
    return PageTable(
        caption if seeds == 1 else "The best policies",
        [Head(head, number=k > 2) for k, head in enumerate(heads)],
        rows,
    )


def longest_waits(group: PolicyRuns) -> PageTable | None:
    """Return the jobs that waited longest in the runs of a policy; None if none waited."""
    found: list[tuple[float, int, int]] = []
    for place, run in enumerate(group.runs):
        waited = np.asarray(run.jobs["queueing_s"], float)
        top = np.argsort(-waited, kind="stable")[:LONGEST_WAITS]
        found += [(float(waited[k]), place, int(k)) for k in top if waited[k] > 0]
    found = sorted(found, key=lambda each: -each[0])[:LONGEST_WAITS]
    if not found:
        return None
    jobs = [(group.runs[place], job) for _, place, job in found]
    times = {
        "arrived at": "arrival_s",
        "waited in all": "queueing_s",
        "before its first start": "first_start_delay_s",
        "JCT": "jct_s",
    }
    columns = [
        _times(name, [float(run.jobs[field][job]) for run, job in jobs])
        for name, field in times.items()
    ]
    names = [(str(r.jobs["job"][k]), str(r.seed), str(int(r.jobs["workers"][k]))) for r, k in jobs]
    cells = zip(*(cells for _, cells in columns), strict=True)
    return PageTable(
        f"{group.policy}: the jobs that waited longest",
        [Head("job", number=False), Head("seed"), Head("GPUs"), *(head for head, _ in columns)],
        [(*own, *rest) for own, rest in zip(names, cells, strict=True)],
    )


def _times(name: str, values: Sequence[float]) -> tuple[Head, list[str]]:
    """Return a column of times in one unit and with the same number of digits."""
    known = [value for value in values if math.isfinite(value)]
    size, unit = units.time_unit(max(known, default=0.0))
    scaled = [value / size for value in values]
    digits = units.digits(scaled)
    return Head(name, unit), [units.fixed(value, digits) for value in scaled]


def round_table(groups: RunsByPolicy) -> PageTable:
    """Return the time and proof of decisions, a row for each policy."""
    times = zip(*map(decision_times, groups.every), strict=True)
    columns = [
        _times(name, values) for name, values in zip(("mean", "p99", "longest"), times, strict=True)
    ]
    cells = zip(*(cells for _, cells in columns), strict=True)
    remarks = ("decisions a run", "with a proven gap", "of these optimal", "largest gap")
    return PageTable(
        "Time and proof of decisions; means over seeds, the longest and the largest over all runs",
        [
            Head("policy", number=False),
            *(head for head, _ in columns),
            *(Head(remark, "%" if k else "") for k, remark in enumerate(remarks)),
        ],
        [
            (group.policy, *own, *_proofs(group))
            for group, own in zip(groups.every, cells, strict=True)
        ],
    )


def _proofs(group: PolicyRuns) -> tuple[str, str, str, str]:
    """Return rounds and, in per cent, proven rounds, optimal ones of these, and the largest gap."""
    proven, rounds = sum(group.values("proven_rounds")), sum(group.values("rounds"))
    optimal = sum(group.values("optimal_rounds"))
    gaps = [gap for gap in group.values("gap_max") if math.isfinite(gap)]
    return (
        f"{group.mean('rounds'):,.0f}",
        f"{100 * proven / rounds:.1f}" if proven else NO_FIGURE,
        f"{100 * optimal / proven:.1f}" if proven else NO_FIGURE,
        f"{100 * max(gaps):.2f}" if gaps else NO_FIGURE,
    )
