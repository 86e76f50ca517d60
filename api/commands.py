"""What each command does: options in, output written, exit status out."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.files import (
    read_instance,
    read_plan,
    write_data,
    write_instance,
    write_plan,
    write_text,
)
from dovetail.instances.instance import Instance
from dovetail.outputs import require_separate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.formulations.objectives import Objective
    from dovetail.instances._record import Record
    from dovetail.instances.objectives import ObjectiveName
    from dovetail.instances.plan import Plan
    from dovetail.live.client import Client
    from dovetail.predictors import Predictor
    from dovetail.solver.rounds import Result

_LIBRARY = "library:"
_MOST_ASKED = 5
_MOST_TOLD = 10


def plan(options: Namespace) -> int:
    """Solve the instance; print or write the plan, the report and the model."""
    from dovetail.progress import working
    from dovetail.solver.rounds import solve, write_model

    if options.from_live:
        return _plan_from_live(options)
    if options.instance is None:
        raise InputError("is needed, or --from-live", "INSTANCE")
    read = (options.instance, *filter(None, [options.model, options.slowdowns]))
    require_separate(read, options.output, options.report, options.write_model)
    instance = _instance(options)
    predictor = _predictor(options)
    if predictor is not None:
        instance = _predicted(options, instance, predictor)
    objective = _objective(options.objective)
    _compile_once(instance, options.solver)
    with _about(options.instance), working("solving", options.time_limit):
        result = solve(
            instance,
            objective,
            options.solver,
            options.time_limit,
            options.gap,
            options.seed,
            options.preempt,
        )
    made = _verified(instance, result, objective) if options.verify else result.plan
    if options.write_model:
        write_model(instance, made, Path(options.write_model), objective)
    _write_plan(options, instance, made)
    return 0 if result.status in ("optimal", "feasible") else 1


def _plan_from_live(options: Namespace) -> int:
    """Print or write what the live service would do now; it decides as it is set up to."""
    from dovetail.cli import parser
    from dovetail.live.client import Client

    kept = ("instance", "from_live", "output", "json", "report", "compare", "parser")
    usual = vars(parser().parse_args(["plan"]))
    for name, value in vars(options).items():
        if name not in kept and value != usual[name]:
            flag = f"--{name.replace('_', '-')}"
            raise InputError("cannot be had with --from-live: the service plans as it does", flag)
    if options.instance is not None:
        raise InputError("cannot be had with --from-live", "INSTANCE")
    require_separate((), options.output, options.report)
    with Client() as client:
        instance, made = _round_and_plan(client)
    _write_plan(options, instance, made)
    return 0


def _round_and_plan(client: Client) -> tuple[Instance, Plan]:
    """Return the live round, and the plan for it: asked again where jobs came or went between."""
    for _ in range(_MOST_ASKED):
        instance, made = client.instance(), client.plan()
        told = {row.job for row in made.assignments} | {row.job for row in made.waiting}
        stay = {row.job for row in made.assignments if not row.start}
        running = {job.id for job in instance.jobs if job.running}
        if told <= {job.id for job in instance.jobs} and stay <= running:
            return instance, made
    raise UnsupportedError("the jobs of the service change too quickly for a plan of them")


def _compile_once(instance: Instance, solver: str) -> None:
    """Compile the engine before the time limit starts, where the round is one that it solves."""
    from dovetail.progress import compiled_ahead

    alike = (
        len({(g.model, g.memory_mib) for node in instance.cluster.nodes for g in node.devices}) == 1
    )
    workers = sum(job.workers for job in instance.jobs)
    if solver in ("auto", "matching") and alike:
        compiled_ahead(workers)


def _objective(name: str) -> Objective:
    """Return an objective: its name, or a class of the user's."""
    from dovetail.formulations.values import JobValues
    from dovetail.solver.outside import PREFIX, class_at

    if not name.startswith(PREFIX):
        return cast("ObjectiveName", name)
    kind = class_at(name, "objective", "gain")
    if not issubclass(kind, JobValues):
        raise UnsupportedError(f"objective {name!r} must be a subclass of dovetail.JobValues")
    return kind


