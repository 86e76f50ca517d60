"""A day of jobs, or a part of it, is decided alike in live mode and in the simulator."""

from __future__ import annotations

import math
import random

import pytest

from dovetail.executor.jobs.journal import read_events
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.rounds import deciding
from dovetail.executor.simulation import simulate
from dovetail.instances.datasets import Measurement, SoloProfile
from dovetail.instances.generate import generate
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import policy_named
from tests.executor.live.test_service import ME, spec
from tests.executor.live.virtual import served

EVERY_S = 576.0
"""Seconds between two arrivals; a whole day has 150."""

MODEL = "V100"
ALIKE_S = 0.01
POLICY = "dovetail:time_limit_s=60,preempt=false"


def _view(most):
    made = generate(1, seed=3, gpus=8, workloads=5, shares=(), gang_sharing="partial")
    # A live job's memory is rounded up to so much.
    workloads = {
        name: each.replace(memory_mib=64 * math.ceil(each.memory_mib / 64))
        for name, each in made.workloads.items()
    }
    return made.replace(
        workloads=workloads,
        jobs=(),
        # Three without caps share live only where the owner allows it.
        cluster=made.cluster.replace(max_jobs_per_gpu=most, uncapped=True),
    )


def _known(view):
    """Return the records of a repository with the whole truth."""
    profiles = [
        SoloProfile(
            workload=f"{ME.name}/{name}",
            gpu_model=MODEL,
            workers=workers,
            metrics=workload.metrics,
            throughput=workload.throughput[100],
            power_w=workload.power_w,
            memory_mib=workload.memory_mib + view.cluster.per_process_mib,
        )
        for name, workload in view.workloads.items()
        for workers in (1, 2, 4)
    ]
    measurements = [
        Measurement(
            workloads=tuple(f"{ME.name}/{name}" for name in entry.workloads),
            gpu_model=MODEL,
            slowdown=entry.slowdown,
        )
        for entry in view.slowdowns
        if entry.pair is not None
    ]
    return profiles, measurements


@pytest.mark.parametrize(
    ("most", "count"),
    [
        (2, 60),
        (3, 40),
        pytest.param(2, 150, marks=pytest.mark.slow),
        pytest.param(3, 150, marks=pytest.mark.slow),
    ],
)
def test_a_day_is_decided_alike_live_and_simulated(tmp_path, monkeypatch, most, count):
    # Decisions take no time on this clock, so there is nothing to rest from.
    monkeypatch.setattr(deciding, "REST", 0.0)
    view = _view(most)
    draw = random.Random(1)
    jobs = [
        TraceJob(
            id=f"j{k}",
            arrival_s=at_s,
            workers=draw.choice([1, 1, 1, 2, 4]),
            duration_s=draw.uniform(600, 7200),
            workload=draw.choice(list(view.workloads)),
            # With weights of their own no two starts are worth the same.
            weight=draw.uniform(0.5, 2),
        )
        for k, at_s in enumerate(
            sorted(draw.uniform(0, count * EVERY_S) for _ in range(count)), start=1
        )
    ]
    history = simulate(Trace.of("day", jobs), view, policy_named(POLICY))
    submissions = [
        (
            job.arrival_s,
            spec(
                job.duration_s,
                workload=job.workload,
                workers=job.workers,
                estimate_s=job.duration_s,
                weight=job.weight,
                memory_mib=view.workloads[job.workload].memory_mib,
            ),
        )
        for job in jobs
    ]
    # Nothing is measured: the simulator's policy learns nothing that it does not know either.
    watching = WatchOptions(iterations=10**9, profile_most_s=1e9)
    machine, began_s = served(
        tmp_path,
        view,
        *_known(view),
        submissions,
        policy=POLICY,
        watching=watching,
        sample_s=600.0,
    )
    assert {job.state for job in machine.jobs.values()} == {JobState.FINISHED}
    live = _as_of_live(tmp_path, machine, began_s)
    simulated = _as_simulated(history, jobs)
    assert live.keys() == simulated.keys()
    for job, (start_s, end_s, co_runners) in simulated.items():
        assert live[job][:2] == pytest.approx((start_s, end_s), abs=ALIKE_S), job
        assert live[job][2] == co_runners, job
    assert sum(len(co_runners) for _, _, co_runners in live.values()) > count / 2


def _as_of_live(directory, machine, began_s):
    """Return the start, the end and the co-runners of each job."""
    placed = [entry.event for entry in read_events(directory) if entry.event.kind == "placed"]
    spans = [
        (event.run.job, event.at_s, machine.jobs[event.run.job].since_s, seats)
        for event in placed
        for seats in [tuple(seat.gpu for seat in event.run.seats)]
    ]
    return _companies([(job, a - began_s, b - began_s, seats) for job, a, b, seats in spans])


def _as_simulated(history, jobs):
    return _companies(
        [(jobs[stay.job].id, stay.start_s, stay.end_s, stay.gpus) for stay in history.stays]
    )


def _companies(spans):
    return {
        job: (
            start_s,
            end_s,
            {
                other
                for other, from_s, until_s, theirs in spans
                if other != job
                and set(gpus) & set(theirs)
                and min(end_s, until_s) - max(start_s, from_s) > ALIKE_S
            },
        )
        for job, start_s, end_s, gpus in spans
    }
