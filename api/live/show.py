"""``dovetail show``: everything about a job, or about the service."""

from __future__ import annotations

import itertools
import os
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dovetail.live.printing import print_view
from dovetail.toolkit.commands import Command, argument
from dovetail.toolkit.tables import TableColumn, fact_lines, stacked, table, text_rows
from dovetail.toolkit.wording import (
    NO_FIGURE,
    figure,
    gsla,
    lasting,
    number,
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
        why = client.explain(job.id) if job.state in QUEUED else ""
    # Unlike Path.exists, this is False if the folder may not be entered.
    log = job.log if os.path.exists(job.log) else ""
    print_view(options, job, lambda: job_view(job, service.now_s, why, log))
    return 0


def job_view(job: JobView, now_s: float, explanation: str, log: str = "") -> RenderableType:
    """Return everything about a job, with the path of its log if it is on this machine."""
    from dovetail.executor.jobs.states import OVER

    return stacked(
        fact_lines(*_facts(job, now_s, log)),
        *(("", _ranks(job)) if job.gpus and job.state not in OVER else ()),
        *(("", explanation) if explanation else ()),
        "",
        text_rows((clock_time(s.at_s), s.state.value, _reason(s)) for s in job.history),
    )


def _facts(job: JobView, now_s: float, log: str) -> Iterator[tuple[str, str]]:
    import shlex

    from dovetail.live.tables import job_name

    yield job.id, job_name(job) or NO_FIGURE
    lasted = f"{job.state.value} for {lasting(now_s - job.since_s)}"
    yield "state", f"{lasted}: {job.why}" if job.why != job.state.value else lasted
    if job.waiting_for:
        yield "waits for", job.waiting_for
    yield "user", f"{job.owner} ({job.uid})"
    yield "command", printable(shlex.join(job.command)) or _NOT_SHOWN
    if job.cwd:
        yield "folder", printable(job.cwd)
    yield "workload", job.workload or _NOT_SHOWN
    yield "workers", f"{job.workers}, {job.priority}" + (f", nice {job.nice}" if job.nice else "")
    yield "gSLA", gsla(job.gsla, job.priority)
    if job.isolation is not None:
        yield "isolation", "; ".join(_isolation(job))
    yield "limits", _limits(job)
    if job.memory_used_mib is not None:
        yield "memory", f"{job.memory_used_mib:,.0f} MiB at most by one worker so far"
    yield "submitted", clock_time(job.submitted_s)
    if job.started_s is not None:
        line = f", as run {job.run}" if job.run else ""
        yield "started", f"{clock_time(job.started_s)}{line}, {number(job.runs, 'start')} in all"
    if job.ended_s is not None:
        yield "ended", clock_time(job.ended_s)
    if any(status is not None for status in job.statuses):
        yield "exit status", ", ".join(map(_status, job.statuses))
    if job.iterations is not None:
        yield "done", _progress(job)
    if job.slowdown is not None or job.predicted is not None:
        figures = (("measured", job.slowdown), ("predicted", job.predicted), ("at most", job.upper))
        known = (f"{name} {two_digits(figure)}" for name, figure in figures if figure is not None)
        by = f" ({job.predicted_by})" if job.predicted is not None and job.predicted_by else ""
        yield "slowdown", f"{', '.join(known)}{by}"
    if job.capped:
        yield "SM share", job.capped
    readers = "everybody" if job.public_log else f"{job.owner} and administrators"
    yield "log", f"dovetail logs {job.id}, readable by {readers}"
    for name, pattern in (("output", job.output), ("errors", job.error)):
        if pattern is not None:
            yield name, printable(os.path.join(job.cwd, pattern))
    if log:
        more = f" (of rank 0; {job.workers} ranks)" if job.workers > 1 else ""
        yield "log file", log + more


def _isolation(job: JobView) -> Iterator[str]:
    yield job.isolation or ""
    if job.unisolated:
        yield f"not isolated: {printable(job.unisolated)}"
    counted = [f"{count:,} {name}" for name, count in job.launches.items() if count]
    if counted:
        yield f"launches: {', '.join(counted)}"
    for name, why in itertools.islice(job.escapes.items(), _MOST_ESCAPES):
        yield printable(f"{name}: {why}")
    if len(job.escapes) > _MOST_ESCAPES:
        yield f"{len(job.escapes) - _MOST_ESCAPES} more"


def _limits(job: JobView) -> str:
    most = "no walltime" if job.walltime_s is None else f"walltime {lasting(job.walltime_s)}"
    memory = "" if job.memory_mib is None else f", {job.memory_mib:,.0f} MiB a worker"
    retries = "1 retry" if job.retries == 1 else f"{job.retries} retries"
    return f"{most}{memory}, {retries}, grace {lasting(job.grace_s)}{_stops(job)}"


def _stops(job: JobView) -> str:
    """Return whether the policy may stop a job for others."""
    if job.checkpoint_s is None:
        return ""
    every = f"every {lasting(job.checkpoint_s)}" if job.checkpoint_s else "on SIGTERM"
    apart = "" if job.stops_apart_s is None else f" at most every {lasting(job.stops_apart_s)}"
    return f"; checkpoint {every}, may be stopped for other jobs{apart}"


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


def _reason(step: StepView) -> str:
    """Return why a job entered a state; empty if that says no more than the state."""
    return "" if step.why == step.state.value else step.why


def clock_time(at_s: float) -> str:
    """Return a moment in this machine's time zone."""
    from datetime import datetime

    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Return another user's text without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
