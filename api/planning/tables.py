"""Plans, comparisons and check reports as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.instances._record import listed
from dovetail.planning.views import TWO_STAGE, GpuView, PlannedWorker, PlanView, view
from dovetail.planning.wording import (
    STARTS,
    better,
    comparison_cells,
    comparison_columns,
    mark,
    node_spans,
    origin,
    origins,
    proof,
    verified,
)
from dovetail.toolkit.tables import WIDTH, Fitting, Name, fact_lines, plain_table, row_lines
from dovetail.toolkit.wording import (
    NO_FIGURE,
    counted,
    figure,
    gib,
    gsla,
    number,
    percent,
    seconds,
    share_text,
    two_digits,
)

if TYPE_CHECKING:
    from dovetail.instances.checking.checker import CheckReport
    from dovetail.instances.instance import Instance
    from dovetail.instances.plan import ObjectiveValue, Plan, Waiting
    from dovetail.planning.comparison import PlanComparison
    from dovetail.solver.explaining.explanations import Explanation

MOST_GPUS = 60
MOST_WAITING = 20
MOST_PAIRS = 1000
NAME_COLUMNS = ("node", "GPU", "job")
PLAN_COLUMNS = (
    *(*NAME_COLUMNS, "part", "SM share", "slowdown", "at most", "from"),
    *("gSLA", "memory GiB", ""),
)
_NOTHING_SAID = {
    "part": {""},
    "SM share": {"", share_text(None)},
    "from": {"", "measured"},
    "gSLA": {"", NO_FIGURE},
    "": {"", STARTS},
}
"""Cells that say nothing: a column that has no others is left out."""


def plan_view(instance: Instance, plan: Plan) -> RenderableType:
    """Return a plan as text: headline, jobs on each GPU, why jobs wait, notes."""
    laid_out = view(instance, plan)
    return Group(
        headline(laid_out),
        gpu_table(laid_out),
        *stop_lines(laid_out),
        waiting_lines(laid_out),
        note_lines(plan),
    )


def headline(laid_out: PlanView) -> RenderableType:
    """Return the value of the plan and what is proven about it."""
    plan, report = laid_out.plan, laid_out.report
    jobs = len(laid_out.instance.jobs)
    placed = f"{len(laid_out.placed)} of {jobs} jobs ({counted(laid_out.changes)})"
    gpus = f"{report.gpus_used} of {len(laid_out.gpus)} GPUs"
    time = seconds(plan.runtime_s)
    stopped = f"stopped: {plan.stopped.replace('_', ' ')}" if plan.stopped else ""
    return fact_lines(
        ("plan for", laid_out.instance.name),
        ("status", proof(plan)),
        *_values(report, plan.objective),
        *_origins(laid_out),
        ("placed", f"{placed} on {gpus}"),
        ("node spans", node_spans(report.nodes_spanned)),
        ("solver", ", ".join(filter(None, (plan.solver or "not named", time, stopped)))),
        *_verified(plan),
    )


def gpu_table(laid_out: PlanView) -> RenderableType:
    """Return the jobs on each GPU, node by node, for the first ``MOST_GPUS`` GPUs."""
    gpus = list(islice(_gpus(laid_out), MOST_GPUS))
    columns = _telling(laid_out, [row for rows, _ in gpus for row in rows])
    table = plain_table()
    for name in columns:
        left = name in (*NAME_COLUMNS, "part", "from", "")
        table.add_column(
            name.replace(" ", "\n"),
            justify="left" if left else "right",
            no_wrap=name not in NAME_COLUMNS,
        )
    lines = []
    for rows, last in gpus:
        for k, row in enumerate(rows):
            shown = (
                Name(row[name]) if name in NAME_COLUMNS else Text(row[name]) for name in columns
            )
            table.add_row(*shown, end_section=last and k == len(rows) - 1)
            lines.append(tuple(row[name] for name in columns))
    names = sum(name in NAME_COLUMNS for name in columns)
    fitting = Fitting(table, row_lines(lines, names, columns[names:]))
    return Group(Text(), fitting, *_left_out(len(laid_out.gpus) - MOST_GPUS, "GPU"))


def _telling(laid_out: PlanView, rows: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the columns that say anything about these rows."""
    silent = {
        name
        for name, nothing in _NOTHING_SAID.items()
        if nothing.issuperset(row[name] for row in rows)
    }
    if all(row["at most"] == row["slowdown"] for row in rows):
        silent.add("at most")
    nodes = laid_out.nodes
    if len(nodes) == 1 or all(g.gpu.id.startswith(n.node.id) for n in nodes for g in n.gpus):
        silent.add("node")
    return tuple(name for name in PLAN_COLUMNS if name not in silent)


def stop_lines(laid_out: PlanView) -> Iterator[RenderableType]:
    """Yield the number of running jobs to stop, and a line for each."""
    stops = laid_out.stops
    if stops:
        yield Text(f"\n{number(len(stops), 'running job')} to stop first", "bold")
        yield _named_lines(
            (stop.job, f"on {listed(stop.gpus, 4)}, {laid_out.after_stop(stop)}")
            for stop in stops[:MOST_WAITING]
        )
        yield from _left_out(len(stops) - MOST_WAITING, "job to stop")


def waiting_lines(laid_out: PlanView) -> RenderableType:
    """Return counts of the reasons for waiting, and a line for each of the first waiting jobs."""
    waiting = laid_out.waiting
    if not waiting:
        return Text("\nno job waits", "bold")
    title = f"\n{number(len(waiting), 'job')} waiting: {counted(laid_out.reason_kinds)}"
    left_out = _left_out(len(waiting) - MOST_WAITING, "waiting job")
    return Group(Text(title, "bold"), _reason_lines(waiting[:MOST_WAITING]), *left_out)


