"""Whether the promise of a job, its gSLA, is kept: defined once, for all that shows it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dovetail.executor.jobs.states import OVER
from dovetail.executor.live.views import JobView

NEAR: Final = 1.03
"""A promise with a margin below this is at risk: rates are measured to a few per cent."""


class Promise(StrEnum):
    """What is known about the promise of a job.

    Attributes
    ----------
    KEPT
        The measured slowdown is at most the gSLA, and so is its upper bound.
    AT_RISK
        The gSLA is not broken, but the measured slowdown is within ``NEAR`` of it, or the predicted
        one or the upper bound is above it.
    BROKEN
        The measured slowdown is above the gSLA.
    UNMEASURED
        There is a gSLA, and nothing was measured that it applies to.
    NONE
        There is no gSLA.
    """

    KEPT = "kept"
    AT_RISK = "at risk"
    BROKEN = "broken"
    UNMEASURED = "not measured"
    NONE = "not promised"


def promise_of(job: JobView) -> Promise:
    """Return what is known about the promise of a job.

    The gSLA of a latency-critical job limits its p99 latency, which a view does not have: that
    promise is not measured here. A job that is over is judged by its last measurement only.
    """
    if job.gsla is None:
        return Promise.NONE
    if job.priority == "latency":
        return Promise.UNMEASURED
    margin = promise_margin(job)
    if margin is not None and margin < 1:
        return Promise.BROKEN
    expected = () if job.state in OVER else (job.predicted, job.upper)
    if any(figure is not None and figure > job.gsla for figure in expected):
        return Promise.AT_RISK
    if margin is None:
        return Promise.UNMEASURED
    # A job that runs alone, or is over, cannot be slowed further.
    slowed = job.state not in OVER and any(job.co_runners)
    return Promise.AT_RISK if slowed and margin < NEAR else Promise.KEPT


def promise_margin(job: JobView) -> float | None:
    """Return gSLA / measured slowdown of a job: below 1, the promise is broken.

    None without a gSLA or a measured slowdown, and for latency-critical jobs (``promise_of``).
    """
    if job.gsla is None or not job.slowdown or job.priority == "latency":
        return None
    return job.gsla / job.slowdown
