"""The promise of a job, with figures written out by hand."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.promises import Promise, promise_margin, promise_of
from dovetail.executor.live.views import JobView

SHARED = (("j2",),)


def view(state=JobState.RUNNING, **known):
    usual = {"priority": "normal", "co_runners": SHARED, "gsla": 1.5, **known}
    return JobView(
        id="j1",
        owner="me",
        uid=1,
        command=("train",),
        workload="w",
        workers=1,
        state=state,
        why="",
        submitted_s=0.0,
        since_s=0.0,
        **usual,
    )


@pytest.mark.parametrize(
    ("known", "promise", "margin"),
    [
        ({"gsla": None, "slowdown": 9.0}, Promise.NONE, None),
        ({}, Promise.UNMEASURED, None),
        ({"predicted": 1.4, "upper": 1.5}, Promise.UNMEASURED, None),
        ({"predicted": 1.4, "upper": 1.51}, Promise.AT_RISK, None),
        ({"predicted": 1.6}, Promise.AT_RISK, None),
        ({"slowdown": 1.25}, Promise.KEPT, 1.2),
        ({"slowdown": 1.25, "upper": 1.6}, Promise.AT_RISK, 1.2),
        ({"slowdown": 1.48}, Promise.AT_RISK, 1.5 / 1.48),
        ({"slowdown": 1.5}, Promise.AT_RISK, 1.0),
        ({"slowdown": 1.51}, Promise.BROKEN, 1.5 / 1.51),
        ({"slowdown": 2.0, "upper": 1.2}, Promise.BROKEN, 0.75),
        # Alone, no co-runner can slow it further.
        ({"slowdown": 1.0, "gsla": 1.0, "co_runners": ((),)}, Promise.KEPT, 1.0),
        ({"slowdown": 1.2, "predicted": 9.0, "priority": "latency"}, Promise.UNMEASURED, None),
        (
            {"priority": "latency", "p99_s": 0.04, "p99_promised_s": 0.05, "slowdown": 9.0},
            Promise.KEPT,
            1.25,
        ),
        ({"priority": "latency", "p99_s": 0.05, "p99_promised_s": 0.04}, Promise.BROKEN, 0.8),
    ],
)
def test_the_promise_of_a_job(known, promise, margin):
    job = view(**known)
    assert promise_of(job) is promise
    assert promise_margin(job) == pytest.approx(margin)


def test_a_job_that_is_over_is_judged_by_what_was_measured():
    assert promise_of(view(JobState.FINISHED, slowdown=1.49, upper=9.0)) is Promise.KEPT
    assert promise_of(view(JobState.FINISHED, slowdown=1.6)) is Promise.BROKEN
    assert promise_of(view(JobState.CANCELLED, predicted=9.0)) is Promise.UNMEASURED