def _verified(instance: Instance, result: Result, objective: Objective) -> Plan:
    """Return the plan with what was found true of it once more."""
    from dovetail.progress import working
    from dovetail.solver.verification import verify

    with working("verifying"):
        return result.plan.replace(verification=verify(instance, result, objective))


def _write_plan(options: Namespace, instance: Instance, made: Plan) -> None:
    from dovetail.comparison import compare
    from dovetail.progress import working

    comparison = None
    if options.compare or options.report:
        with working("comparing with simpler rules"):
            comparison = compare(instance, made)
    if options.report and comparison:
        from dovetail.report import report_html

        write_text(options.report, report_html(instance, made, comparison))
    if options.output:
        write_plan(made, options.output)
    if options.output == "-":
        return
    if options.commands:
        _print_commands(options, instance, made)
        return
    if options.json:
        write_plan(made, "-")
        return
    from dovetail import plan_tables

    _print(plan_tables.plan_view(instance, made))
    if options.compare and comparison:
        _print(plan_tables.comparison_table(comparison))


def _print_commands(options: Namespace, instance: Instance, made: Plan) -> None:
    """Print what starts the jobs of a plan; for machines with the plan itself."""
    from dovetail.starting import ranks, shell_lines

    found = list(ranks(instance, made))
    if options.json:
        commands = [rank.to_data() for rank in found]
        write_data({"plan": made.to_data(), "commands": commands}, "-")
        return
    print(*shell_lines(found), sep="\n")


def check(options: Namespace) -> int:
    """Verify a plan; 1 if it breaks a rule."""
    from dovetail.instances.checker import check as verify

    instance = _instance(options)
    plan_read = read_plan(options.plan)
    _hint_at_another_instance(instance, plan_read)
    with _about(options.instance):
        report = verify(instance, plan_read, options.objective)
    _show(options, report, "check_view")
    return 0 if report.valid else 1


def _hint_at_another_instance(instance: Instance, plan_read: Plan) -> None:
    """Say on standard error that the files may not belong together, before all that follows."""
    made_for = plan_read.instance
    if made_for not in (None, instance.name):
        told = f"the plan was made for instance {made_for}, this one is {instance.name}"
        print(f"dovetail: {told}: are these the right files?", file=sys.stderr)


def explain(options: Namespace) -> int:
    """Say why a job waits and what would let it start, or why all wait that do."""
    from dovetail.solver.explanations import explain as explained

    instance = _instance(options)
    plan_read = read_plan(options.plan)
    if options.job is None:
        return _explain_waiting(options, instance, plan_read)
    with _about(options.instance):
        story = explained(instance, plan_read, options.job)
    _show(options, story, "explanation_view")
    return 0


def _explain_waiting(options: Namespace, instance: Instance, plan_read: Plan) -> int:
    from dovetail.solver.explanations import explain_waiting
    from dovetail.solver.rounds import unknown_pairs

    with _about(options.instance):
        waiting = explain_waiting(instance, plan_read)
    pairs = unknown_pairs(instance)
    if options.json:
        write_data({"waiting": [row.to_data() for row in waiting], "unknown_pairs": pairs}, "-")
        return 0
    from dovetail import plan_tables

    _print(plan_tables.waiting_view(waiting, pairs))
    return 0


def predict(options: Namespace) -> int:
    """Write the instance with its unknown slowdowns predicted."""
    read = (options.instance, *filter(None, [options.model, options.slowdowns]))
    require_separate(read, options.output)
    predictor = _predictor(options) or "analytic"
    instance = _instance(options)
    filled = _predicted(options, instance, predictor, mixed=options.mixed, sets=options.sets)
    _write_instance(options, filled)
    return 0


