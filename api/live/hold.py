"""``dovetail hold`` and ``dovetail release``: keep waiting jobs from starting, or let them."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.live.choosing import CHOSEN, order_jobs
from dovetail.toolkit.commands import Command

HOLD: Final = Command(
    "hold",
    "Keep waiting jobs from starting before they are released.",
    "dovetail.live.hold:hold",
    CHOSEN,
)


RELEASE: Final = Command("release", "Let held jobs start.", "dovetail.live.hold:release", CHOSEN)


def hold(options: Namespace) -> int:
    """Keep waiting jobs from starting until they are released."""
    from dovetail.executor.jobs.states import QUEUED
    from dovetail.live.client import Client

    return order_jobs(options, Client.hold, lambda job: job.state in QUEUED and not job.held)


def release(options: Namespace) -> int:
    """Let held jobs start."""
    from dovetail.live.client import Client

    return order_jobs(options, Client.release, lambda job: bool(job.held))
