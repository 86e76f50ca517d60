"""``dovetail plan``: the best plan for an instance, or for the round of the live service."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Final, cast

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.objectives import OBJECTIVES
from dovetail.predicting.options import PREDICTION
from dovetail.toolkit.commands import (
    FIGURES,
    INSTANCE,
    INTERRUPTED,
    REPORT,
    SEED,
    SLOWDOWNS,
    Command,
    given,
    limit,
    option,
    output_file,
)
from dovetail.toolkit.files import naming, print_either, require_separate
from dovetail.toolkit.progress import ProgressLine, compiled_ahead, interrupting, working
from dovetail.toolkit.tables import (
    Name,
    TableColumn,
    fact_lines,
    named_lines,
    stacked,
    table,
    title,
)
from dovetail.toolkit.wording import (
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
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from dovetail.formulations.objectives import Objective
    from dovetail.instances.instance import Instance
    from dovetail.instances.objectives import ObjectiveName
    from dovetail.instances.plan import Plan
    from dovetail.live.client import Client
    from dovetail.planning.comparison import PlanComparison
    from dovetail.planning.views import GpuView, PlannedWorker, PlanView
    from dovetail.solver.result import Result


def _objective_name(text: str) -> str:
    if text not in OBJECTIVES and not text.startswith("python:"):
        known = ", ".join(OBJECTIVES)
        raise ArgumentTypeError(
            f"invalid choice: {text!r} (choose from {known}, python:MODULE.CLASS)"
        )
    return text


PLAN: Final = Command(
    "plan",
    "Write the best plan for an instance, with its proof.",
    "dovetail.planning.plan:plan",
    (
        INSTANCE._replace(number="?"),
        option(
            "--from-live",
            "plan the round of the live service, with its policy, instead of INSTANCE",
        ),
        option("-o, --output PLAN", "write the plan to this file; - prints it", output_file),
        option(
            "--objective O",
            f"what to optimise: {', '.join(OBJECTIVES)}, or python:MODULE.CLASS for a subclass of "
            "dovetail.JobValues",
            _objective_name,
            "throughput",
        ),
        option(
            "--solver S",
            "auto, matching, cpsat, highs, milp, milp:NAME (any solver of PuLP; extra milp), "
            "networkx (extra networkx), greedy, exclusive or random; python:MODULE.CLASS for one "
            "of your own",
            default="auto",
        ),
        option(
            "--time-limit SECONDS",
            "stop after this time, with the best plan so far and its proven gap; inf: never",
            limit,
            "60",
        ),
        option("--gap G", "stop once this relative gap is proven", float, "0"),
        SEED._replace(text="same seed, same plan"),
        option("--preempt", "let running jobs move or wait, except latency-critical ones"),
        SLOWDOWNS,
        *PREDICTION,
        option(
            "--verify",
            "check the plan again, and its bound if the solver left a certificate",
        ),
        option(
            "--commands",
            "instead of the plan, print the environment of each process that starts, for starting "
            "jobs by hand under MPS",
        ),
        option("--write-model FILE.mps", "write the integer program (extra milp)"),
        REPORT,
        FIGURES,
        option("--compare", "also print the results of simple rules for the same jobs"),
    ),
)

_MOST_ASKED: Final = 5
_MOST_GPUS: Final = 60
_MOST_WAITING: Final = 20


def plan(options: Namespace) -> int:
    """Solve the instance; print or write the plan, the report and the model."""
    from dovetail.formulations.budget import Budget, InterruptibleClock
    from dovetail.predicting.filling import completed
    from dovetail.solver.backends.milp import require_pulp
    from dovetail.solver.rounds import solve, write_model

    if options.from_live:
        return _plan_from_live(options)
    if options.instance is None:
        raise InputError("is required, unless --from-live is given", "INSTANCE")
    read = (options.instance, *filter(None, [options.model, options.slowdowns]))
    outputs = (options.output, options.report, options.figures, options.write_model)
    require_separate(read, *outputs)
    _check_figures(options)
    if options.write_model:
        require_pulp("--write-model")
    instance = completed(options)
    objective = _objective(options.objective)
    _compile_once(instance, options.solver)
    clock = InterruptibleClock()
    limit = None if options.time_limit == math.inf else options.time_limit
    with naming(options.instance), interrupting(clock), working("solving", limit) as line:
        result = solve(
            instance,
            objective,
            options.solver,
            Budget.of(limit, clock),
            options.gap,
            options.seed,
            options.preempt,
            progress=lambda name, value, bound: _tell(line, name, value, bound),
        )
    if result.stopped == "interrupted":
        _write_plan(options, instance, result.plan)
        return INTERRUPTED
    made = _verified(instance, result, objective) if options.verify else result.plan
    if options.write_model:
        write_model(instance, made, options.write_model, objective)
    _write_plan(options, instance, made)
    return 0 if result.status in ("optimal", "feasible") else 1


def _check_figures(options: Namespace) -> None:
    """Refuse a folder that is not for figures, before anything is computed."""
    if options.figures:
        from dovetail.toolkit.charts import check_figures

        check_figures(options.figures)


def _tell(line: ProgressLine, name: str, value: float, bound: float | None) -> None:
    """Show the best value so far and its gap to the proven bound."""
    most = max(abs(bound or 0.0), abs(value)) or 1.0
    gap = "no bound yet" if bound is None else f"gap {percent(abs(bound - value) / most)}"
    line.text = f"solving: {name} {figure(value)}, {gap}"


def _plan_from_live(options: Namespace) -> int:
    """Print or write the plan that the live service would carry out now, with its own options."""
    from dovetail.live.client import Client

    allowed = ("from_live", "output", "report", "figures", "compare")
    for argument in given(PLAN, options):
        if argument.field not in allowed:
            rule = "cannot be combined with --from-live: the service uses its own policy and limits"
            raise InputError(rule, argument.names[-1] if argument.names else argument.value)
    require_separate((), options.output, options.report, options.figures)
    _check_figures(options)
    with Client() as client:
        instance, made = _round_and_plan(client)
    _write_plan(options, instance, made)
    return 0


def _round_and_plan(client: Client) -> tuple[Instance, Plan]:
    """Return the live round and the plan for it; ask again if jobs came or went in between."""
    for _ in range(_MOST_ASKED):
        instance, made = client.instance(), client.plan()
        named = {row.job for row in made.assignments} | {row.job for row in made.waiting}
        stay = {row.job for row in made.assignments if not row.start}
        running = {job.id for job in instance.jobs if job.running}
        if named <= {job.id for job in instance.jobs} and stay <= running:
            return instance, made
    raise UnsupportedError("the jobs of the service change too quickly for a plan of them")


def _compile_once(instance: Instance, solver: str) -> None:
    """Compile the engine before the time limit starts, if it may solve the round."""
    alike = (
        len({(g.model, g.memory_mib) for node in instance.cluster.nodes for g in node.devices}) == 1
    )
    workers = sum(job.workers for job in instance.jobs)
    cluster = instance.cluster
    in_pairs = cluster.assumed is None or cluster.max_jobs_per_gpu <= 2
    if solver in ("auto", "matching") and alike and in_pairs:
        compiled_ahead(workers)


def _objective(name: str) -> Objective:
    """Return an objective: its name, or a class of the user."""
    from dovetail.formulations.values import JobValues
    from dovetail.solver.outside import PREFIX, class_at

    if not name.startswith(PREFIX):
        return cast("ObjectiveName", name)
    kind = class_at(name, "objective", "gain")
    if not issubclass(kind, JobValues):
        raise UnsupportedError(f"objective {name!r} must be a subclass of dovetail.JobValues")
    return kind


def _verified(instance: Instance, result: Result, objective: Objective) -> Plan:
    """Return the plan with the result of a second verification."""
    from dovetail.solver.verification import verify

    with working("verifying"):
        return result.plan.replace(verification=verify(instance, result, objective))


def _write_plan(options: Namespace, instance: Instance, made: Plan) -> None:
    from dovetail.instances.files import write_plan

    comparison = None
    interrupted = made.stopped == "interrupted"  # after an interrupt, only the plan is written
    if (options.compare or options.report or options.figures) and not interrupted:
        comparison = _compared(options, instance, made)
    if options.output:
        write_plan(made, options.output)
    if options.output == "-":
        return
    if options.commands:
        _print_commands(options, instance, made)
        return
    print_either(options, made.to_data(), lambda: plan_view(instance, made, comparison))


def _compared(options: Namespace, instance: Instance, made: Plan) -> PlanComparison | None:
    """Write the page and the figures; return the comparison if it is printed as well."""
    from dovetail.planning.comparison import compare

    with working("comparing with simpler rules"):
        comparison = compare(instance, made)
    if options.report or options.figures:
        from dovetail.planning.report import write_report

        write_report(instance, made, comparison, options.report, options.figures)
    return comparison if options.compare else None


def _print_commands(options: Namespace, instance: Instance, made: Plan) -> None:
    """Print commands that start the jobs of a plan; as JSON, with the plan."""
    from dovetail.instances.files import write_data
    from dovetail.planning.starting import ranks, shell_lines

    found = list(ranks(instance, made))
    if options.json:
        commands = [rank.to_data() for rank in found]
        write_data({"plan": made.to_data(), "commands": commands}, "-")
        return
    print(*shell_lines(instance, made.leaving(instance.jobs), found), sep="\n")


def plan_view(
    instance: Instance, made: Plan, comparison: PlanComparison | None = None
) -> RenderableType:
    """Return a plan as text: facts, jobs on each GPU, why jobs wait, notes, and a comparison."""
    from dovetail.planning.views import view

    laid_out = view(instance, made)
    return stacked(
        _facts(laid_out),
        "",
        gpu_table(laid_out),
        _left_out(len(laid_out.gpus) - _MOST_GPUS, "GPU"),
        *_stops(laid_out),
        *_waiting(laid_out),
        "",
        *(f"note: {note}" for note in made.notes),
        *(() if comparison is None else _comparison(comparison)),
    )


def _facts(laid_out: PlanView) -> RenderableType:
    """Return the value of the plan and what is proven about it."""
    from dovetail.planning.views import (
        gpus_needed,
        node_spans,
        origins,
        status,
        values,
        verified,
    )

    plan, report = laid_out.plan, laid_out.report
    placed = f"{len(laid_out.placed)} of {len(laid_out.instance.jobs)} jobs"
    stopped = f"stopped: {plan.stopped.replace('_', ' ')}" if plan.stopped else ""
    solved = (plan.solver or "not named", seconds(plan.runtime_s), stopped)
    facts = (
        ("plan for", laid_out.instance.name),
        ("status", status(plan)),
        *values(report, plan.objective),
        gpus_needed(laid_out),
        ("slowdowns", origins(laid_out)),
        (
            "placed",
            f"{placed} ({counted(laid_out.changes)}) on "
            f"{report.gpus_used} of {len(laid_out.gpus)} GPUs",
        ),
        node_spans(report),
        ("solver", ", ".join(filter(None, solved))),
        ("verified", verified(plan)),
    )
    return fact_lines(*(each for each in facts if each[1]))


_COLUMNS: Final = (
    *("node", "GPU", "job", "part", "SM share", "slowdown", "at most", "from"),
    *("gSLA", "memory GiB", ""),
)
_NAMES: Final = ("node", "GPU", "job")
_LEFT: Final = (*_NAMES, "part", "from", "")
_SILENT: Final = {
    "part": ("",),
    "SM share": ("", "no cap"),
    "from": ("", "measured"),
    "gSLA": ("", "-"),
    "": ("", "starts"),
}


def gpu_table(laid_out: PlanView) -> RenderableType:
    """Return the jobs on each GPU, node by node, without columns that say nothing."""
    rows: list[Mapping[str, str]] = []
    ends: set[int] = set()
    for node, gpu, last in _gpus(laid_out)[:_MOST_GPUS]:
        rows += _gpu_rows(gpu, node)
        ends |= {len(rows) - 1} if last else set()
    twice = {"at most"} if all(row["at most"] == row["slowdown"] for row in rows) else set()
    nodes = laid_out.nodes
    if len(nodes) == 1 or all(g.gpu.id.startswith(n.node.id) for n in nodes for g in n.gpus):
        twice.add("node")
    shown = [name for name in _COLUMNS if name not in twice]
    columns = (
        TableColumn(
            name.replace(" ", "\n"),
            right=name not in _LEFT,
            folds=name in _NAMES,
            silent=_SILENT.get(name, ()),
        )
        for name in shown
    )
    cells = [[Name(row[n]) if n in _NAMES else row[n] for n in shown] for row in rows]
    return table(columns, cells, names=sum(name in _NAMES for name in shown), ends=ends)


def _gpus(laid_out: PlanView) -> Sequence[tuple[str, GpuView, bool]]:
    """Return each GPU, after its node if it is the first there, and whether it is the last."""
    return [
        (node.node.id if k == 0 else "", gpu, k == len(node.gpus) - 1)
        for node in laid_out.nodes
        for k, gpu in enumerate(node.gpus)
    ]


def _gpu_rows(gpu: GpuView, node: str) -> Iterator[Mapping[str, str]]:
    memory = f"{gib(gpu.used_mib)}/{gib(gpu.gpu.memory_mib)}"
    # Facts about the GPU are shown once.
    first = {"node": node, "GPU": gpu.gpu.id, "memory GiB": memory}
    for k, row in enumerate([_seat_cells(seat) for seat in gpu.seats] or [{"job": "(idle)"}]):
        yield {**dict.fromkeys(_COLUMNS, ""), **row, **(first if k == 0 else {})}


def _seat_cells(seat: PlannedWorker) -> Mapping[str, str]:
    placed = seat.placed
    return {
        "job": placed.job.id,
        "part": seat.part,
        "SM share": share_text(seat.share),
        "slowdown": two_digits(placed.slowdown),
        "at most": two_digits(placed.bound),
        "from": str(placed.origin or ""),
        "gSLA": gsla(placed.job.gsla, placed.job.priority),
        "": placed.change,
    }


def _stops(laid_out: PlanView) -> Iterator[RenderableType | None]:
    """Yield the number of running jobs to stop, and a line for each."""
    from dovetail.instances._record import listed

    if stops := laid_out.stops:
        yield title(f"{number(len(stops), 'running job')} to stop first")
        yield named_lines(
            (stop.job, f"on {listed(stop.gpus, 4)}, {laid_out.after_stop(stop)}")
            for stop in stops[:_MOST_WAITING]
        )
        yield _left_out(len(stops) - _MOST_WAITING, "job to stop")


def _waiting(laid_out: PlanView) -> Iterator[RenderableType | None]:
    """Yield the number of jobs that wait for each kind of reason, and a line for each job."""
    if not laid_out.waiting:
        yield title("no job waits")
        return
    waiting = number(len(laid_out.waiting), "job")
    yield title(f"{waiting} waiting: {counted(laid_out.reason_kinds)}")
    yield named_lines(
        (each.job, each.reason or "no reason given") for each in laid_out.waiting[:_MOST_WAITING]
    )
    yield _left_out(len(laid_out.waiting) - _MOST_WAITING, "waiting job")


def _left_out(amount: int, thing: str) -> str | None:
    if amount <= 0:
        return None
    more = number(amount, f"more {thing}")
    return f"... {more}; all of them: --json, -o PLAN or --report FILE.html"


def _comparison(comparison: PlanComparison) -> Iterator[RenderableType]:
    """Yield the values of the plan and of simpler rules."""
    from dovetail.planning.comparison import better, comparison_cells, comparison_columns

    objective = comparison.objective
    yield title(f"the same jobs under simpler rules ({objective}: {better(objective)})\n")
    columns = (each.replace(" ", "\n") for each in comparison_columns(comparison))
    rows = ((row.name, *comparison_cells(comparison, row)) for row in comparison.rows)
    yield table((TableColumn("", folds=True), *columns), rows, bold={0})