def import_gavel(options: Namespace) -> int:
    """Write an instance of Gavel's measurements."""
    from dovetail.instances.importers.gavel import import_gavel as read

    made = read(
        options.file,
        options.device,
        options.gpus,
        trace=options.trace,
        at_s=options.at,
        gangs_as_single=options.gangs_as_single,
        gpus_per_node=options.gpus_per_node,
    )
    _write_instance(options, made)
    return 0


def import_lucid(options: Namespace) -> int:
    """Write an instance of Lucid's measurements."""
    from dovetail.instances.importers.lucid import import_lucid as read

    made = read(options.file, options.gpus, gpus_per_node=options.gpus_per_node)
    _write_instance(options, made)
    return 0


def import_pairs(options: Namespace) -> int:
    """Write an instance of a table of pairs."""
    from dovetail.instances.importers.pairs import import_pairs as read

    made = read(
        options.file, options.gpus, device=options.device, gpus_per_node=options.gpus_per_node
    )
    for note in made.notes:
        print(f"dovetail: {source_name(options.file)}: {note}", file=sys.stderr)
    _write_instance(options, made.instance)
    return 0


def import_slurm(options: Namespace) -> int:
    """Write an instance of a cluster under Slurm; what is not in it is told."""
    from dovetail.instances.importers.slurm import import_slurm as read

    made = read(
        dict(options.gpu_memory),
        jobs=options.jobs,
        nodes=options.nodes,
        topology=options.topology,
        partition=options.partition,
        constraint=options.constraint,
    )
    if made.left_out:
        print(f"dovetail: left out: {'; '.join(made.left_out)}", file=sys.stderr)
    _write_instance(options, made.instance)
    return 0


def dataset_instance(options: Namespace) -> int:
    """Write an instance of what a data set knows of one GPU model."""
    from dovetail.instances.datasets import read_dataset

    data = read_dataset(options.data)
    with _about(options.data):
        made = data.instance(
            options.gpu_model,
            options.gpus,
            memory_mib=options.memory_mib,
            gpus_per_node=options.gpus_per_node,
        )
        if options.memory_confidence is not None:
            from dovetail.predictors.memory import with_memory

            made = with_memory(made, data, options.gpu_model, options.memory_confidence)
        if options.sub_batches:
            from dovetail.predictors.iteration_time import with_sub_batches

            made = with_sub_batches(made, data, options.gpu_model)
    _write_instance(options, made)
    return 0


def generate(options: Namespace) -> int:
    """Write a synthetic instance."""
    from dovetail.instances.generate import generate as made

    _write_instance(
        options,
        made(
            options.jobs,
            seed=options.seed,
            gpus=options.gpus,
            workloads=options.workloads,
            gangs=not options.no_gangs,
            gang_sharing=options.gang_sharing,
            running=options.running,
        ),
    )
    return 0


def library(options: Namespace) -> int:
    """List the shipped instances, or write one of them."""
    from dovetail.instances import library as shipped

    if options.name:
        _write_instance(options, shipped.load(options.name))
        return 0
    entries = shipped.manifest()
    if options.json:
        write_data({name: entry.to_data() for name, entry in entries.items()}, "-")
        return 0
    width = max(map(len, entries))
    for name, entry in entries.items():
        print(f"{name:<{width}}  {entry.title}")
    return 0


def _instance(options: Namespace) -> Instance:
    """Return the instance of the options, with the pairs of ``--slowdowns``."""
    instance = instance_named(options.instance)
    if options.slowdowns is None:
        return instance
    from dovetail.instances.importers.merging import with_pairs

    merged = with_pairs(instance, options.slowdowns)
    for note in merged.notes:
        print(f"dovetail: {source_name(options.slowdowns)}: {note}", file=sys.stderr)
    return merged.instance


