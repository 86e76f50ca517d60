"""``dovetail top``: the service, its devices and its jobs as they change."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dovetail.live.printing import write_json
from dovetail.toolkit.commands import Command, duration, option
from dovetail.toolkit.tables import stacked

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.live.views import JobView, ServiceView
    from dovetail.live.client import Client


def _pause(text: str) -> float:
    time_s = duration(text)
    if not 0.1 <= time_s <= 86_400:
        raise ArgumentTypeError(f"must be >= 0.1 s and <= 1d, got {text!r}")
    return time_s


TOP: Final = Command(
    "top",
    "Show the service, its devices and its jobs as they change.",
    "dovetail.live.top:top",
    (
        option("--every TIME", "time between refreshes", _pause, "2s"),
        option("--once", "print it once"),
    ),
)


def top(options: Namespace) -> int:
    """Show the service, its devices and its jobs; on a terminal, keep refreshing them."""
    from dovetail.live.client import Client
    from dovetail.toolkit.tables import console

    screen = console()
    with Client() as client:
        if options.json:
            write_json({"service": client.service(), "jobs": client.jobs()})
        elif options.once or not screen.is_terminal:
            screen.print(dashboard(client.service(), client.jobs(), _most_jobs(10_000)))
        else:
            _watch(client, options.every)
    return 0


def _watch(client: Client, every_s: float) -> None:
    """Redraw until the user ends it."""
    from rich.live import Live
    from rich.text import Text

    from dovetail.live.places import NoServiceError
    from dovetail.live.tables import device_lines
    from dovetail.toolkit.tables import console

    screen = console()
    try:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            while True:
                height = screen.size.height
                try:
                    service = client.service()
                    most = _most_jobs(height - device_lines(service.devices))
                    view = dashboard(service, client.jobs(), most)
                except NoServiceError as error:
                    # It may be being restarted: its jobs continue.
                    view = Text(str(error))
                live.update(view, refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _most_jobs(lines: int) -> int:
    """Return how many jobs fit on a screen of ``lines`` lines."""
    heads = 16
    return max(lines - heads, 3)


def dashboard(service: ServiceView, jobs: Sequence[JobView], most: int) -> RenderableType:
    """Return the service, its devices and at most ``most`` of its jobs."""
    from dovetail.executor.jobs.states import QUEUED
    from dovetail.live.tables import job_table, more_line, service_view, waiting_lines

    running = [job for job in jobs if job.state not in QUEUED]
    return stacked(
        service_view(service),
        "",
        job_table(running[:most], service.now_s) if running else "no job runs",
        more_line(len(running) - most, "more holding devices"),
        *waiting_lines(jobs, max(most - len(running), 3)),
    )
