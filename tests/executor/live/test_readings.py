"""Readings of finished runs: their progress, and the cost of sharing."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs.events import RankEnded
from dovetail.executor.live.observation import watch
from dovetail.executor.live.observation.watch import NOTHING, RunReading
from tests.executor.live.test_watch import KNOWN, Scene, pair

ALONE = RunReading(iterations=10.0, total=100.0, rate=4.0, solo_rate=4.0, slowdown=1.0)
SHARED = RunReading(
    iterations=40.0, total=100.0, rate=2.0, solo_rate=4.0, slowdown=2.0, predicted=1.5
)


def test_a_slowdown_is_kept_from_when_it_shared():
    kept = ALONE.at_last(NOTHING, shares=False)
    assert kept.slowdown is None
    kept = SHARED.at_last(kept, shares=True)
    # Its co-runner has gone: neither its rate alone nor a window without one says what it cost.
    kept = RunReading(predicted=1.7).at_last(kept, shares=True)
    kept = ALONE._replace(iterations=90.0).at_last(kept, shares=False)
    assert kept == RunReading(iterations=90.0, total=100.0, slowdown=2.0, predicted=1.5)


def finish(scene, job):
    """End a job, with the watch told before, as the service does."""
    ends = [
        RankEnded(at_s=scene.now_s, run=job.run.id, rank=rank, status=0)
        for rank in range(job.spec.workers)
    ]
    scene.watch.note_ends(ends)
    for end in ends:
        scene.story.ended(job, rank=end.rank)


def test_how_far_a_run_came_is_the_last_word_of_its_slowest_rank():
    scene = Scene(*KNOWN)
    job = scene.start("vision", "g0", "g1", "g2", rate=1.0)
    scene.total = 100.0
    scene.live(5)
    scene.done[job.run.id], scene.rates[job.run.id] = [100.0, 0.0, 99.0], [1.0, None, 1.0]
    finish(scene, job)
    assert (scene.reading("j1.1").iterations, scene.reading("j1.1").total) == (99.0, 100.0)


def test_a_run_without_reports_has_none_at_its_end():
    scene = Scene(*KNOWN)
    job = scene.start("vision", "g0", rate=None)
    finish(scene, job)
    assert scene.reading("j1.1") == NOTHING


def test_a_run_that_shared_is_over_with_its_slowdown():
    scene = Scene(*KNOWN)
    first, _ = pair(scene)
    scene.live(60)
    finish(scene, first)
    scene.live(60)
    found = scene.reading("j1.1")
    assert (found.rate, found.slowdown) == (None, pytest.approx(1.25))


def test_those_noted_longest_ago_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(watch, "MOST", 2)
    scene = Scene(*KNOWN)
    jobs = [scene.start(f"w{k}", f"g{k}", rate=1.0) for k in range(3)]
    for job in (jobs[1], jobs[0], jobs[2]):
        finish(scene, job)
    assert [scene.reading(f"j{k}.1") == NOTHING for k in (1, 2, 3)] == [False, True, False]
