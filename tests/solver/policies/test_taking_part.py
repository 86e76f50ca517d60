"""Jobs left out of a round of the policy ``dovetail`` would not have started in it."""

import random

import numpy as np
import pytest

from dovetail.executor.simulation import simulate
from dovetail.instances.generate import generate
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import dovetail, policy_named
from dovetail.solver.policies.direct import assigned


@pytest.mark.parametrize(
    "world",
    [
        {},
        {"gang_sharing": "whole", "shares": (30, 70)},
        {"gpu_models": ("V100", "A100"), "shares": (), "margin": 0.1},
        {"max_jobs_per_gpu": 3, "shares": ()},
        {"max_jobs_per_gpu": 3, "shares": (), "gang_sharing": "whole"},
    ],
    ids=["partial", "whole", "models", "sets", "whole-sets"],
)
def test_every_round_is_worth_the_same_with_all_jobs(monkeypatch, world):
    may_join, fewer = dovetail.may_join, 0

    def any_job(state, jobs, hosts, book):
        nonlocal fewer
        fewer += not may_join(state, jobs, hosts, book).all()
        return np.ones((len(hosts), len(jobs)), dtype=bool)

    monkeypatch.setattr(dovetail, "worth_joining", _all_join)
    monkeypatch.setattr(dovetail, "direct_starts", lambda *_: None)
    _compare(monkeypatch, "may_join", any_job, _jobs(7, 25, 2.5e3, 1.0, world))
    assert fewer > 10


@pytest.mark.parametrize(
    ("world", "policy"),
    [
        ({}, ""),
        ({}, ",gpu_price=0.3,preempt=false"),
        ({"gang_sharing": "whole"}, ""),
        ({"gpu_models": ("V100", "A100")}, ""),
        ({"margin": 0.1}, ",patience_s=600,patience_stretch=0"),
    ],
    ids=["partial", "price", "whole", "models", "patience"],
)
@pytest.mark.parametrize("gangs", [0.0, 1.0])
def test_every_round_is_worth_the_same_with_hosts_that_none_gains_from(
    monkeypatch, world, policy, gangs
):
    worth_joining, fewer = dovetail.worth_joining, 0

    def all_join(state, idle, jobs, forecast, hosts, book, last_s):
        nonlocal fewer
        few, able = worth_joining(state, idle, jobs, forecast, hosts, book, last_s)
        fewer += len(few) < len(hosts) or not able.all()
        return _all_join(state, idle, jobs, forecast, hosts, book, last_s)

    monkeypatch.setattr(dovetail, "direct_starts", lambda *_: None)
    drawn = _jobs(3, 40, 600, gangs, {"shares": (), **world})
    _compare(monkeypatch, "worth_joining", all_join, drawn, policy)
    assert fewer > 5


@pytest.mark.parametrize(
    ("world", "policy"),
    [
        ({"shares": ()}, ""),
        ({"shares": (30, 70)}, ""),
        ({}, ",gpu_price=0.3,preempt=false"),
        ({"gang_sharing": "whole"}, ""),
        ({"gpu_models": ("V100", "A100"), "shares": ()}, ""),
        ({"margin": 0.1}, ",patience_s=600,patience_stretch=0"),
    ],
    ids=["plain", "two-shares", "price", "whole", "models", "patience"],
)
@pytest.mark.parametrize("gangs", [0.0, 0.3, 1.0])
def test_every_round_on_tables_is_worth_the_same_as_any_other(monkeypatch, world, policy, gangs):
    direct, on_tables = dovetail.direct_starts, 0

    def counted(*arguments):
        nonlocal on_tables
        found = direct(*arguments)
        on_tables += bool(found and found.seats)
        return found

    monkeypatch.setattr(dovetail, "direct_starts", counted)
    drawn = _jobs(5, 40, 600, gangs, world)
    _compare(monkeypatch, "direct_starts", lambda *_: None, drawn, policy)
    assert on_tables > 5


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 4), (3, 3), (5, 3), (4, 9)])
def test_prices_prove_the_best_assignment(rows, columns):
    draw = np.random.default_rng(rows)
    for _ in range(50):
        worth = np.round(draw.normal(0, 3, (rows, columns)), draw.integers(0, 3))
        worth[draw.random(worth.shape) < 0.2] = -np.inf
        row, of_row, of_column = assigned(worth)
        taken = np.flatnonzero(row >= 0)
        assert len(set(row[taken])) == len(taken)
        assert (worth[row[taken], taken] > 0).all()
        assert (of_row >= 0).all()
        assert (of_column >= 0).all()
        assert (worth <= of_row[:, None] + of_column + 1e-9).all()
        value = worth[row[taken], taken].sum()
        assert value == pytest.approx(of_row.sum() + of_column.sum())


def _all_join(state, idle, jobs, forecast, hosts, book, last_s):
    return hosts, np.ones(len(jobs), dtype=bool)


def _jobs(seed, count, within_s, gangs, world):
    """Return a generated world of 12 GPUs, and a trace of jobs, every other one with a gSLA."""
    world = dict(world)
    most = world.pop("max_jobs_per_gpu", 2)
    instance = generate(1, seed=5, gpus=12, workloads=8, **world)
    instance = instance.replace(cluster=instance.cluster.replace(max_jobs_per_gpu=most))
    draw = random.Random(seed)
    names = list(instance.workloads)
    jobs = [
        TraceJob(
            id=str(k),
            arrival_s=draw.uniform(0, within_s),
            workers=draw.choice([1, 1, 1, 2, 4]) if draw.random() < gangs else 1,
            duration_s=draw.uniform(60, 3000),
            workload=draw.choice(names),
            gsla=draw.uniform(1, 2) if k % 2 else None,
        )
        for k in range(count)
    ]
    return instance, Trace("drawn", tuple(sorted(jobs, key=lambda job: job.arrival_s)))


def _compare(monkeypatch, name, every, drawn, policy=""):
    """Compare the proofs of all rounds with those of ``every`` in place of a filter."""
    few, whole = (policy_named(f"dovetail:time_limit_s=1000{policy}") for _ in range(2))

    class Both:
        def decide(self, state):
            decision = few.decide(state)
            with monkeypatch.context() as patch:
                patch.setattr(dovetail, name, every)
                other = whole.decide(state)
            assert (decision.proof is None) == (other.proof is None)
            if decision.proof is not None:
                value, bound, _, jobs = decision.proof
                assert (value, bound) == pytest.approx((other.proof[:2]), rel=2e-6, abs=1e-6)
                assert jobs == other.proof.jobs
            return decision

    instance, trace = drawn
    simulate(trace, instance, Both())
