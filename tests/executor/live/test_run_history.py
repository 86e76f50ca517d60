"""Answers of a history about earlier runs, computed by hand."""

from __future__ import annotations

import math

import pytest

from dovetail.executor.jobs.live_jobs import LiveJob, Step
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.policy_view import RunHistory

from .telling import spec


def past_of(*steps, requeue=True):
    history = [Step(at_s, JobState(state), "") for at_s, state in steps]
    live = LiveJob("j1", spec(requeue=requeue), history[-1].state, 1, history)
    return RunHistory.of(live)


TWO_RUNS = (
    (0.0, "submitted"),
    (10.0, "starting"),
    (12.0, "profiling"),
    (20.0, "running"),
    (50.0, "stopping"),
    (55.0, "waiting"),
)


def test_a_job_that_waits_has_had_no_run():
    found = past_of((5.0, "submitted"), (7.0, "waiting"))
    assert (found.held_s, found.done_s, found.waiting_since_s) == (0.0, 0.0, 5.0)
    assert math.isnan(found.started_s)


def test_a_run_that_was_stopped_counts_from_its_first_moment_to_its_end():
    found = past_of(*TWO_RUNS)
    assert (found.held_s, found.last_ran_s, found.done_s) == (45.0, 43.0, 43.0)
    assert found.waiting_since_s == 55.0


def test_nothing_is_left_of_the_runs_of_a_job_that_does_not_resume():
    found = past_of(*TWO_RUNS, requeue=False)
    assert (found.held_s, found.done_s) == (45.0, 0.0)


def test_a_second_run_begins_anew_and_keeps_what_was_done():
    found = past_of(*TWO_RUNS, (60.0, "starting"), (61.0, "running"))
    assert (found.started_s, found.ran_from_s) == (60.0, 61.0)
    assert (found.held_s, found.done_s) == (45.0, 43.0)


def test_a_job_that_is_lost_goes_on_from_where_it_ran():
    found = past_of(*TWO_RUNS[:4], (30.0, "lost"), (40.0, "running"))
    assert found.ran_from_s == 12.0


@pytest.mark.parametrize("end", ["failed", "waiting"])
def test_a_run_that_never_ran_has_held_its_devices_only(end):
    found = past_of((0.0, "submitted"), (10.0, "starting"), (14.0, end))
    assert (found.held_s, found.last_ran_s) == (4.0, 0.0)
