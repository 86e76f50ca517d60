"""``dovetail queue``: the jobs of the live service."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dovetail.live.printing import print_view
from dovetail.toolkit.commands import Command, duration, one_of, option, whole
from dovetail.toolkit.tables import stacked

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.live.views import JobView, ServiceView


def _any_state(text: str) -> str:
    from dovetail.executor.jobs.states import JobState

    return one_of([state.value for state in JobState], text)


QUEUE: Final = Command(
    "queue",
    "List the jobs of the live service.",
    "dovetail.live.queue:queue",
    (
        option("--all", "also jobs that are over"),
        option("--user NAME", "jobs of this user"),
        option("--name NAME", "jobs of this name"),
        option("--state STATE", "jobs in this state: failed, waiting ...", _any_state),
        option("--since TIME", "jobs that ended within this time: 90, 2h, 1d", duration),
        option("--limit N", "the last N of them", whole(0)),
        option("--before JOB", "jobs submitted before this one: the previous page"),
    ),
)


MOST_JOBS: Final = 200
_MOST_WAITING: Final = 20
"""Most reasons for waiting, each with its jobs."""

_TOLD: Final = ("measuring", "waiting", "failed", "lacking")
"""States of the measuring of shares that a list of jobs tells."""


def queue(options: Namespace) -> int:
    """List the jobs that are not over, or all jobs, as options select."""
    from dovetail.executor.live.views import Chosen
    from dovetail.live.client import Client

    chosen = Chosen(
        user=options.user,
        name=options.name,
        state=options.state,
        within_s=options.since,
        before=options.before,
        limit=options.limit,
    )
    with Client() as client:
        found = client.jobs(options.all, chosen)
        service = client.service()
    print_view(options, found, lambda: _view(found, service))
    return 0


def _view(jobs: Sequence[JobView], service: ServiceView) -> RenderableType:
    return stacked(
        queue_view(jobs, service.now_s), capped_line(jobs) or None, evidence_line(service) or None
    )


def queue_view(jobs: Sequence[JobView], now_s: float) -> RenderableType:
    """Return the first jobs as a table, and below it the reasons why jobs wait."""
    from dovetail.live.tables import job_table, more_line, waiting_lines

    if not jobs:
        return "no jobs"
    return stacked(
        job_table(jobs[:MOST_JOBS], now_s),
        more_line(len(jobs) - MOST_JOBS, "more jobs"),
        *waiting_lines(jobs, _MOST_WAITING),
    )


def capped_line(jobs: Sequence[JobView]) -> str:
    """Return which jobs have an SM share because they never ran without; empty if none has."""
    from dovetail.live.tables import in_ranges

    capped = [job.id for job in jobs if job.capped]
    verb = "has an SM share" if len(capped) == 1 else "have SM shares"
    why = "never measured without beside the co-runners (dovetail show JOB)"
    return f"{in_ranges(capped)} {verb}: {why}" if capped else ""


def evidence_line(service: ServiceView) -> str:
    """Return what users should know about shares that are not measured; empty if nothing."""
    told = service.evidence
    return f"shares: {told.text}" if told is not None and told.state in _TOLD else ""
