"""A plan as one self-contained HTML page for people who were not there when it was made.

The page needs no script, no network and no other file. Every text from a plan or an instance
is escaped by the template engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dovetail.instances._version import VERSION
from dovetail.instances.instance import Instance
from dovetail.instances.plan import ObjectiveValue, Plan
from dovetail.planning import wording as phrases
from dovetail.planning.comparison import Comparison, Row
from dovetail.planning.views import (
    LOWER_IS_BETTER,
    TWO_STAGE,
    GpuView,
    NodeView,
    PlacedJob,
    PlanView,
    Seat,
    view,
)
from dovetail.toolkit import wording
from dovetail.toolkit.pages import UNFOLDED, environment

_LONGEST_AXIS = 3.0
_SHORTEST_AXIS = 1.5
_AXIS_STEPS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 50)
_MOST_TICKS = 6
_LEAST_PIECE = 20
_GOLDEN_ANGLE = 137.508


@dataclass(frozen=True)
class Piece:
    """A seat as a piece of its GPU's width; gangs have a hue, other jobs none."""

    seat: Seat
    width: int
    hue: int | None


@dataclass(frozen=True)
class GpuDrawing:
    """A GPU, its pieces, the width that no cap gives to anybody, and how it is divided."""

    gpu: GpuView
    pieces: tuple[Piece, ...]
    free: int
    hatched: bool
    caption: str


@dataclass(frozen=True)
class NodeDrawing:
    """A node, what it is made of, and its GPUs; no drawings where all are idle."""

    node: NodeView
    caption: str
    gpus: tuple[GpuDrawing, ...]


@dataclass(frozen=True)
class Axis:
    """The slowdowns from the left end of a bar to its right end, and which are written there."""

    low: float
    high: float

    def at(self, slowdown: float) -> float:
        """Return where a slowdown is, in per cent of the width."""
        part = (slowdown - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, part)), 2)

    def length(self, start: float, end: float) -> float:
        """Return the width between two slowdowns."""
        return round(self.at(end) - self.at(start), 2)

    @property
    def ticks(self) -> tuple[float, ...]:
        """The slowdowns to write down: 1 and round steps from there."""
        steps = (s for s in _AXIS_STEPS if (self.high - 1) / s < _MOST_TICKS)
        step = next(steps, self.high - 1)
        return tuple(1 + k * step for k in range(int((self.high - 1) / step) + 1))


@dataclass(frozen=True)
class ComparisonLine:
    """A row of the comparison, the length of its bar, and the plan's lead over it."""

    row: Row
    length: float
    lead: str
    cells: tuple[str, ...]


def report_html(instance: Instance, plan: Plan, comparison: Comparison) -> str:
    """Return a plan as an HTML page.

    Parameters
    ----------
    instance : Instance
        The round that the plan answers.
    plan : Plan
        A plan that the checker finds valid.
    comparison : Comparison
        The same round planned in simpler ways.

    Raises
    ------
    InputError
        When the instance lacks a field that the plan's objective is computed from.
    """
    laid_out = view(instance, plan)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            view=laid_out,
            plan=plan,
            headline=_headline(laid_out),
            proof=_proof(laid_out),
            tiles=_tiles(laid_out),
            nodes=_node_drawings(laid_out),
            jobs=sorted(laid_out.placed, key=lambda placed: -placed.closeness),
            axis=_axis(laid_out.placed),
            objective=comparison.objective,
            lead_in=_leading_figure(comparison),
            columns=phrases.comparison_columns(comparison),
            lines=_comparison_lines(comparison),
            settings=_settings(laid_out),
            unfolded=UNFOLDED,
            version=VERSION,
            phrases=phrases,
        )
    )


def _headline(laid_out: PlanView) -> str:
    jobs = wording.number(len(laid_out.instance.jobs), "job")
    gpus = wording.number(len(laid_out.gpus), "GPU")
    runs = f"{len(laid_out.placed):,} of {jobs} run on {laid_out.report.gpus_used:,} of {gpus}"
    plan = laid_out.plan
    if plan.status == "optimal":
        return f"{runs}; proven: no plan does better"
    return f"{runs}; {phrases.proof(plan).partition('; ')[2]}"


def _proof(laid_out: PlanView) -> str:
    """Return what is proven of the plan, and by whom, in whole sentences."""
    return f"{_bound_text(laid_out.plan)} {_check_text(laid_out)}"


def _bound_text(plan: Plan) -> str:
    claim = plan.objective
    if claim is None:
        return "The plan does not say what it was made to maximise, so nothing is proven of it."
    value = f"this one reaches {wording.figure(claim.value)}"
    if claim.bound is None or claim.gap is None:
        return f"No bound on the {claim.name} of other plans was proven; {value}."
    reaches = "below" if claim.name in LOWER_IS_BETTER else "above"
    return (
        f"{_weight_text(claim)} has a {claim.name} {reaches} "
        f"{wording.figure(claim.bound)} (the bound); {value}. "
        f"The gap between the two is {wording.percent(claim.gap)}."
    )


def _weight_text(claim: ObjectiveValue) -> str:
    if claim.placed_weight is None:
        return "It is proven that no plan that keeps all the rules"
    weight = wording.figure(claim.placed_weight)
    first = f"The most weight is placed first ({weight} here)."
    return f"{first} It is proven that no plan that places the most weight"


