"""The commands ``plan``, ``check`` and ``explain``: options in, output out, exit status."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dovetail.formulations.budget import Budget, InterruptibleClock
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.files import read_plan, write_data, write_plan
from dovetail.instances.instance import Instance
from dovetail.instances.reading.raw_files import write_text
from dovetail.planning import tables
from dovetail.planning.wording import so_far
from dovetail.predicting.filling import with_predictions
from dovetail.toolkit.charts import check_figures, write_figures
from dovetail.toolkit.commands import INTERRUPTED, given
from dovetail.toolkit.inputs import instance_with, naming
from dovetail.toolkit.interrupts import interrupting
from dovetail.toolkit.outputs import print_either, require_separate
from dovetail.toolkit.progress import Line, compiled_ahead, working
from dovetail.toolkit.tables import console

if TYPE_CHECKING:
    from dovetail.formulations.objectives import Objective
    from dovetail.instances.objectives import ObjectiveName
    from dovetail.instances.plan import Plan
    from dovetail.live.client import Client
    from dovetail.solver.result import Result

_MOST_ASKED = 5


def plan(options: Namespace) -> int:
    """Solve the instance; print or write the plan, the report and the model."""
    from dovetail.solver.backends.milp import require_pulp
    from dovetail.solver.rounds import solve, write_model

    if options.from_live:
        return _plan_from_live(options)
    if options.instance is None:
        raise InputError("is required, unless --from-live is given", "INSTANCE")
    read = (options.instance, *filter(None, [options.model, options.slowdowns]))
    outputs = (options.output, options.report, options.figures, options.write_model)
    require_separate(read, *outputs)
    check_figures(options.figures)
    if options.write_model:
        require_pulp("--write-model")
    instance = instance_with(options.instance, options.slowdowns)
    instance = with_predictions(options, instance)
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
            progress=partial(_tell, line),
        )
    if result.stopped == "interrupted":
        _write_plan(options, instance, result.plan)
        return INTERRUPTED
    made = _verified(instance, result, objective) if options.verify else result.plan
    if options.write_model:
        write_model(instance, made, Path(options.write_model), objective)
    _write_plan(options, instance, made)
    return 0 if result.status in ("optimal", "feasible") else 1


def _tell(line: Line, name: str, value: float, bound: float | None) -> None:
    """Show the progress of the search."""
    line.text = f"solving: {so_far(name, value, bound)}"


def _plan_from_live(options: Namespace) -> int:
    """Print or write the plan that the live service would carry out now, with its own options."""
    from dovetail.live.client import Client
    from dovetail.planning.cli import PLAN

    allowed = ("from_live", "output", "report", "figures", "compare")
    for argument in given(PLAN, options):
        if argument.field not in allowed:
            rule = "cannot be combined with --from-live: the service uses its own policy and limits"
            raise InputError(rule, argument.names[-1] if argument.names else argument.value)
    require_separate((), options.output, options.report, options.figures)
    check_figures(options.figures)
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
    if solver in ("auto", "matching") and alike:
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
    from dovetail.planning.comparison import compare

    comparison = None
    interrupted = made.stopped == "interrupted"  # after an interrupt, only the plan is written
    if (options.compare or options.report or options.figures) and not interrupted:
        with working("comparing with simpler rules"):
            comparison = compare(instance, made)
    if options.report and comparison:
        from dovetail.planning.report import report_html

        write_text(options.report, report_html(instance, made, comparison))
    if options.figures and comparison:
        from dovetail.planning.report import report_charts

        write_figures(options.figures, report_charts(instance, made, comparison))
    if options.output:
        write_plan(made, options.output)
    if options.output == "-":
        return
    if options.commands:
        _print_commands(options, instance, made)
        return
    print_either(options, made.to_data(), tables.plan_view(instance, made))
    if options.compare and comparison and not options.json:
        console().print(tables.comparison_table(comparison))


def _print_commands(options: Namespace, instance: Instance, made: Plan) -> None:
    """Print commands that start the jobs of a plan; as JSON, with the plan."""
    from dovetail.planning.starting import ranks, shell_lines

    found = list(ranks(instance, made))
    if options.json:
        commands = [rank.to_data() for rank in found]
        write_data({"plan": made.to_data(), "commands": commands}, "-")
        return
    print(*shell_lines(instance, made.leaving(instance.jobs), found), sep="\n")


def check(options: Namespace) -> int:
    """Verify a plan; 1 if it breaks a rule."""
    from dovetail.instances.checking.checker import check as verify

    instance = instance_with(options.instance, options.slowdowns)
    plan_read = read_plan(options.plan)
    _hint_at_another_instance(instance, plan_read)
    with naming(options.instance):
        report = verify(instance, plan_read, options.objective)
    print_either(options, report.to_data(), tables.check_view(report))
    return 0 if report.valid else 1


def _hint_at_another_instance(instance: Instance, plan_read: Plan) -> None:
    """Warn first, on standard error, if the files may not belong together."""
    made_for = plan_read.instance
    if made_for not in (None, instance.name):
        text = f"the plan was made for instance {made_for}, this one is {instance.name}"
        print(f"dovetail: {text}: are these the right files?", file=sys.stderr)


def explain(options: Namespace) -> int:
    """Explain why a job waits and what would let it start, or why each waiting job waits."""
    from dovetail.solver.explaining.explanations import explain as explained

    instance = instance_with(options.instance, options.slowdowns)
    plan_read = read_plan(options.plan)
    if options.job is None:
        return _explain_waiting(options, instance, plan_read)
    with naming(options.instance), working("solving changed rounds"):
        story = explained(instance, plan_read, options.job)
    print_either(options, story.to_data(), tables.explanation_view(story))
    return 0


def _explain_waiting(options: Namespace, instance: Instance, plan_read: Plan) -> int:
    from dovetail.solver.explaining.explanations import explain_waiting
    from dovetail.solver.rounds import UnknownPairs

    with naming(options.instance):
        waiting = explain_waiting(instance, plan_read)
    pairs = UnknownPairs.of(instance)
    if options.json:
        data = {"waiting": [row.to_data() for row in waiting], "unknown_pairs": list(pairs.names())}
        write_data(data, "-")
    else:
        console().print(tables.waiting_view(waiting, pairs.names(), pairs.number))
    return 0
