"""A plan as one self-contained HTML page, and its charts as figures.

The page needs no network and no other file; its script only sorts tables. Every text from a plan
or an instance is escaped by the template engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from dovetail.formulations.objectives import BUILT_IN
from dovetail.instances._frames import frame
from dovetail.instances._record import IDLE, listed
from dovetail.instances._version import VERSION
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Plan
from dovetail.instances.reading.contents import write_text
from dovetail.instances.slowdowns.shares import share_total
from dovetail.planning.comparison import (
    THIS_PLAN,
    PlanComparison,
    better,
    comparison_cells,
    comparison_columns,
)
from dovetail.planning.views import (
    GpuView,
    NodeView,
    PlacedJob,
    PlannedWorker,
    PlanView,
    gpus_needed,
    node_spans,
    origins,
    status,
    values,
    verified,
    view,
)
from dovetail.toolkit import wording
from dovetail.toolkit.charts import Chart, bars, dots, write_figures
from dovetail.toolkit.pages import Cell, Head, PageTable, environment

_LEAST_PIECE = 20
_MOST_ROWS = 40
"""Most jobs in the chart of slowdowns: those nearest to their gSLA are shown."""
_FAR = 4.0
"""gSLAs above this many times the largest slowdown are left out of the chart."""
_GANG_HUES, _GOLDEN_SECTION = (40, 320), 0.618034
"""Hues of gangs, without the red of broken limits, and the step between two of them."""


_MEANINGS: Final[Mapping[ObjectiveName, str]] = {
    "throughput": "sum of weight x rate over the placed jobs",
    "slowdown": "weighted sum of job slowdowns, after placing as much weight as possible",
    "sensitivity": "weighted sum of job slowdowns by sensitivity, "
    "after placing as much weight as possible",
    "jct": "sum of weight x rate / remaining time over the placed jobs",
    "completion": "seconds of weighted completion time that the starts save against waiting",
    "energy": "work per watt, after placing as much weight as possible",
    "fewest": "cost of the GPUs in use (their number if no costs are given), "
    "after placing as much weight as possible",
}


@dataclass(frozen=True)
class SeatBar:
    """A worker as a piece of its GPU's width; gangs have a hue, other jobs none."""

    seat: PlannedWorker
    width: int
    hue: int | None


@dataclass(frozen=True)
class GpuDrawing:
    """A GPU, its pieces, the width that no cap uses, and how it is divided."""

    gpu: GpuView
    pieces: tuple[SeatBar, ...]
    free: int
    hatched: bool
    caption: str


@dataclass(frozen=True)
class NodeDrawing:
    """A node, its models, and drawings of its GPUs; none if all are idle."""

    node: NodeView
    caption: str
    gpus: tuple[GpuDrawing, ...]


def write_report(
    instance: Instance,
    plan: Plan,
    comparison: PlanComparison,
    page: str | None,
    figures: str | None,
) -> None:
    """Write the page, and its charts as figures, to the places that are named."""
    if page:
        write_text(page, report_html(instance, plan, comparison))
    if figures:
        write_figures(figures, report_charts(instance, plan, comparison))


def report_html(instance: Instance, plan: Plan, comparison: PlanComparison) -> str:
    """Return a plan as an HTML page.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        A plan that the checker finds valid.
    comparison : PlanComparison
        The same round planned by simpler rules.

    Raises
    ------
    InputError
        When the instance lacks a field that the plan's objective needs.
    """
    laid_out = view(instance, plan)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            view=laid_out,
            headline=_headline(laid_out),
            proof=list(_proof(laid_out)),
            tiles=_tiles(laid_out),
            nodes=_node_drawings(laid_out),
            slowdowns=_slowdown_table(laid_out),
            stops=_stops_table(laid_out),
            waiting=_waiting_table(laid_out),
            comparison=_comparison_table(comparison),
            slowdown_chart=slowdown_chart(laid_out),
            comparison_chart=comparison_chart(comparison),
            objective=comparison.objective,
            better=better(comparison.objective),
            settings=_settings(laid_out),
            version=VERSION,
        )
    )


