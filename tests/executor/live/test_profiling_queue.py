"""The first job of an unknown workload is measured early, and others are not starved by that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.deciding import ProfilingQueue
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Repository
from dovetail.instances.instance import Instance
from tests.executor.live.test_policy_view import put, world_of
from tests.executor.waiting import wait_until

from .telling import Story
from .test_service import ME, TRUTH, is_in, kinds, service_in, spec
from .test_service_learning import QUICK


def looks_of(story, look_s=300.0, gpus=("g0", "g1", "g2")):
    view = world_of(story)
    return view, ProfilingQueue(story.machine, look_s)


def due(view, looks, story):
    view.renew(story.at_s)
    return [start.job.id for start in looks.due(view.state)]


def story_with(*workloads):
    story = Story()
    story.know("vision")
    return story, [story.submit(workload=name) for name in workloads]


def test_the_first_job_of_each_unknown_workload_goes_first_once():
    story, jobs = story_with("vision", "vision", "vision", "new", "new", "other")
    view, looks = looks_of(story)
    assert due(view, looks, story) == [jobs[3].id]
    put(story, view, jobs[3], "g0")
    assert due(view, looks, story) == [jobs[5].id]
    story.ended(jobs[3], status=1)  # it fails before it is measured
    put(story, view, jobs[5], "g1")
    assert due(view, looks, story) == []
    assert due(view, ProfilingQueue(story.machine, 300.0), story) == []  # after a restart


def test_no_user_goes_first_where_all_have_room():
    story, _ = story_with("vision", "vision", "new")
    assert due(*looks_of(story), story) == []


def test_looks_out_of_turn_take_a_quarter_of_the_time_at_most():
    story, jobs = story_with("vision", "vision", "vision", "a", "b", "c")
    view, looks = looks_of(story)
    view.renew(story.at_s)
    (start,) = looks.due(view.state)
    looks.note(start, view.state)
    began_s = view.state.now
    put(story, view, jobs[3], "g0")
    # One device of three is closed for 300 s: 400 s make that a quarter.
    story.at_s = began_s + 399
    assert due(view, looks, story) == []
    story.at_s = began_s + 401
    assert due(view, looks, story) == [jobs[4].id]


def test_a_gang_that_does_not_fit_does_not_keep_others_back():
    story, _ = story_with("vision", "vision", "vision")
    gang = story.submit(workload="a", workers=3)
    single = story.submit(workload="b")
    view, looks = looks_of(story)
    busy = story.submit(workload="vision")
    view.renew(story.at_s)
    put(story, view, busy, "g0")
    assert due(view, looks, story) == [single.id]
    story.ended(busy)
    assert due(view, looks, story) == [gang.id]


@pytest.mark.parametrize("policy", ["dovetail", "fifo"])
def test_an_unknown_workload_is_measured_while_known_short_jobs_wait(tmp_path, policy):
    pool = SimulatedNode(tmp_path, TRUTH, 20.0)
    watching = replace(QUICK, profile_most_s=0.5)
    with service_in(tmp_path, pool=pool, policy=policy, watching=watching) as service:
        service.api.drain([], True, ME)
        # All of A is believed to take 1 s, and holds both devices.
        service.api.submit([spec(work_s=20, workers=2, estimate_s=1.0)] * 8, ME)
        service.api.submit([spec(work_s=20, workload="B")], ME)
        service.api.drain([], False, ME)
        wait_until(is_in(service, "j9", JobState.FINISHED))
        assert service.api.job("j8").state is not JobState.FINISHED


def test_equal_jobs_on_all_devices_are_profiled_once_and_then_share(tmp_path):
    """Five times as many jobs as devices: all start alone, one profile serves them all."""
    truth = TRUTH.to_data()
    truth["cluster"]["nodes"][0]["gpu_count"] = 16
    truth["cluster"]["uncapped"] = True
    truth["workloads"]["A"]["metrics"] = {"sm_active": 0.1, "dram_active": 0.02}
    truth["slowdowns"] = [{"pair": ["A", "A"], "slowdown": [1.02, 1.02]}]
    pool = SimulatedNode(tmp_path, Instance.from_data(truth), 10.0)
    options = {"watching": QUICK, "sample_s": 0.05, "max_jobs_per_gpu": 5}
    with service_in(tmp_path, pool=pool, **options) as service:
        service.api.submit([spec(work_s=100_000)] * 80, ME)
        wait_until(lambda: service.api.service().jobs == {"running": 80})
        assert {len(device.jobs) for device in service.api.service().devices} == {5}
        assert kinds(tmp_path).count("profiled") == 1
    found = Repository(tmp_path / "repository.db").data_set()
    assert [profile.workload for profile in found.profiles] == ["me/A"]
