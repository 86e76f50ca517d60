"""Latency-critical jobs start before all others and are never stopped, whatever the policy is."""

import dataclasses
import itertools
import random

import pytest

from dovetail.executor.simulation.pool import PolicyError
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace
from dovetail.solver.policies import POLICIES, Decision, policy_named
from dovetail.solver.policies.draft import Draft
from tests.executor.simulation.worlds import run, trace, world

PREEMPTING = (
    "gavel",
    "muri",
    "tesserae:threshold_gpu_s=600",
    "tiresias:threshold_gpu_s=600",
    "reactive",
)


def metered(gpus=1, **changes):
    """Return a world in which no pair may share, with the metrics that policies ask for."""
    data = world(gpus=gpus, **changes).to_data()
    for workload in data["workloads"].values():
        workload["metrics"] = {"gpu_util": 0.5, "sm_active": 0.5, "dram_active": 0.5}
    return Instance.from_data(data)


def with_services(jobs, *numbers):
    """Return a trace of which these jobs are latency-critical."""
    made = [
        dataclasses.replace(job, priority="latency", gsla=1.1) if k in numbers else job
        for k, job in enumerate(jobs.jobs)
    ]
    return Trace.of("services", made)


def stays_of(history, job):
    return [stay for stay in history.stays if stay.job == job]


@pytest.mark.parametrize("name", POLICIES)
def test_of_jobs_that_wait_the_service_starts_first(name):
    jobs = trace(*[(0, 1, 3600, "b")] * 5, (0, 1, 86400, "a"), *[(0, 1, 3600, "b")] * 5)
    history = run(with_services(jobs, 5), metered(), policy_named(name))
    (stay,) = stays_of(history, 5)
    assert (stay.start_s, stay.end_s) == (0.0, 86400.0)


@pytest.mark.parametrize("name", POLICIES)
def test_a_service_takes_the_next_idle_gpu(name):
    # Short jobs wait before it comes, and more come while it waits.
    jobs = trace(
        (0, 1, 1000, "b"),
        *[(10, 1, 100, "b")] * 3,
        (20, 1, 5000, "a"),
        *[(30 + k, 1, 50, "b") for k in range(3)],
    )
    history = run(with_services(jobs, 4), metered(), policy_named(name))
    (stay,) = stays_of(history, 4)
    assert stay.start_s <= 1000.0


@pytest.mark.parametrize("name", PREEMPTING)
def test_no_policy_stops_a_service(name):
    jobs = trace((0, 1, 7200, "a"), *[(60 * k, 1, 1800, "b") for k in range(1, 5)])
    history = run(with_services(jobs, 0), metered(), policy_named(name))
    (stay,) = stays_of(history, 0)
    assert (stay.start_s, stay.end_s) == (0.0, 7200.0)
    if name != "reactive":  # it stops those that share alone
        batch = run(jobs, metered(), policy_named(name))
        assert len(stays_of(batch, 0)) > 1


def test_gpus_are_kept_for_a_gang_of_services():
    # Four of four GPUs for a gang; one becomes idle after the other, and jobs wait for each.
    jobs = trace(
        *[(0, 1, 1000 * k, "b") for k in range(1, 5)],
        (10, 4, 500, "a"),
        *[(20, 1, 5000, "b")] * 4,
    )
    where = metered(gpus=4)
    history = run(with_services(jobs, 4), where, policy_named("dovetail"))
    assert stays_of(history, 4)[0].start_s == 4000.0
    assert stays_of(run(jobs, where, policy_named("dovetail")), 4)[0].start_s > 4000.0


@pytest.mark.parametrize("name", POLICIES)
def test_a_gang_of_services_starts_when_the_last_of_its_gpus_is_idle(name):
    jobs = trace(
        *[(0, 1, 1000 * k, "b") for k in range(1, 5)],
        (10, 3, 500, "a"),
        *[(20, 1, 5000, "b")] * 8,
    )
    history = run(with_services(jobs, 4), metered(gpus=4), policy_named(name))
    assert stays_of(history, 4)[0].start_s <= 3000.0


@pytest.mark.parametrize("name", POLICIES)
def test_no_job_joins_where_a_service_waits(name):
    # Jobs that go well together follow one another, so that the GPU would not be idle for hours.
    stream = [(400 * k, 1, 1000, "b") for k in range(50)]
    service = (500, 1, 3600, "a")
    where = metered(slowdowns=[("b", "b", 1.01, 1.01)])
    jobs = trace(*stream[:2], service, *stream[2:])
    history = run(with_services(jobs, 2), where, policy_named(name))
    running = [stay.end_s for stay in history.stays if stay.start_s <= 500 < stay.end_s]
    assert stays_of(history, 2)[0].start_s <= max(running)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_service_waits_no_longer_than_what_runs_when_it_comes(name, seed):
    draw = random.Random(seed)
    batch = [
        (draw.uniform(0, 3600), draw.choice([1, 1, 2]), draw.uniform(60, 1500), draw.choice("bcd"))
        for _ in range(60)
    ]
    services = [(draw.uniform(300, 3000), draw.choice([1, 2]), 9000, "a") for _ in range(3)]
    jobs = sorted([*batch, *services])
    numbers = [k for k, job in enumerate(jobs) if job[3] == "a"]
    pairs = [(x, y, 1.05, 1.05) for x, y in itertools.combinations_with_replacement("bcd", 2)]
    where = metered(gpus=6, slowdowns=pairs, workloads=tuple("abcd"), gang_sharing="partial")
    history = run(with_services(trace(*jobs), *numbers), where, policy_named(name))
    for k in numbers:
        came_s = jobs[k][0]
        ends_s = [
            stay.end_s
            for stay in history.stays
            if stay.start_s <= came_s < stay.end_s and stay.job not in numbers
        ]
        assert stays_of(history, k)[0].start_s <= max([came_s, *ends_s]) + 1e-6


class JoinsAnything:
    """Starts whatever has room, as if nothing was ever reserved."""

    def decide(self, state):
        draft = Draft(state)
        draft.release(state.reserved_gpus)
        for job in state.pending.values():
            if not job.latency and draft.has_room(0, job):
                draft.start(job, (0,))
        return draft.decision()


def test_a_policy_that_knows_no_reservations_cannot_break_one():
    stream = [(400 * k, 1, 1000, "b") for k in range(50)]
    jobs = trace(*stream[:3], (900, 1, 3600, "a"), *stream[3:])
    where = metered(slowdowns=[("b", "b", 1.0, 1.0)])
    history = run(with_services(jobs, 3), where, JoinsAnything())
    assert stays_of(history, 3)[0].start_s == 1400.0


def test_what_is_reserved_for_another_is_not_taken():
    # The first gang is overdue when the service comes: the two GPUs are the gang's.
    jobs = trace((0, 1, 1000, "b"), (0, 1, 2000, "b"), (1, 2, 100, "b"), (1500, 1, 50, "a"))
    policy = policy_named("dovetail:patience_s=100,patience_stretch=0")
    history = run(with_services(jobs, 3), metered(gpus=2), policy)
    assert stays_of(history, 2)[0].start_s == 2000.0


class Stops:
    """Stops whatever runs."""

    def decide(self, state):
        return Decision(stops=tuple(state.running.values()), wake_s=state.now + 10)


def test_the_simulator_refuses_to_stop_a_service():
    jobs = with_services(trace((0, 1, 100, "a")), 0)
    with pytest.raises(PolicyError, match=r"stops 'j0', which is latency-critical"):
        run(jobs, metered(), Stops())
