"""``dovetail show``: everything about a job, or about the service."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dovetail.live.job_words import memory_limit, name_of, p99_text, service_facts
from dovetail.live.printing import print_view
from dovetail.toolkit.commands import Command, argument
from dovetail.toolkit.tables import TableColumn, fact_lines, stacked, table, text_rows
from dovetail.toolkit.wording import (
    NO_FIGURE,
    figure,
    gsla,
    lasting,
    share_text,
    two_digits,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.live.views import JobView, StepView

SHOW: Final = Command(
    "show",
    "Show everything about a job: its state, why, and how it got there.",
    "dovetail.live.show:show",
    (argument("[JOB]", "id of the job (default: show the service)"),),
)


_NOT_SHOWN: Final = "(not shown to others)"
"""Shown in place of another user's command and workload in a private service."""

_MOST_ESCAPES: Final = 5


def show(options: Namespace) -> int:
    """Show everything about a job, or the service if no job is named."""
    from dovetail.executor.jobs.states import QUEUED
    from dovetail.live.client import Client
    from dovetail.live.tables import service_view

    with Client() as client:
        service = client.service()
        if options.job is None:
            print_view(options, service, lambda: service_view(service))
            return 0
        job = client.job(options.job)
        # Its first line is the state, which is shown anyway.
        why = client.explain(job.id).partition("\n")[2] if job.state in QUEUED else ""
    # Unlike Path.exists, this is False if the folder may not be entered.
    log = job.log if os.path.exists(job.log) else ""
    print_view(options, job, lambda: job_view(job, service.now_s, why, log))
    return 0


def job_view(job: JobView, now_s: float, explanation: str, log: str = "") -> RenderableType:
    """Return everything about a job, with the path of its log if it is on this machine."""
    from dovetail.executor.jobs.states import HOLDING

    return stacked(
        fact_lines(*_facts(job, now_s, log)),
        *(("", _ranks(job)) if job.gpus and job.state in HOLDING else ()),
        *(("", explanation) if explanation else ()),
        "",
        text_rows(_history(job.history)),
    )