def instance_named(source: str) -> Instance:
    """Return an instance from a file, or a shipped one (``library:NAME``)."""
    if not source.startswith(_LIBRARY):
        return read_instance(source)
    from dovetail.instances import library as shipped

    return shipped.load(source.removeprefix(_LIBRARY))


@contextmanager
def _about(source: str) -> Iterator[None]:
    """Name the file in errors of those who saw only the record made from it."""
    try:
        yield
    except InputError as error:
        raise error if error.source else error.at(source_name(source)) from None


def _predictor(options: Namespace) -> str | Predictor | None:
    """Return the predictor of the options, None where they name none."""
    if options.model is None:
        for option, value in (("--confidence", options.confidence), ("--as", options.stand_ins)):
            if value not in (None, []):
                raise InputError(f"{option} needs --model")
        return cast("str | None", options.predictor)
    from dovetail.predictors.model_file import load_model

    return load_model(options.model).standing_in(dict(options.stand_ins))


def _predicted(
    options: Namespace,
    instance: Instance,
    predictor: str | Predictor,
    *,
    mixed: bool = False,
    sets: bool = False,
) -> Instance:
    """Fill in what is unknown, and say on standard error what had to stay so."""
    from dovetail.predictors import predict as filled

    try:
        made = filled(instance, predictor, mixed=mixed, sets=sets, confidence=options.confidence)
    except InputError as error:
        # What a confidence may be is a matter of the model, everything else of the instance.
        about = options.model if error.path == "confidence" else options.instance
        raise error.at(source_name(about)) from None
    for unknown in _unknown(instance, predictor, mixed, options.confidence):
        print(f"dovetail: {unknown} stay unknown", file=sys.stderr)
    return made


def _unknown(
    instance: Instance, predictor: str | Predictor, mixed: bool, confidence: float | None
) -> Iterator[str]:
    """Yield what the predictor could not predict, workloads up to ten by name."""
    from dovetail.predictors import missing, unanswered, unsupported

    lacking = missing(instance, predictor)
    for workload, metrics in islice(lacking.items(), _MOST_TOLD):
        yield f"{workload} has no {', '.join(metrics)}: its pairs"
    if len(lacking) > _MOST_TOLD:
        yield f"{len(lacking) - _MOST_TOLD} more workloads lack something: their pairs"
    splits = unanswered(instance, predictor, mixed=mixed)
    if splits:
        shares = ", ".join("/".join(str(p) if p else "no cap" for p in split) for split in splits)
        yield f"the model was not fitted on pairs at {shares}: these"
    limits = unsupported(instance, predictor, confidence)
    if limits:
        kinds = ", ".join(
            f"{kind} {math.floor(most * 1e4) / 1e4:g}" for kind, most in limits.items()
        )
        yield f"the measurements support a confidence of at most: {kinds}: pairs of these"


def _write_instance(options: Namespace, instance: Instance) -> None:
    write_instance(instance, options.output)
    if options.output == "-":
        return
    summary = {
        "name": instance.name,
        "jobs": len(instance.jobs),
        "gpus": len(instance.places),
        "workloads": len(instance.workloads),
        "slowdowns": len(instance.slowdowns),
        "written_to": options.output,
    }
    if options.json:
        write_data(summary, "-")
    else:
        print(_sentence(summary))


def _sentence(summary: Mapping[str, object]) -> str:
    things = {"jobs": "job", "gpus": "GPU", "workloads": "workload", "slowdowns": "slowdown"}
    listed = ", ".join(
        f"{summary[key]} {thing}{'' if summary[key] == 1 else 's'}" for key, thing in things.items()
    )
    return f"{summary['name']}: {listed} -> {summary['written_to']}"


def _show(options: Namespace, record: Record, view: str) -> None:
    """Print a record for machines or, through the named view, for people."""
    if options.json:
        write_data(record.to_data(), "-")
        return
    from dovetail import plan_tables

    _print(getattr(plan_tables, view)(record))


def _print(view: RenderableType) -> None:
    from dovetail.tables import console

    console().print(view)
