"""``dovetail pause`` and ``dovetail resume``: stop processes where they are; continue them."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.live.choosing import CHOSEN, order_jobs
from dovetail.toolkit.commands import Command

PAUSE: Final = Command(
    "pause", "Stop the processes of jobs where they are.", "dovetail.live.pause:pause", CHOSEN
)


RESUME: Final = Command("resume", "Continue paused jobs.", "dovetail.live.pause:resume", CHOSEN)


def pause(options: Namespace) -> int:
    """Stop the processes of running jobs where they are."""
    from dovetail.executor.jobs.states import JobState
    from dovetail.live.client import Client

    runs = (JobState.PROFILING, JobState.RUNNING)
    return order_jobs(options, Client.pause, lambda job: job.state in runs)


def resume(options: Namespace) -> int:
    """Continue the processes of paused jobs."""
    from dovetail.executor.jobs.states import JobState
    from dovetail.live.client import Client

    return order_jobs(options, Client.resume, lambda job: job.state is JobState.PAUSED)
