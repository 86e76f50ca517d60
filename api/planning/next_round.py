"""``dovetail next``: the instance of the next round, from an instance and its plan."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.predicting.options import PREDICTION
from dovetail.toolkit.commands import INSTANCE, OUTPUT, PLAN_FILE, SLOWDOWNS, Command, option
from dovetail.toolkit.files import named_text, naming, require_separate, with_slowdowns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dovetail.instances.instance import Instance, Job
    from dovetail.instances.plan import Plan

NEXT: Final = Command(
    "next",
    "Write the instance of the next round; jobs that the plan placed run, ended jobs are gone.",
    "dovetail.planning.next_round:next_round",
    (
        INSTANCE,
        PLAN_FILE,
        option("--ended JOB", "a job that has ended since; may be repeated", repeated=True),
        option("--ended-in FILE", "jobs that have ended, one a line; - for standard input"),
        SLOWDOWNS._replace(text="the plan was made with these measured pairs"),
        *PREDICTION,
        OUTPUT,
        option("--overwrite", "overwrite an existing file, but never an input"),
    ),
)

_PLACED = ("state", "gpus", "share", "sub_batch")
"""The fields of a job that a plan changes."""


def next_round(options: Namespace) -> int:
    """Write the instance of the next round; print how many jobs run, wait and have ended."""
    from dovetail.instances.files import parse_instance, read_plan

    lists = filter(None, [options.ended_in, options.slowdowns, options.model])
    require_separate((options.instance, options.plan, *lists), options.output)
    _require_new(options)
    name, text = named_text(options.instance)
    instance = parse_instance(text, name)
    plan = read_plan(options.plan)
    _require_plan_of(_as_planned(options, instance), plan, options)
    ended = [*options.ended, *_listed(options.ended_in)]
    following = instance.after(plan, ended)
    _write(text, name, instance, following, options.output)
    if options.output != "-":
        _tell(options, instance, following)
    return 0


def _require_new(options: Namespace) -> None:
    name = options.output
    if name != "-" and os.path.exists(name) and not options.overwrite:
        raise InputError("exists already: name a new file, or give --overwrite", name)


def _listed(path: str | None) -> list[str]:
    """Return the ids in a file, one per line."""
    from dovetail.instances.reading.contents import read_text

    lines = read_text(path).splitlines() if path else []
    return [line.strip() for line in lines if line.strip()]


def _as_planned(options: Namespace, instance: Instance) -> Instance:
    """Return the instance with the measured and predicted slowdowns that the plan used."""
    from dovetail.predicting.filling import with_predictions

    return with_predictions(options, with_slowdowns(instance, options.slowdowns))


def _require_plan_of(instance: Instance, plan: Plan, options: Namespace) -> None:
    """Refuse a plan of another instance, or one that breaks a rule.

    Waiting jobs that the plan does not name were added to the instance later.
    """
    from dovetail.instances.checking.checker import check

    source = source_name(options.plan)
    if plan.instance not in (None, instance.name):
        rule = f"must be {instance.name!r}, the name of the instance, got {plan.instance!r}"
        raise InputError(rule, "instance", source)
    named = {row.job for row in plan.assignments} | {row.job for row in plan.waiting}
    planned = instance.with_jobs(job for job in instance.jobs if job.running or job.id in named)
    with naming(options.instance):
        report = check(planned, plan)
    if report.valid:
        return
    first, *others = report.violations
    more = f" ({len(others)} more: see dovetail check)" if others else ""
    raise InputError(f"is not a valid plan of {instance.name!r}: {first}{more}", "", source)


def _write(text: str, name: str, before: Instance, after: Instance, output: str) -> None:
    """Write the next instance; from YAML to YAML, keep the comments and order of the file."""
    from dovetail.instances.files import is_yaml, parse_instance, write_instance
    from dovetail.instances.reading.contents import write_text
    from dovetail.instances.reading.edited import edited_jobs

    if not (is_yaml(text, name) and is_yaml(text, output)):
        write_instance(after, output)
        return
    edited = edited_jobs(text, dict(_changes(before, after)))
    if parse_instance(edited, name) != after:
        rule = "the jobs cannot be changed in this file: write JSON (-o FILE.json)"
        raise UnsupportedError(f"{source_name(name)}: {rule}")
    write_text(output, edited)


def _changes(
    before: Instance, after: Instance
) -> Iterator[tuple[str, Mapping[str, object] | None]]:
    """Yield the changed fields of each job, as in its file, or None for a job that has ended."""
    for job in before.jobs:
        now = after.jobs_by_id.get(job.id)
        if now is None:
            yield job.id, None
        elif now != job:
            yield job.id, dict(_placing(job, now))


def _placing(job: Job, now: Job) -> Iterator[tuple[str, object]]:
    old, new = job.to_data(), now.to_data()
    yield from ((name, new.get(name)) for name in _PLACED if old.get(name) != new.get(name))


def _tell(options: Namespace, before: Instance, after: Instance) -> None:
    running = sum(job.running for job in after.jobs)
    counts = {
        "running": running,
        "waiting": len(after.jobs) - running,
        "ended": len(before.jobs) - len(after.jobs),
    }
    if options.json:
        from dovetail.instances.files import write_data

        write_data({"name": after.name, **counts, "written_to": options.output}, "-")
        return
    said = ", ".join(f"{number} {what}" for what, number in counts.items())
    print(f"{after.name}: jobs: {said} -> {options.output}")
