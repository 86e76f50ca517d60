"""Stops by Dovetail's own policy: cases computed by hand, and what holds in random worlds."""

import math
from itertools import pairwise

import numpy as np
import pytest

from dovetail.executor.second_opinion import unlawful
from dovetail.executor.simulation import Options
from dovetail.instances.instance import Instance
from dovetail.solver.policies import Decision, Job, Start, policy_named
from dovetail.solver.policies.stops import stoppable_from_s
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.executor.test_second_opinion import state_of
from tests.solver.policies.contract import with_services

LONG = (0, 1, 20000, "a")
"""A job alone on the only GPU of a world in which no two jobs may share."""


def _stops(history):
    return [(stay.job, stay.end_s) for stay in history.stays if stay.ending == "stopped"]


def _run(*jobs, policy="dovetail", where=None, **options):
    made = Options(**options)
    return run(trace(*jobs), where or world(gpus=1), policy_named(policy), made)


@pytest.mark.parametrize(
    ("policy", "restart_s", "finish"),
    [
        # At 100, j0 needs 900 s. If j1 waits, they end 900 s and 1,000 s later; if it goes first,
        # 100 s and 1,060 s later: that gains 740 s for a restart of 60.
        ("dovetail", 60, [1160, 200]),
        ("dovetail:stop_margin=12", 60, [1160, 200]),
        ("dovetail:stop_margin=13", 60, [1000, 1100]),
        ("dovetail:preempt=false", 60, [1000, 1100]),
        # With a restart of 200 s it gains 600 s.
        ("dovetail", 200, [1000, 1100]),
        ("dovetail:stop_margin=2.9", 200, [1300, 200]),
    ],
)
def test_a_stop_must_gain_more_than_it_costs(policy, restart_s, finish):
    jobs = (0, 1, 1000, "a"), (100, 1, 100, "b")
    assert finishes(_run(*jobs, policy=policy, restart_s=restart_s)) == finish


def test_lost_work_counts_as_a_cost():
    # At 1,000, 400 s since the last checkpoint would be lost, and up to 600 as the policy knows.
    jobs, lost = (LONG, (1000, 1, 100, "b")), {"saves_at_stop": False, "checkpoint_s": 600.0}
    assert finishes(_run(*jobs, **lost)) == [1100 + 60 + 19400, 1100]
    assert _stops(_run(*jobs, policy="dovetail:stop_margin=40", **lost)) == []
    assert _stops(_run(*jobs, policy="dovetail:stop_margin=40")) == [(0, 1000.0)]


def test_no_job_is_stopped_twice_within_an_hour():
    jobs = LONG, (1000, 1, 100, "b"), (3000, 1, 100, "b")
    assert _stops(_run(*jobs)) == [(0, 1000.0), (0, 4600.0)]
    longer = _run(*jobs, policy="dovetail:stops_apart_s=7200")
    assert _stops(longer) == [(0, 1000.0), (0, 8200.0)]


def test_owners_allow_stops_in_shorter_intervals():
    job = Job(0, "j0", 0, 1, 1e5, 0.0, rate=1.0, started_s=1100.0, starts=2, checkpoint_s=0.0)
    job.waiting_since_s, job.since_s = 1000.0, 1160.0
    assert stoppable_from_s(job, 1.0, 2000.0) == 4600.0
    job.stops_apart_s = 1200.0
    assert stoppable_from_s(job, 1.0, 2000.0) == 2200.0
    assert stoppable_from_s(job, 1.0, 2000.0, apart_s=1500.0) == 2500.0
    job.checkpoint_s = math.inf
    assert stoppable_from_s(job, 1.0, 2000.0) == math.inf


@pytest.mark.parametrize(("gsla", "stopped_s"), [(1.1, 600.0), (1.5, 120.0), (1.0, None)])
def test_a_gsla_pays_for_the_restart_first(gsla, stopped_s):
    # After t seconds alone, a restart of 60 s keeps the gSLA G from t + 60 <= G t on.
    history = _run((*LONG, gsla), (10, 1, 100, "b"))
    assert _stops(history) == ([] if stopped_s is None else [(0, pytest.approx(stopped_s))])
    assert history.outcomes[0].held_s <= gsla * 20000 * (1 + 1e-9)


def test_a_job_that_has_waited_too_long_in_all_is_not_stopped_again():
    jobs = LONG, (1000, 1, 100, "b"), (6000, 1, 100, "b")
    patient = "dovetail:patience_s={},patience_stretch=0"
    assert len(_stops(_run(*jobs, policy=patient.format(101)))) == 2
    assert len(_stops(_run(*jobs, policy=patient.format(99)))) == 1


def test_neither_services_nor_their_co_runners_are_stopped():
    where = world(gpus=1, slowdowns=[("a", "a", 1.05, 1.05)])
    jobs = with_services(trace(LONG, LONG, (1000, 1, 100, "b")), 0)
    history = run(jobs, where, policy_named("dovetail"))
    assert _stops(history) == []
    assert history.outcomes[0].shared_s > 0


