"""Stops by the policy in the service: for whom, whose, and what their owners are told."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs.events import Placed, StopDecided
from dovetail.executor.jobs.journal import read_events
from dovetail.executor.jobs.states import JobState
from tests.executor.live.test_replayed_day import _known
from tests.executor.live.test_service import spec
from tests.executor.live.virtual import served
from tests.executor.simulation.worlds import world


def _events(directory, kind):
    return [entry.event for entry in read_events(directory) if isinstance(entry.event, kind)]


def _served(directory, *submissions, **options):
    view = world(gpus=1)
    named = view.replace(
        workloads={k: w.replace(throughput={100: 1.0}) for k, w in view.workloads.items()}
    )
    due = [
        (at_s, spec(work_s, workload=name, estimate_s=work_s, memory_mib=1024.0, **fields))
        for at_s, work_s, name, fields in submissions
    ]
    return served(directory, named, *_known(named), due, sample_s=600.0, **options)


@pytest.mark.parametrize(("checkpoint_s", "finish_s"), [(0.0, 20100.0), (600.0, 20500.0)])
def test_a_job_with_checkpoints_is_stopped_for_a_short_one_and_told(
    tmp_path, checkpoint_s, finish_s
):
    long, short = (0.0, 20000.0, "a", {"checkpoint_s": checkpoint_s}), (1000.0, 100.0, "b", {})
    machine, began_s = _served(tmp_path, long, short)
    (stop,) = _events(tmp_path, StopDecided)
    assert (stop.run, stop.then) == ("j1.1", "wait")
    assert stop.reason == "the policy gives its devices to j2"
    assert stop.at_s - began_s == pytest.approx(1000.0, abs=1)
    assert stop.reason in [step.why for step in machine.jobs["j1"].history]
    assert [event.run.id for event in _events(tmp_path, Placed)] == ["j1.1", "j2.1", "j1.2"]
    assert {job.state for job in machine.jobs.values()} == {JobState.FINISHED}
    # The simulated pool resumes at once, from the end or from the checkpoint after 600 s.
    assert machine.jobs["j1"].since_s - began_s == pytest.approx(finish_s, abs=1)


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, "dovetail"),
        ({"checkpoint_s": 0.0, "requeue": False}, "dovetail"),
        ({"checkpoint_s": 0.0, "gsla": 1.0}, "dovetail"),
        ({"checkpoint_s": 0.0}, "dovetail:preempt=false"),
    ],
)
def test_others_run_to_their_end(tmp_path, fields, policy):
    long, short = (0.0, 20000.0, "a", fields), (1000.0, 100.0, "b", {})
    _served(tmp_path, long, short, policy=policy)
    assert _events(tmp_path, StopDecided) == []


def test_an_owner_allows_stops_in_shorter_intervals(tmp_path):
    def stops_s(directory, **fields):
        directory.mkdir()
        long = (0.0, 20000.0, "a", {"checkpoint_s": 0.0, **fields})
        shorts = [(at_s, 100.0, "b", {}) for at_s in (1000.0, 2500.0)]
        _, began_s = _served(directory, long, *shorts)
        return [round(event.at_s - began_s, -1) for event in _events(directory, StopDecided)]

    assert stops_s(tmp_path / "hour") == [1000, 4600]
    assert stops_s(tmp_path / "shorter", stops_apart_s=1200.0) == [1000, 2500]