def _check_text(laid_out: PlanView) -> str:
    report = laid_out.report
    value = "unknown" if report.value is None else wording.figure(report.value)
    found = wording.number(len(report.violations), "broken rule") if report.violations else "none"
    return (
        "A separate checker, which shares no code with the solver, held the plan against every "
        f"rule and computed its {report.objective} again: {value}. Broken rules: {found}."
    )


def _tiles(laid_out: PlanView) -> Sequence[tuple[str, str, str]]:
    """Return label, figure and small print of each of the boxes under the headline."""
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
    hues = {job: round(k * _GOLDEN_ANGLE) % 360 for k, job in enumerate(gangs)}
    for node in laid_out.nodes:
        idle = not any(gpu.seats for gpu in node.gpus)
        gpus = () if idle else tuple(_gpu_drawing(gpu, hues) for gpu in node.gpus)
        yield NodeDrawing(node, _node_text(node), gpus)


def _node_text(node: NodeView) -> str:
    models = Counter(gpu.gpu.model for gpu in node.gpus)
    parts = [f"{amount} × {model}" for model, amount in models.items()]
    if node.node.rack is not None:
        parts.insert(0, f"rack {node.node.rack}")
    return ", ".join(parts)


def _gpu_drawing(gpu: GpuView, hues: Mapping[str, int]) -> GpuDrawing:
    shares = [seat.share for seat in gpu.seats]
    capped = sum(share for share in shares if share is not None)
    uncapped = shares.count(None)
    # A job without a cap may use all SMs; it is drawn on what the caps of others leave.
    left = max(_LEAST_PIECE, (100 - capped) // uncapped) if uncapped else 0
    return GpuDrawing(
        gpu=gpu,
        pieces=tuple(
            Piece(seat, seat.share or left, hues.get(seat.placed.job.id)) for seat in gpu.seats
        ),
        free=max(0, 100 - capped) if not uncapped else 0,
        hatched=uncapped > 0 and len(shares) > 1,
        caption=_division_text(len(shares), uncapped, capped),
    )


def _division_text(jobs: int, uncapped: int, capped: int) -> str:
    if jobs == 1:
        return "alone, whole GPU" if uncapped else f"alone, {capped} % of the SMs"
    if jobs == uncapped:
        return f"{jobs} jobs, unpartitioned" if jobs else "idle"
    if uncapped:
        return f"{jobs} jobs, {capped} % capped, the rest open"
    return f"{jobs} jobs, caps sum to {capped} %"


def _axis(placed: Sequence[PlacedJob]) -> Axis:
    """Return an axis that holds every slowdown, and every gSLA that is not far beyond them."""
    seen = [x for each in placed for x in (each.slowdown, each.bound) if x is not None]
    limits = [each.job.gsla for each in placed if each.job.gsla is not None]
    far = min(_LONGEST_AXIS, max(limits, default=1.0))
    return Axis(low=min(1.0, *seen, 1.0), high=1.02 * max(_SHORTEST_AXIS, far, *seen, 1.0))


def _leading_figure(comparison: Comparison) -> str:
    return "weight placed" if comparison.objective in TWO_STAGE else comparison.objective


def _comparison_lines(comparison: Comparison) -> Sequence[ComparisonLine]:
    two_stage = comparison.objective in TWO_STAGE
    values = [row.placed_weight if two_stage else row.value for row in comparison.rows]
    longest = max(0.0, *values) or 1.0
    return [
        ComparisonLine(
            row=row,
            length=round(100 * max(0.0, value) / longest, 2),
            lead=_lead(values[0], value) if k else "",
            cells=phrases.comparison_cells(comparison, row),
        )
        for k, (row, value) in enumerate(zip(comparison.rows, values, strict=True))
    ]


def _lead(value: float, other: float) -> str:
    return f"{value / other - 1:+.0%}".replace("%", " %") if other > 0 else wording.NO_FIGURE


def _settings(laid_out: PlanView) -> Iterator[tuple[str, str]]:
    """Yield what one needs to know to repeat the plan."""
    plan, instance = laid_out.plan, laid_out.instance
    yield "instance", instance.name
    yield "objective", phrases.objective(laid_out)
    yield "solver", plan.solver or "not named"
    yield "status", phrases.proof(plan)
    yield "verified", phrases.verified(plan)
    yield "search stopped", (plan.stopped or "not said").replace("_", " ")
    yield "time", wording.seconds(plan.runtime_s) or "not said"
    yield "seed", "not said" if plan.seed is None else str(plan.seed)
    yield "running jobs", "may move or wait (--preempt)" if plan.preempt else "stay where they are"
    yield "sharing", _sharing_text(instance)
    yield "slowdowns", _slowdowns_text(instance)
    yield "node spans", phrases.node_spans(laid_out.report.nodes_spanned)
    yield "dovetail", VERSION


def _sharing_text(instance: Instance) -> str:
    cluster = instance.cluster
    caps = ", ".join(map(str, cluster.shares)) + " % of the SMs" if cluster.shares else "none"
    jobs = wording.number(cluster.max_jobs_per_gpu, "job")
    gangs = {"partial": "may share some of their GPUs", "whole": "share all their GPUs or none"}
    return f"at most {jobs} on a GPU; caps: {caps}; gangs {gangs[cluster.gang_sharing]}"


def _slowdowns_text(instance: Instance) -> str:
    entries = instance.slowdowns
    upper = sum(entry.upper is not None for entry in entries)
    return (
        f"{len(entries):,} combinations of workloads and shares are known, {upper:,} with an upper "
        "bound; the file does not say which were measured and which predicted"
    )
