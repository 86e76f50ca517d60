"""How live jobs and devices are told, in the terminal's tables."""

from __future__ import annotations

from datetime import datetime

from dovetail.executor.live.views import JobView
from dovetail.toolkit.wording import NO_FIGURE, share_text, two_digits

MOST_PLACES = 8
"""Devices of a job that are named one by one where there are many jobs."""


def clock_time(at_s: float) -> str:
    """Return a moment as this machine's clocks show it."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Return a text of somebody else without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def places(job: JobView) -> str:
    """Return the devices of a job with its caps there; of many on several nodes, how many."""
    if not job.gpus:
        return NO_FIGURE
    nodes = {gpu.partition("/")[0] for gpu in job.gpus}
    if len(job.gpus) > MOST_PLACES and len(nodes) > 1:
        return f"{len(job.gpus)} devices of {len(nodes)} nodes"
    shares = job.shares or (None,) * len(job.gpus)
    return ", ".join(
        gpu if share is None else f"{gpu} {share_text(share)}"
        for gpu, share in zip(job.gpus, shares, strict=True)
    )


def beside(job: JobView) -> str:
    """Return with whom a job shares, each once."""
    others = dict.fromkeys(other for device in job.co_runners for other in device)
    return ", ".join(others) or NO_FIGURE


def slowdown(job: JobView) -> str:
    """Return the measured slowdown, and in brackets what was predicted."""
    if job.slowdown is None and job.predicted is None:
        return NO_FIGURE
    predicted = "" if job.predicted is None else f" ({two_digits(job.predicted)})"
    return f"{two_digits(job.slowdown)}{predicted}"


def done(job: JobView) -> str:
    """Return how far a job is: a part of what it has to do, or its iterations."""
    if job.iterations is None:
        return NO_FIGURE
    if job.total:
        return f"{min(job.iterations / job.total, 1):.0%}".replace("%", " %")
    return f"{job.iterations:,.0f} it."
