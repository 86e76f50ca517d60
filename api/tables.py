"""What the command line prints: plans, comparisons and check reports as text for people.

Every text from a file goes through `rich.text.Text`, which takes ``[`` for what it is. Names
fold, nothing is cut off, and colour never says what words do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.views import LOWER_IS_BETTER, MIB_PER_GIB, TWO_STAGE, GpuView, PlanView, Seat, view

if TYPE_CHECKING:
    from dovetail.comparison import Comparison, Row
    from dovetail.instances.checker import CheckReport
    from dovetail.instances.instance import Instance
    from dovetail.instances.plan import ObjectiveValue, Plan

WIDTH = 100
MOST_GPUS = 60
MOST_WAITING = 20

_SEE_ALL = "all of them: --json, -o PLAN or --report FILE.html"
_NO_FIGURE = "-"


def console() -> Console:
    """Return a console on standard output that is at most 100 columns wide.

    Where standard output is no terminal it is exactly that, without colour.
    """
    found = Console(highlight=False)
    width = min(found.width, WIDTH) if found.is_terminal else WIDTH
    return Console(highlight=False, width=width)


def plan_view(instance: Instance, plan: Plan) -> RenderableType:
    """Return a plan as text: the headline, who runs where, who waits and why, the notes."""
    laid_out = view(instance, plan)
    parts = (headline(laid_out), gpu_table(laid_out), waiting_lines(laid_out), note_lines(plan))
    return Group(*(part for part in parts if part is not None))


def headline(laid_out: PlanView) -> RenderableType:
    """Return what the plan comes to and what is proven of it."""
    plan, report = laid_out.plan, laid_out.report
    jobs, gpus = len(laid_out.instance.jobs), len(laid_out.gpus)
    stay = len(laid_out.placed) - laid_out.starting
    placed = f"{len(laid_out.placed)} of {jobs} jobs ({laid_out.starting} start, {stay} stay)"
    facts = _facts()
    _fact(facts, "plan for", laid_out.instance.name, "bold")
    _fact(facts, "status", proof(plan), "bold")
    for name, told in _values(report, plan.objective):
        _fact(facts, name, told)
    _fact(facts, "placed", f"{placed} on {report.gpus_used} of {gpus} GPUs")
    _fact(facts, "nodes", f"{report.nodes_spanned} spanned, summed over the placed jobs")
    _fact(facts, "solver", _search(plan))
    return facts


def proof(plan: Plan) -> str:
    """Return the status of a plan with what it means."""
    objective = plan.objective
    if plan.status is None or objective is None:
        return "checked and valid; nothing is claimed of how good it is"
    if plan.status == "optimal":
        return "optimal: no plan does better, proven"
    if objective.gap is None:
        return f"{plan.status}: valid, no bound on what another plan could reach"
    return f"{plan.status}: valid, proven to be within {_percent(objective.gap)} of the best"


def gpu_table(laid_out: PlanView) -> RenderableType:
    """Return who runs on each GPU, node by node."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in ("node", "GPU", "job"):
        table.add_column(name, overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("SM share", "slowdown", "at most", "gSLA", "memory GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    left = MOST_GPUS
    for node in laid_out.nodes:
        for k, gpu in enumerate(node.gpus[:left]):
            for cells in _gpu_rows(gpu, node.node.id if k == 0 else ""):
                table.add_row(*map(Text, cells))
        if node.gpus[:left]:
            table.add_section()
        left = max(0, left - len(node.gpus))
    return Group(Text(), table, *_left_out(len(laid_out.gpus) - MOST_GPUS, "GPUs"))


def waiting_lines(laid_out: PlanView) -> RenderableType | None:
    """Return a line for every waiting job, or for the first of many and counts of the rest."""
    waiting = laid_out.waiting
    if not waiting:
        return None
    lines = Table.grid(padding=(0, 2))
    lines.add_column(overflow="fold", max_width=WIDTH // 3)
    lines.add_column(overflow="fold")
    for each in waiting[:MOST_WAITING]:
        lines.add_row(Text(each.job), Text(each.reason or "no reason given"))
    counts = _counted(laid_out.reason_kinds)
    title = Text(f"\n{_number(len(waiting), 'job')} waiting: {counts}", "bold")
    return Group(title, lines, *_left_out(len(waiting) - MOST_WAITING, "waiting jobs"))


def note_lines(plan: Plan) -> RenderableType | None:
    """Return the plan's notes, a line each."""
    if not plan.notes:
        return None
    return Group(Text(), *(Text(f"note: {note}") for note in plan.notes))


def comparison_table(comparison: Comparison) -> RenderableType:
    """Return the plan beside the simpler ways of planning, a row each."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("way of planning", overflow="fold")
    for column in comparison_columns(comparison):
        table.add_column(column, justify="right")
    for k, row in enumerate(comparison.rows):
        cells = map(Text, (row.name, *comparison_cells(comparison, row)))
        table.add_row(*cells, style="bold" if k == 0 else None)
    return Group(Text("\nThe same jobs under simpler rules", "bold"), table)


def comparison_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the heads of the columns that `comparison_cells` fills."""
    better = "lower" if comparison.objective in LOWER_IS_BETTER else "higher"
    value = f"{comparison.objective} ({better} is better)"
    weight = ("weight placed",) if comparison.objective in TWO_STAGE else ()
    # The objective may be the throughput itself, which then has its column already.
    throughput = () if comparison.objective == "throughput" else ("throughput",)
    slowdowns = ("worst slowdown", "mean slowdown")
    return ("jobs placed", *weight, value, *throughput, *slowdowns, "GPUs used", "over gSLA")


def comparison_cells(comparison: Comparison, row: Row) -> tuple[str, ...]:
    """Return the figures of a row of a comparison."""
    weight = (_figure(row.placed_weight),) if comparison.objective in TWO_STAGE else ()
    throughput = () if comparison.objective == "throughput" else (_figure(row.throughput),)
    return (
        _count(row.placed),
        *weight,
        _figure(row.value),
        *throughput,
        two_digits(row.worst_slowdown),
        two_digits(row.mean_slowdown),
        _count(row.gpus_used),
        _count(row.gsla_violations),
    )


def check_view(report: CheckReport) -> RenderableType:
    """Return what the checker found: the verdict, the recomputed figures, every breach."""
    broken = len(report.violations)
    verdict = "valid" if report.valid else f"not valid: {_number(broken, 'violation')}"
    facts = _facts()
    _fact(facts, "plan", verdict, "bold")
    for name, told in _values(report, None):
        _fact(facts, name, told)
    _fact(facts, "GPUs used", str(report.gpus_used))
    _fact(facts, "nodes", f"{report.nodes_spanned} spanned, summed over the placed jobs")
    lines = [*(f"violation: {each}" for each in report.violations)]
    lines += [f"warning: {each}" for each in report.warnings]
    return Group(facts, *map(Text, lines))


def two_digits(value: float | None) -> str:
    """Return a slowdown as the tables show it."""
    return _NO_FIGURE if value is None else f"{value:.2f}"


def share_told(share: int | None) -> str:
    """Return a share of a GPU's SMs as the tables show it."""
    return "no cap" if share is None else f"{share} %"


def _facts() -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    return facts


def _fact(facts: Table, name: str, told: str, style: str = "") -> None:
    facts.add_row(Text(name), Text(told, style))


def _values(report: CheckReport, claim: ObjectiveValue | None) -> Iterator[tuple[str, str]]:
    """Yield the recomputed value, the first stage's before it, each with its proven bound."""
    if report.objective in TWO_STAGE:
        most = claim.placed_weight_bound if claim else None
        bound = f"   at most {_figure(most)}" if most is not None else ""
        yield "weight placed", f"{_figure(report.placed_weight)}{bound}"
    value = "unknown" if report.value is None else _figure(report.value)
    if claim is None:
        yield report.objective, f"{value}, recomputed"
    elif claim.bound is None or claim.gap is None:
        yield report.objective, f"{value}   no bound proven"
    else:
        yield (
            report.objective,
            f"{value}   bound {_figure(claim.bound)}   gap {_percent(claim.gap)}",
        )


def _search(plan: Plan) -> str:
    """Return who made the plan, how long it took and why it stopped."""
    time = f"{plan.runtime_s:.2f} s" if plan.runtime_s is not None else ""
    stopped = plan.stopped.replace("_", " ") if plan.stopped else ""
    return ", ".join(part for part in (plan.solver or "not said", time, stopped) if part)


def _gpu_rows(gpu: GpuView, node: str) -> Iterator[tuple[str, ...]]:
    used, size = gpu.used_mib / MIB_PER_GIB, gpu.gpu.memory_mib / MIB_PER_GIB
    memory = f"{used:.1f}/{size:.1f}"
    if not gpu.seats:
        yield node, gpu.gpu.id, "(idle)", *[""] * 5, memory, ""
    for k, seat in enumerate(gpu.seats):
        first = k == 0
        names = (node, gpu.gpu.id) if first else ("", "")
        yield *names, *_seat_cells(seat), memory if first else "", _mark(seat)


def _seat_cells(seat: Seat) -> tuple[str, ...]:
    job = seat.placed.job
    return (
        job.id,
        seat.part,
        share_told(seat.share),
        two_digits(seat.placed.slowdown),
        two_digits(seat.placed.bound),
        two_digits(job.gsla),
    )


def _mark(seat: Seat) -> str:
    return "stays" if seat.placed.job.running else "starts"


def _left_out(number: int, things: str) -> Iterable[RenderableType]:
    return [Text(f"... {number} more {things}; {_SEE_ALL}")] if number > 0 else []


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def _number(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _count(value: float) -> str:
    """Return a count; a mean of counts with one digit."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _figure(value: float) -> str:
    """Return a value with six significant digits."""
    return f"{value:.6g}"


def _percent(gap: float) -> str:
    return f"{gap:.2%}".replace("%", " %")
