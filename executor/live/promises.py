"""Whether the promise of a job, its gSLA, is kept: defined once, for all that shows it."""

from __future__ import annotations

import math
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
        The measured slowdown is at most the gSLA, and so is its upper bound. For latency-critical
        jobs: the measured p99 latency is at most the promised one.
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

    The gSLA of a latency-critical job limits its p99 latency instead, and predicted slowdowns say
    nothing about that. A job that is over is judged by its last measurement only.
    """
    margin = promise_margin(job)
    if job.gsla is None and margin is None:
        return Promise.NONE
    if margin is not None and margin < 1:
        return Promise.BROKEN
    slowdowns = job.state not in OVER and job.priority != "latency"
    expected = (job.predicted, job.upper) if slowdowns else ()
    if any(figure is not None and figure > (job.gsla or math.inf) for figure in expected):
        return Promise.AT_RISK
    if margin is None:
        return Promise.UNMEASURED
    # A job that runs alone, or is over, cannot be slowed further.
    slowed = job.state not in OVER and any(job.co_runners)
    return Promise.AT_RISK if slowed and margin < NEAR else Promise.KEPT


def promise_margin(job: JobView) -> float | None:
    """Return gSLA / measured slowdown of a job: below 1, the promise is broken.

    For latency-critical jobs it is promised / measured p99 latency. None without a promise or a
    measurement.
    """
    if job.priority == "latency":
        if job.p99_promised_s is None or not job.p99_s:
            return None
        return job.p99_promised_s / job.p99_s
    if job.gsla is None or not job.slowdown:
        return None
    return job.gsla / job.slowdown
