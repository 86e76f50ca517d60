"""Texts of the page; what users wrote is hostile until it has passed ``printed`` or ``cut``."""

from __future__ import annotations

import time
from typing import Final

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.views import JobView
from dovetail.toolkit.wording import lasting, share_text, two_digits

MOST_NAME: Final = 40
"""Characters of a name in a list."""

MOST_TEXT: Final = 300
"""Characters of a reason, and of a whole name under the pointer."""

_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def printed(text: str, most: int = 10_000) -> str:
    """Return a text with its control and direction characters escaped, cut to ``most``."""
    found = text[: most + 1]
    if not found.isprintable():
        found = "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in found)
    return found if len(found) <= most else found[: most - 1] + _ELLIPSIS


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str, most: int = MOST_TEXT) -> str:
    """Return a text as ``printed``, on one line."""
    return printed(" ".join(text[: 2 * most].split(" ")).replace("\n", " "), most)


def places_of(job: JobView, most: int = 8) -> str:
    """Return the devices of a job, with its share on each."""
    shares = job.shares or (None,) * len(job.gpus)
    named = [
        gpu if share is None else f"{gpu} at {share_text(share)}"
        for gpu, share in zip(job.gpus, shares, strict=True)
    ]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def others_of(job: JobView) -> tuple[str, ...]:
    """Return the co-runners of a job, each once."""
    return tuple(dict.fromkeys(other for device in job.co_runners for other in device))


def slowdown_of(job: JobView) -> str:
    """Return the slowdown of a job: measured, else predicted."""
    if job.slowdown is not None:
        return f"{two_digits(job.slowdown)}\N{MULTIPLICATION SIGN}"
    if job.predicted is not None:
        return f"about {two_digits(job.predicted)}\N{MULTIPLICATION SIGN}"
    return ""


def left_s(job: JobView) -> float | None:
    """Return the seconds until a running job ends at its measured rate; None if unknown."""
    running = job.state in (JobState.RUNNING, JobState.PROFILING)
    if not running or not job.rate or job.total is None or job.iterations is None:
        return None
    return max(job.total - job.iterations, 0.0) / job.rate


def part_done(job: JobView) -> float | None:
    """Return the part of a job's iterations that is done; None if unknown."""
    if job.iterations is None or not job.total:
        return None
    return min(max(job.iterations / job.total, 0.0), 1.0)


def clock(at_s: float) -> str:
    """Return a moment in the time zone of the service's machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at_s))


def hour(at_s: float) -> str:
    """Return hour and minute of a moment."""
    return time.strftime("%H:%M", time.localtime(at_s))


def about(time_s: float) -> str:
    """Return an expected time, in minutes if it is long."""
    return "under a minute" if time_s < 60 else lasting(60 * round(time_s / 60))


def so_far(time_s: float) -> str:
    """Return a time that goes on, in whole minutes: each new text is sent to all viewers."""
    return "under a minute" if time_s < 60 else lasting(time_s // 60 * 60)