def waiting_view(
    waiting: Sequence[Waiting], unknown_pairs: Iterable[tuple[str, str]], unknown: int
) -> RenderableType:
    """Return why each job waits, and the first pairs of workloads without a known slowdown."""
    lines: list[RenderableType] = [_reason_lines(waiting) if waiting else Text("no job waits")]
    if unknown:
        title = f"\n{number(unknown, 'pair')} of workloads without a known slowdown:"
        pairs = (Text(f"{a} + {b}") for a, b in islice(unknown_pairs, MOST_PAIRS))
        lines += [Text(title, "bold"), *pairs]
    if unknown > MOST_PAIRS:
        lines.append(Text(f"... {unknown - MOST_PAIRS:,} more (--json lists all)"))
    return Group(*lines)


def _reason_lines(waiting: Iterable[Waiting | Explanation]) -> RenderableType:
    return _named_lines((each.job, each.reason or "no reason given") for each in waiting)


def _named_lines(lines: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=WIDTH // 3)
    table.add_column(overflow="fold")
    rows = list(lines)
    for job, text in rows:
        table.add_row(Name(job), Text(text))
    return Fitting(table, row_lines(rows, 1, ("",)))


def note_lines(plan: Plan) -> RenderableType:
    """Return the plan's notes, one per line."""
    return Text("".join(f"\nnote: {note}" for note in plan.notes))


def comparison_table(comparison: PlanComparison) -> RenderableType:
    """Return the plan and the simpler rules, one per row."""
    table = plain_table("")
    columns = comparison_columns(comparison)
    for column in columns:
        table.add_column(column.replace(" ", "\n"), justify="right", no_wrap=True)
    rows = [(row.name, *comparison_cells(comparison, row)) for row in comparison.rows]
    for k, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if k == 0 else None)
    objective = comparison.objective
    title = f"\nthe same jobs under simpler rules ({objective}: {better(objective)})\n"
    return Group(Text(title, "bold"), Fitting(table, row_lines(rows, 1, columns)))


def explanation_view(story: Explanation) -> RenderableType:
    """Return why a job waits or where it runs, and what would let it start."""
    head = _reason_lines([story])
    if not story.remedies:
        return head
    lines = [Text(f"  - {remedy.text}") for remedy in story.remedies]
    lead = Text("Any one of these (would: proven by solving that round; could: if the rest stays):")
    return Group(head, Text(), lead, *lines)


def check_view(report: CheckReport) -> RenderableType:
    """Return the checker's verdict, the recomputed figures and every violation."""
    broken = number(len(report.violations), "violation")
    facts = fact_lines(
        ("plan", "valid" if report.valid else f"not valid: {broken}"),
        *_values(report, None),
        ("GPUs used", str(report.gpus_used)),
        ("node spans", node_spans(report.nodes_spanned)),
    )
    violations = (Text(f"violation: {each}") for each in report.violations)
    warnings = (Text(f"warning: {each}") for each in report.warnings)
    return Group(facts, *violations, *warnings)


def _origins(laid_out: PlanView) -> Iterator[tuple[str, str]]:
    if found := origins(laid_out):
        yield "slowdowns", found


def _verified(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.verification is not None:
        yield "verified", verified(plan)


def _values(report: CheckReport, claim: ObjectiveValue | None) -> Iterator[tuple[str, str]]:
    """Yield the recomputed value, after the first stage's if any, each with its proven bound."""
    if report.objective in TWO_STAGE:
        most = claim.placed_weight_bound if claim else None
        bound = "" if most is None else f"   bound {figure(most)}"
        yield "weight placed", f"{figure(report.placed_weight)}{bound}"
    name: str = report.objective
    value = "unknown" if report.value is None else figure(report.value)
    if claim is None:
        proven = " (recomputed)"
    elif claim.bound is None or claim.gap is None:
        name, value, proven = claim.name, figure(claim.value), "   no bound proven"
    else:
        name, value = claim.name, figure(claim.value)
        proven = f"   bound {figure(claim.bound)}   gap {percent(claim.gap)}"
    yield name, value + proven


def _gpus(laid_out: PlanView) -> Iterator[tuple[Sequence[Mapping[str, str]], bool]]:
    """Yield the rows of each GPU, and whether it is the last of its node."""
    for node in laid_out.nodes:
        for k, gpu in enumerate(node.gpus):
            rows = list(_gpu_rows(gpu, node.node.id if k == 0 else ""))
            yield rows, k == len(node.gpus) - 1


def _gpu_rows(gpu: GpuView, node: str) -> Iterator[Mapping[str, str]]:
    memory = f"{gib(gpu.used_mib)}/{gib(gpu.gpu.memory_mib)}"
    # Facts about the GPU are shown once.
    first = {"node": node, "GPU": gpu.gpu.id, "memory GiB": memory}
    rows = [_seat_cells(seat) for seat in gpu.seats] or [{"job": "(idle)"}]
    for k, row in enumerate(rows):
        yield {**dict.fromkeys(PLAN_COLUMNS, ""), **row, **(first if k == 0 else {})}


def _seat_cells(seat: PlannedWorker) -> Mapping[str, str]:
    job = seat.placed.job
    return {
        "job": job.id,
        "part": seat.part,
        "SM share": share_text(seat.share),
        "slowdown": two_digits(seat.placed.slowdown),
        "at most": two_digits(seat.placed.bound),
        "from": origin(seat.placed),
        "gSLA": gsla(job.gsla, job.priority),
        "": mark(seat),
    }


def _left_out(amount: int, thing: str) -> Sequence[Text]:
    if amount <= 0:
        return ()
    more = number(amount, f"more {thing}")
    return (Text(f"... {more}; all of them: --json, -o PLAN or --report FILE.html"),)