def report_charts(instance: Instance, plan: Plan, comparison: PlanComparison) -> list[Chart]:
    """Return the charts of the page."""
    slowdowns = slowdown_chart(view(instance, plan))
    return [*filter(None, [slowdowns]), comparison_chart(comparison)]


def slowdown_chart(laid_out: PlanView) -> Chart | None:
    """Return slowdowns, bounds and gSLAs of the jobs nearest to their gSLA, or None if no job."""
    placed = _by_closeness(laid_out)
    if not placed:
        return None
    shown = placed[:_MOST_ROWS]
    seen = [x for each in shown for x in (each.slowdown, each.bound) if x is not None]
    far = _FAR * max(seen, default=1.0)
    rows = (
        {
            "job": each.job.id,
            "slowdown": each.slowdown,
            "at_most": None if each.bound == each.slowdown else each.bound,
            "gSLA": each.job.gsla if (each.job.gsla or 0.0) <= far else None,
        }
        for each in shown
    )
    data = frame(rows, ("job", "slowdown", "at_most", "gSLA"))
    left = len(placed) - len(shown)
    note = f"the {len(shown)} jobs nearest to their limit" if left else ""
    ends = ("slowdown", "at_most")
    return dots(
        "slowdowns", "Slowdown and gSLA of each job", data, "slowdown", note=note, joined=ends
    )


def comparison_chart(comparison: PlanComparison) -> Chart:
    """Return the values of this plan and of simpler rules."""
    two_stage = BUILT_IN[comparison.objective].two_stage
    label = "weight placed" if two_stage else comparison.objective
    rows = (
        {"way": row.name, label: row.placed_weight if two_stage else row.value}
        for row in comparison.rows
    )
    data = frame(rows, ("way", label))
    title = f"This plan and simpler rules: {label}"
    return bars("comparison", title, data, label, best=THIS_PLAN)


def _by_closeness(laid_out: PlanView) -> list[PlacedJob]:
    """Return the placed jobs, nearest to their gSLA first."""
    return sorted(laid_out.placed, key=lambda placed: -placed.closeness)


def _slowdown_table(laid_out: PlanView) -> PageTable:
    told = any(each.origin for each in laid_out.placed)
    heads = (
        Head("job", number=False),
        Head("slowdown"),
        Head("at most"),
        *([Head("from", number=False)] if told else []),
        Head("gSLA"),
        Head("of limit", "%"),
    )
    rows: list[Sequence[str | Cell]] = [
        (
            Cell(each.job.id, (_job_text(each),)),
            wording.two_digits(each.slowdown),
            wording.two_digits(each.bound),
            *([str(each.origin or "")] if told else []),
            wording.gsla(each.job.gsla, each.job.priority),
            f"{100 * each.closeness:.0f}" if each.closeness else wording.NO_FIGURE,
        )
        for each in _by_closeness(laid_out)
    ]
    return PageTable("Placed jobs, those nearest to their gSLA first", heads, rows)


def _job_text(placed: PlacedJob) -> str:
    job = placed.job
    parts = (
        job.workload,
        f"{job.workers} GPUs" if job.workers > 1 else "",
        "latency-critical" if job.priority == "latency" else "",
        "" if placed.sub_batch is None else f"sub-batch {placed.sub_batch}",
    )
    return ", ".join(filter(None, parts))


def _stops_table(laid_out: PlanView) -> PageTable:
    heads = tuple(Head(name, number=False) for name in ("job", "runs on", "after the stop"))
    rows = [
        (stop.job, listed(stop.gpus, 4), laid_out.after_stop(stop).removeprefix("then "))
        for stop in laid_out.stops
    ]
    return PageTable("Running jobs to stop before anything starts", heads, rows)


def _waiting_table(laid_out: PlanView) -> PageTable:
    heads = (Head("job", number=False), Head("GPUs"), Head("why it waits", number=False))
    rows = [
        (
            each.job,
            str(laid_out.instance.jobs_by_id[each.job].workers),
            each.reason or "no reason given",
        )
        for each in laid_out.waiting
    ]
    return PageTable("Waiting jobs in the order of the instance", heads, rows)


