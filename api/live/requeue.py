"""``dovetail requeue``: stop runs, so that jobs wait for devices again."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Final

from dovetail.live.choosing import CHOSEN, order_jobs
from dovetail.toolkit.commands import Command, option

REQUEUE: Final = Command(
    "requeue",
    "Stop the runs of jobs, so that they wait for devices again.",
    "dovetail.live.requeue:requeue",
    (*CHOSEN, option("--hold", "also hold them until dovetail release")),
)


def requeue(options: Namespace) -> int:
    """Stop the runs of jobs, so that they wait for devices again."""
    from dovetail.executor.jobs.states import QUEUED
    from dovetail.live.client import Client

    stop = partial(Client.requeue, hold=options.hold)
    return order_jobs(options, stop, lambda job: job.state not in QUEUED)
