"""Simulated runs of one or more policies, as one self-contained HTML page and as figures.

The page needs no network and no other file; its script only sorts tables. Every text from a trace
or a cluster is escaped by the template engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult
from dovetail.instances._version import VERSION
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Cluster
from dovetail.simulating import units
from dovetail.simulating.drawings import (
    MOST_GPUS,
    decisions,
    distribution,
    every_chart,
    gpu_count,
    lanes,
    loads,
    metric_bars,
    promises,
)
from dovetail.simulating.groups import RunsByPolicy
from dovetail.simulating.tables import (
    SIZE_METRICS,
    TABLES,
    best_line,
    best_table,
    longest_waits,
    metric_tables,
    round_table,
)
from dovetail.toolkit.charts import Chart
from dovetail.toolkit.pages import environment

SIMULATED: Final = (
    "This is a simulation: no job ran on a GPU. Policies see predictions; jobs progress at the "
    "slowdowns of the simulated world. Their source is under “what was simulated”."
)


def simulation_page(
    runs: Sequence[RunResult],
    title: str,
    facts: Mapping[str, str],
    cluster: Cluster | None = None,
    baseline: str | None = None,
    hours: tuple[float, float] | None = None,
) -> str:
    """Return simulated runs as an HTML page that compares their policies.

    Parameters
    ----------
    runs : sequence of RunResult
        Runs of one trace under one or more policies, with one or more seeds each. Policies are
        shown in the order in which they first occur.
    title : str
        What was simulated, in a few words.
    facts : mapping of str to str
        Other facts for the reader, by label: trace, cluster, world, beliefs, options.
    cluster : Cluster, optional
        Names the nodes in the charts of GPUs over time; without it, GPUs are numbered.
    baseline : str, optional
        The policy that others are compared with; by default ``fifo``, or else the first.
    hours : (float, float), optional
        Hours drawn in charts of GPUs over time; by default hours with starts under each policy.

    Raises
    ------
    UnsupportedError
        When there is no run, or a run without jobs.
    """
    groups = _groups(runs, baseline)
    pool = max(gpu_count(run) for run in runs)
    return (
        environment()
        .get_template("simulation.html.j2")
        .render(
            title=title,
            simulated=SIMULATED,
            headline=best_line(groups),
            best=best_table(groups),
            tiles=list(_tiles(groups, pool)),
            facts={**dict(_facts(groups, pool)), **facts, "dovetail": VERSION},
            groups=groups,
            opened=_opened(groups),
            tables=metric_tables(groups),
            distribution=distribution(groups),
            loads=list(loads(groups, pool)),
            bars=list(metric_bars(groups)),
            lanes=list(lanes(groups, cluster, pool, hours)),
            pool=pool,
            most_gpus=MOST_GPUS,
            promises=list(promises(groups)),
            decisions=list(decisions(groups)),
            waits=[(group, longest_waits(group)) for group in groups.every],
            rounds=round_table(groups),
            definitions=list(_definitions(groups)),
            version=VERSION,
        )
    )


def simulation_charts(
    runs: Sequence[RunResult],
    cluster: Cluster | None = None,
    baseline: str | None = None,
    hours: tuple[float, float] | None = None,
) -> list[Chart]:
    """Return the charts of the page, for the same runs."""
    pool = max(gpu_count(run) for run in runs)
    return every_chart(_groups(runs, baseline), cluster, pool, hours)


def _groups(runs: Sequence[RunResult], baseline: str | None) -> RunsByPolicy:
    if not runs or not all(len(run.jobs["job"]) for run in runs):
        raise UnsupportedError("a page needs at least one run, and jobs in every run")
    return RunsByPolicy.of(runs, baseline)


def _opened(groups: RunsByPolicy) -> tuple[str, ...]:
    """Return the policies whose details are open at first: the best and the baseline."""
    return tuple(group.policy for group in (*groups.best("jct_mean_s")[:1], groups.baseline))


def _tiles(groups: RunsByPolicy, pool: int) -> Iterator[tuple[str, str, str]]:
    """Yield label, figure and small print of each box under the headline."""
    seeds = len(groups.seeds)
    run = groups.baseline.first
    if len(groups.every) > 1:
        yield "policies", str(len(groups.every)), f"baseline: {groups.baseline.policy}"
    yield "jobs", f"{len(run.jobs['job']):,}", f"on {pool:,} GPUs"
    yield "seeds", str(seeds), "a run for each policy" if seeds == 1 else "runs of each policy"
    best = groups.best("jct_mean_s")
    if best:
        mean = units.measured("jct_mean_s", best[0].mean("jct_mean_s"))
        base = units.measured("jct_mean_s", groups.baseline.mean("jct_mean_s"))
        yield "best mean JCT", mean, f"{best[0].policy}; {groups.baseline.policy}: {base}"
    elif len(groups.every) == 1:
        for metric in ("jct_mean_s", "queueing_mean_s", "violation_rate"):
            yield units.label(metric), units.measured(metric, run.summary[metric]), run.policy


def _facts(groups: RunsByPolicy, pool: int) -> Iterator[tuple[str, str]]:
    """Yield the facts that follow from the runs."""
    yield "policies", ", ".join(group.policy for group in groups.every)
    if len(groups.every) > 1:
        yield "baseline", groups.baseline.policy
    left = f" (left out: {', '.join(map(str, groups.left_out))})" if groups.left_out else ""
    yield "seeds", ", ".join(map(str, groups.seeds)) + left
    yield "jobs", f"{len(groups.baseline.first.jobs['job']):,}"
    yield "GPUs", f"{pool:,}"


def _definitions(groups: RunsByPolicy) -> Iterator[tuple[str, str, str]]:
    """Yield names, meaning and remarks of the metrics in the tables, once for each meaning."""
    alike: dict[str, list[str]] = {}
    for metric in (*(m for _, _, metrics in TABLES for m in metrics), *SIZE_METRICS[:1]):
        alike.setdefault(METRICS[metric].meaning, []).append(metric)
    for meaning, metrics in alike.items():
        better = METRICS[metrics[0]].better
        remark = f"{better} is better" if better else "neither way is better"
        if not any(math.isfinite(g.mean(m)) for g in groups.every for m in metrics):
            remark += "; not known in this comparison"
        names = "JCT by size" if metrics[0] in SIZE_METRICS else _named(metrics)
        yield names, meaning, remark


def _named(metrics: Sequence[str]) -> str:
    """Return the name of a metric, with the statistics that are shown."""
    thing = METRICS[metrics[0]].label.partition(", ")[0]
    statistics = [METRICS[metric].label.partition(", ")[2] for metric in metrics]
    return f"{thing} ({', '.join(statistics)})" if all(statistics) else thing