def _comparison_table(comparison: PlanComparison) -> PageTable:
    two_stage = BUILT_IN[comparison.objective].two_stage
    lead_in = "weight placed" if two_stage else comparison.objective
    values = [row.placed_weight if two_stage else row.value for row in comparison.rows]
    heads = (
        Head("way of planning", number=False),
        *map(Head, comparison_columns(comparison)),
        Head(f"this plan's lead in {lead_in}", "%"),
    )
    rows = [
        (row.name, *comparison_cells(comparison, row), _lead(values[0], value) if k else "")
        for k, (row, value) in enumerate(zip(comparison.rows, values, strict=True))
    ]
    return PageTable("This plan and simpler ways of planning", heads, rows, frozenset({0}))


def _lead(value: float, other: float) -> str:
    return f"{100 * (value / other - 1):+.0f}" if other > 0 else wording.NO_FIGURE


def _headline(laid_out: PlanView) -> str:
    jobs = wording.number(len(laid_out.instance.jobs), "job")
    gpus = wording.number(len(laid_out.gpus), "GPU")
    runs = f"{len(laid_out.placed):,} of {jobs} run on {laid_out.report.gpus_used:,} of {gpus}"
    plan = laid_out.plan
    proven = "" if plan.status in ("optimal", None) else f", {_value_tile(laid_out)[2]}"
    return f"{runs}; {status(plan)}{proven}"


def _proof(laid_out: PlanView) -> Iterator[tuple[str, str]]:
    """Yield what is proven about the plan, and what the separate checker found."""
    plan, report = laid_out.plan, laid_out.report
    yield "status", status(plan)
    yield from values(report, plan.objective)
    if (needed := gpus_needed(laid_out))[1]:
        yield needed
    if found := origins(laid_out):
        yield "slowdowns", found
    value = "unknown" if report.value is None else wording.figure(report.value)
    broken = len(report.violations) or "none"
    yield "checker", f"{report.objective} {value}; broken rules: {broken}"


def _tiles(laid_out: PlanView) -> Sequence[tuple[str, str, str]]:
    """Return label, figure and small print of each box under the headline."""
    return (
        (
            "jobs that run",
            f"{len(laid_out.placed)} of {len(laid_out.instance.jobs)}",
            wording.counted(laid_out.changes),
        ),
        _value_tile(laid_out),
        (
            "GPUs in use",
            f"{laid_out.report.gpus_used} of {len(laid_out.gpus)}",
            f"{sum(len(gpu.seats) > 1 for gpu in laid_out.gpus)} of them shared",
        ),
        _slowdown_tile(laid_out.placed),
        _limit_tile(laid_out),
    )


def _value_tile(laid_out: PlanView) -> tuple[str, str, str]:
    report, claim = laid_out.report, laid_out.plan.objective
    if claim is None:
        value = "unknown" if report.value is None else wording.figure(report.value)
        return report.objective, value, "no bound proven"
    if claim.bound is None or claim.gap is None:
        return claim.name, wording.figure(claim.value), "no bound proven"
    bound = f"bound {wording.figure(claim.bound)}, gap {wording.percent(claim.gap)}"
    return claim.name, wording.figure(claim.value), bound


def _slowdown_tile(placed: Sequence[PlacedJob]) -> tuple[str, str, str]:
    known = [each.slowdown for each in placed if each.slowdown is not None]
    if not known:
        return "worst slowdown", wording.NO_FIGURE, "nothing runs"
    return "worst slowdown", f"{max(known):.2f}", f"mean {fmean(known):.2f}; 1 is as if alone"


def _limit_tile(laid_out: PlanView) -> tuple[str, str, str]:
    over = sum(violation.rule == "gsla" for violation in laid_out.report.violations)
    closest = max((each.closeness for each in laid_out.placed), default=0.0)
    text = f"closest: {closest:.0%} of its limit" if closest else "no job has one"
    return "gSLAs broken", str(over), text.replace("%", " %")


def _node_drawings(laid_out: PlanView) -> Iterator[NodeDrawing]:
    gangs = [placed.job.id for placed in laid_out.placed if placed.job.workers > 1]
    hues = {job: _hue(k) for k, job in enumerate(gangs)}
    for node in laid_out.nodes:
        idle = not any(gpu.seats for gpu in node.gpus)
        gpus = () if idle else tuple(_gpu_drawing(gpu, hues) for gpu in node.gpus)
        yield NodeDrawing(node, _node_text(node), gpus)


