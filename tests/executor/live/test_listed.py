"""Lists of jobs, and that their costs do not grow with jobs that they do not show."""

from __future__ import annotations

import itertools

import pytest

from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.requests.service_api import listed
from dovetail.executor.live.rounds.previews import _everywhere
from dovetail.executor.live.views import Chosen
from tests.executor.live.telling import BOB, Story


@pytest.fixture(scope="module")
def story():
    """Return jobs of two users, some over, running, waiting and barred, in a mixed order."""
    told = Story()
    first = told.submit(owner=BOB)
    for k in range(6):
        job = told.running("g0", owner=BOB) if k % 2 else told.running("g0")
        told.ended(job, status=k % 3)
    told.cancel(told.submit())
    told.running("g1", owner=BOB)
    told.running("g2")
    told.submit()
    told.submit(after=(first.id,))
    return told


def chosen_by_hand(jobs, over, chosen, now_s):
    """Return the ids of the jobs of a list, by its description."""
    found = []
    for job in jobs:
        is_over = job.state in OVER
        if chosen.within_s is not None and not (is_over and job.since_s >= now_s - chosen.within_s):
            continue
        if is_over and not (over or chosen.state or chosen.within_s is not None):
            continue
        if chosen.user is not None and job.spec.owner.name != chosen.user:
            continue
        if chosen.state is not None and job.state.value != chosen.state:
            continue
        if chosen.before is not None and int(job.id[1:]) >= int(chosen.before[1:]):
            continue
        found.append(job.id)
    return found if chosen.limit is None else found[-chosen.limit :]


def test_a_list_has_the_jobs_that_were_asked_for(story):
    jobs = [*story.machine.jobs.values()]
    assert {job.state for job in jobs} >= {*OVER, JobState.RUNNING, JobState.WAITING}
    states = (None, "waiting", "running", "finished", "cancelled")
    for user, state, within_s, before, limit, over in itertools.product(
        (None, "bob"), states, (None, 0.0, 12.0, 1e9), (None, "j7"), (None, 2), (False, True)
    ):
        chosen = Chosen(user, None, state, within_s, before, limit)
        found = listed(story.machine, over, chosen, story.at_s, lambda job: job.spec.name)
        wanted = chosen_by_hand(jobs, over, chosen, story.at_s)
        assert [job.id for job in found] == wanted, (over, chosen)


class Unwalked(dict):
    """Jobs of which each may be looked up, but not all be walked through."""

    def values(self):
        raise AssertionError("all jobs are walked through")

    __iter__ = items = keys = values


def test_lists_do_not_walk_through_what_was_over_long_ago(story, monkeypatch):
    monkeypatch.setattr(story.machine, "jobs", Unwalked(story.machine.jobs))
    for chosen in (Chosen(), Chosen(user="bob", limit=5), Chosen(within_s=40.0)):
        assert listed(story.machine, False, chosen, story.at_s, lambda job: job.spec.name)


def test_what_a_job_lacks_is_said_without_a_look_at_all_others(story, monkeypatch):
    monkeypatch.delattr(type(story.machine), "replicas")
    (waiting,) = [job for job in story.machine.queued.values() if job.spec.owner != BOB]
    assert not _everywhere(story.machine, waiting)