def _facts(job: JobView, now_s: float, log: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each fact that a reader does not expect anyway, and its text."""
    import shlex

    lasted = f"{job.state.value} for {lasting(now_s - job.since_s)}"
    statuses = any(status is not None for status in job.statuses)
    readers = "everybody" if job.public_log else f"{job.owner} and administrators"
    facts = (
        (job.id, name_of(job) or NO_FIGURE),
        ("state", f"{lasted}: {job.why}" if job.why != job.state.value else lasted),
        ("waits for", job.waiting_for),
        ("user", f"{job.owner} ({job.uid})"),
        ("command", printable(shlex.join(job.command)) or _NOT_SHOWN),
        ("folder", printable(job.cwd)),
        ("workload", job.workload or _NOT_SHOWN),
        ("workers", _workers(job)),
        ("priority", job.priority),
        *((name, printable(text)) for name, text in service_facts(job, now_s)),
        ("p99 latency", p99_text(job)),
        ("nice", str(job.nice or "")),
        ("gSLA", "" if job.gsla is None else gsla(job.gsla, job.priority)),
        ("promise", _promise(job)),
        *_isolation(job),
        ("walltime", _time(job.walltime_s)),
        ("memory limit", _memory_limit(job)),
        ("retries", str(job.retries or "")),
        ("grace", lasting(job.grace_s)),
        ("checkpoint", _checkpoint(job)),
        ("memory", _memory(job)),
        ("submitted", clock_time(job.submitted_s)),
        ("started", "" if job.started_s is None else clock_time(job.started_s)),
        ("run", job.run or ""),
        ("starts", str(job.runs or "")),
        ("ended", "" if job.ended_s is None else clock_time(job.ended_s)),
        ("exit status", ", ".join(map(_status, job.statuses)) if statuses else ""),
        ("done", "" if job.iterations is None else _progress(job)),
        ("slowdown", _slowdown(job)),
        ("SM share", job.capped),
        ("log", f"dovetail logs {job.id}, readable by {readers}"),
        ("log file", log),
        ("output", _path(job, job.output)),
        ("errors", _path(job, job.error)),
    )
    yield from (fact for fact in facts if fact[1])


def _promise(job: JobView) -> str:
    """Return whether the promise of a running job is kept, in the words of the page."""
    from dovetail.executor.jobs.states import HOLDING
    from dovetail.executor.live.promises import Promise, promise_of

    promise = promise_of(job)
    return "" if job.state not in HOLDING or promise is Promise.NONE else promise.value


def _memory_limit(job: JobView) -> str:
    limit = memory_limit(job)
    held = f", held by {printable(job.memory_held_by)}" if job.memory_held_by else ""
    return f"{limit}{held}" if limit else ""


def _isolation(job: JobView) -> Iterator[tuple[str, str]]:
    yield "isolation", job.isolation or ""
    yield "not isolated", printable(job.unisolated)
    yield (
        "launches",
        ", ".join(f"{count:,} {name}" for name, count in job.launches.items() if count),
    )
    escapes = [printable(f"{name}: {why}") for name, why in job.escapes.items()]
    more = len(escapes) - _MOST_ESCAPES
    yield "escapes", "\n".join([*escapes[:_MOST_ESCAPES], *([f"{more} more"] if more > 0 else [])])


def _time(time_s: float | None) -> str:
    return "" if time_s is None else lasting(time_s)


def _workers(job: JobView) -> str:
    if job.workers_per_node is not None:
        return f"{job.workers}, {job.workers_per_node} on each node"
    if job.workers_together is not None:
        return f"{job.workers}, in groups of {job.workers_together} on one node"
    return str(job.workers)


def _checkpoint(job: JobView) -> str:
    """Return when a job writes checkpoints, with which the policy may stop it for others."""
    if job.checkpoint_s is None:
        return ""
    every = f"every {lasting(job.checkpoint_s)}" if job.checkpoint_s else "on SIGTERM"
    apart = (
        "" if job.stops_apart_s is None else f", stopped at most every {_time(job.stops_apart_s)}"
    )
    return f"{every}{apart}"


def _memory(job: JobView) -> str:
    used = job.memory_used_mib
    return "" if used is None else f"{used:,.0f} MiB at most by one worker so far"


def _slowdown(job: JobView) -> str:
    figures = (("measured", job.slowdown), ("predicted", job.predicted), ("at most", job.upper))
    known = (f"{name} {two_digits(figure)}" for name, figure in figures if figure is not None)
    by = f" ({job.predicted_by})" if job.predicted is not None and job.predicted_by else ""
    return f"{', '.join(known)}{by}"


def _path(job: JobView, pattern: str | None) -> str:
    return "" if pattern is None else printable(os.path.join(job.cwd, pattern))


def _status(status: int | None) -> str:
    return NO_FIGURE if status is None else str(status)


def _progress(job: JobView) -> str:
    total = "" if job.total is None else f" of {job.total:,.0f}"
    rate = "" if job.rate is None else f", {figure(job.rate, 3)} a second"
    alone = "" if job.solo_rate is None else f" (alone {figure(job.solo_rate, 3)})"
    return f"{job.iterations:,.0f}{total} iterations{rate}{alone}"


def _ranks(job: JobView) -> RenderableType:
    shares = job.shares or (None,) * len(job.gpus)
    pids = job.pids or (None,) * len(job.gpus)
    others = job.co_runners or ((),) * len(job.gpus)
    rows = (
        (str(rank), gpu, share_text(share), _status(pid), ", ".join(with_whom) or NO_FIGURE)
        for rank, (gpu, share, pid, with_whom) in enumerate(
            zip(job.gpus, shares, pids, others, strict=True)
        )
    )
    heads = ("rank", "device", "SM share", "process", "with")
    return table((TableColumn(head, folds=True) for head in heads), rows, names=2)


def _history(steps: Sequence[StepView]) -> Iterator[tuple[str, str, str]]:
    """Yield when a job entered each state, and why unless that was said before."""
    said = ""
    for step in steps:
        new = step.why not in (step.state.value, said)
        yield clock_time(step.at_s), step.state.value, step.why if new else ""
        said = step.why


def clock_time(at_s: float) -> str:
    """Return a moment in this machine's time zone."""
    from datetime import datetime

    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Return another user's text without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