def test_a_pair_is_stopped_together():
    where = world(gpus=1, slowdowns=[("a", "a", 1.1, 1.1)])
    history = _run(LONG, LONG, (1000, 1, 100, "b"), where=where)
    assert _stops(history) == [(0, 1000.0), (1, 1000.0)]
    assert history.outcomes[2].finish_s == 1100.0


def test_the_smallest_job_that_suffices_is_stopped():
    # The gang of three has more GPU time left; a single GPU is enough.
    where, single = world(gpus=4), (0, 1, 15000, "a")
    assert _stops(_run((0, 3, 20000, "a"), single, (1000, 1, 100, "b"), where=where)) == [
        (1, 1000.0)
    ]
    both = _run((0, 3, 20000, "a"), single, (1000, 4, 100, "b"), where=where)
    assert _stops(both) == [(0, 1000.0), (1, 1000.0)]


def test_without_an_objective_in_seconds_no_job_is_stopped():
    jobs = LONG, (1000, 1, 100, "b")
    assert _stops(_run(*jobs, policy="dovetail:objective=energy")) == []


def test_who_gets_no_start_needs_no_stop():
    jobs = [Job(k, f"j{k}", 0, 1, 10.0, 0.0, gpus=(k,)) for k in range(3)]
    starts = tuple(Start(Job(9 + k, f"j{9 + k}", 0, 1, 1.0, 0.0), (k,)) for k in range(2))
    decision = Decision(starts, tuple(jobs))
    rest = decision.without(lambda start: start.gpus == (0,))
    assert rest.starts == starts[1:]
    # The last job was stopped for none of them, which is its policy's affair.
    assert [job.number for job in rest.stops] == [1, 2]
    assert decision.without(lambda start: False) is decision


def _world(rng):
    names = [f"w{k}" for k in range(4)]
    slowdowns = []
    for k, a in enumerate(names):
        for b in names[k:]:
            mine, theirs = (1 + rng.exponential(0.3, 2)).tolist()
            if rng.random() < 0.8:
                slowdowns.append((a, b, mine, mine if a == b else theirs))
    data = world(nodes=2, gpus=3, slowdowns=slowdowns, workloads=names).to_data()
    if rng.random() < 0.5:
        data["cluster"]["nodes"][1]["gpu"]["model"] = "A100"
        for workload in data["workloads"].values():
            workload["speed"] = {"A100": 1 + rng.random()}
    data["cluster"]["gang_sharing"] = ["partial", "whole"][rng.integers(2)]
    return Instance.from_data(data)


def _jobs(rng):
    arrival = np.cumsum(rng.exponential(400, 60))
    jobs = [
        (at, int(rng.choice([1, 1, 1, 2, 3])), 10 ** rng.uniform(1.5, 4.5), f"w{rng.integers(4)}")
        + ((float(rng.choice([1.0, 1.1, 1.5])),) if rng.random() < 0.7 else ())
        for at in arrival.tolist()
    ]
    return with_services(trace(*jobs), *rng.choice(60, 3, replace=False).tolist())


@pytest.mark.parametrize("seed", range(8))
def test_stops_break_no_promise_in_random_worlds(seed):
    rng = np.random.default_rng(seed)
    where, jobs = _world(rng), _jobs(rng)
    options = Options(
        restart_s=float(rng.choice([10, 60, 300])),
        saves_at_stop=bool(rng.integers(2)),
        checkpoint_s=float(rng.choice([60, 900])),
        estimate_error=float(rng.choice([0, 1])),
        seed=seed,
    )
    history = run(jobs, where, policy_named("dovetail:stop_margin=0.5"), options)
    stops = [stay for stay in history.stays if stay.ending == "stopped"]
    assert stops
    for number, (job, outcome) in enumerate(zip(jobs.jobs, history.outcomes, strict=True)):
        mine = sorted(stay.end_s for stay in stops if stay.job == number)
        assert not mine or job.priority == "batch"
        assert all(after - before >= 3600 - 1e-6 for before, after in pairwise(mine))
        if job.gsla is not None:
            assert outcome.held_s <= job.gsla * outcome.solo_s * (1 + 1e-6)


def test_what_the_policy_calls_lawful_the_second_opinion_does_too():
    rng = np.random.default_rng(1)
    agreed = 0
    for _ in range(300):
        fields = {
            "started_s": float(rng.uniform(0, 900)),
            "since_s": 900.0,
            "rate": float(rng.choice([0.6, 1.0])),
            "done_s": float(rng.uniform(0, 900)),
            "work_s": 1e5,
            "gsla": float(rng.choice([1.0, 1.1, 2.0, math.inf])),
            "restart_s": float(rng.choice([0, 60, 300])),
            "checkpoint_s": float(rng.choice([0, 100, 1000, math.inf])),
            "starts": int(rng.integers(1, 3)),
            "waiting_since_s": float(rng.uniform(-4000, 0)),
        }
        state = state_of(world(), ("a", (0,), fields))
        job, state.now = state.running[0], 1000.0
        from_s = stoppable_from_s(job, 1.0, state.now)
        assert (from_s <= state.now) == (not unlawful(state, [job]))
        if state.now < from_s < math.inf and job.gsla * job.rate >= 1:
            state.now = from_s + 1e-6
            assert not unlawful(state, [job])
            agreed += 1
    assert agreed > 20