def _hue(k: int) -> int:
    """Return the hue of the k-th gang, far from earlier ones; the first is blue."""
    low, high = _GANG_HUES
    return low + round((0.6 + k * _GOLDEN_SECTION) % 1 * (high - low))


def _node_text(node: NodeView) -> str:
    models = Counter(gpu.gpu.model for gpu in node.gpus)
    parts = [f"{amount} × {model}" for model, amount in models.items()]
    if node.node.rack is not None:
        parts.insert(0, f"rack {node.node.rack}")
    return ", ".join(parts)


def _gpu_drawing(gpu: GpuView, hues: Mapping[str, int]) -> GpuDrawing:
    shares = [seat.share for seat in gpu.seats]
    capped = share_total(shares)
    idle = shares.count(IDLE)
    uncapped = shares.count(None) + idle
    # A job without a cap may use all SMs; it is drawn on the width that caps of others leave.
    left = max(_LEAST_PIECE, (100 - capped) // uncapped) if uncapped else 0
    return GpuDrawing(
        gpu=gpu,
        pieces=tuple(
            SeatBar(seat, share_total([seat.share]) or left, hues.get(seat.placed.job.id))
            for seat in gpu.seats
        ),
        free=max(0, 100 - capped) if not uncapped else 0,
        hatched=uncapped > 0 and len(shares) > 1,
        caption=_division_text(len(shares), uncapped, capped, idle),
    )


def _division_text(jobs: int, uncapped: int, capped: int, idle: int) -> str:
    if jobs == 1:
        return "alone, whole GPU" if uncapped else f"alone, {capped} % of the SMs"
    if idle:
        return f"{jobs} jobs, {idle} in the idle time"
    if jobs == uncapped:
        return f"{jobs} jobs, unpartitioned" if jobs else "idle"
    if uncapped:
        return f"{jobs} jobs, {capped} % capped, the rest open"
    return f"{jobs} jobs, caps sum to {capped} %"


def _settings(laid_out: PlanView) -> Iterator[tuple[str, str]]:
    """Yield the facts needed to repeat the plan."""
    plan, instance = laid_out.plan, laid_out.instance
    yield "instance", instance.name
    yield "objective", _objective(laid_out)
    yield "solver", plan.solver or "not named"
    yield "status", status(plan)
    yield "verified", verified(plan) or "by the checker, as every plan"
    yield "search stopped", (plan.stopped or "not said").replace("_", " ")
    yield "time", wording.seconds(plan.runtime_s) or "not said"
    yield "seed", "not said" if plan.seed is None else str(plan.seed)
    yield "running jobs", "may move or wait (--preempt)" if plan.preempt else "stay where they are"
    yield "sharing", _sharing_text(instance)
    yield "slowdowns", _slowdowns_text(instance)
    yield node_spans(laid_out.report)
    yield "dovetail", VERSION


def _sharing_text(instance: Instance) -> str:
    cluster = instance.cluster
    caps = ", ".join(map(str, cluster.shares)) + " % of the SMs" if cluster.shares else "none"
    jobs = wording.number(cluster.max_jobs_per_gpu, "job")
    gangs = {"partial": "may share some of their GPUs", "whole": "share all their GPUs or none"}
    return f"at most {jobs} on a GPU; caps: {caps}; gangs {gangs[cluster.gang_sharing]}"


def _slowdowns_text(instance: Instance) -> str:
    entries = instance.slowdowns
    upper = np.count_nonzero(~np.isnan(entries.upper[:, 0]))
    upper += sum(entry.upper is not None for entry in entries.sets.values())
    return f"{len(entries):,} combinations of workloads and shares known, {upper:,} with a bound"


def _objective(laid_out: PlanView) -> str:
    """Return the objective of a plan, and its meaning."""
    ours, claim = laid_out.report.objective, laid_out.plan.objective
    if claim is None or claim.name == ours:
        return f"{ours}: {_MEANINGS[ours]}"
    return f"{claim.name}: a class of the user; the checker computes {ours}"
