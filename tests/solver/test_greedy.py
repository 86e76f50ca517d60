"""The queue's order and its three rules, by hand."""

from __future__ import annotations

import pytest

from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import idle_counts
from dovetail.formulations.programs.placement import seat
from dovetail.instances.checking.checker import check
from dovetail.instances.plan import Plan
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.plans import assignments
from dovetail.solver.rounds import solve
from dovetail.solver.types import Limits
from tests.data import small
from tests.forms import groups_of

AA = {"pair": ["a", "a"], "slowdown": [1.25, 1.25]}
AB = {"pair": ["a", "b"], "slowdown": [1.25, 1.6]}


def placed(instance, objective="throughput", rule="best", seed=0):
    """Return the GPUs of each placed job, after the checker."""
    groups = groups_of(instance, objective)
    counts = greedy_counts(groups, Limits(seed=seed), rule)
    found = assignments(*seat(groups, counts))
    assert check(instance, Plan(assignments=found), objective).valid
    return {a.job: a.gpus for a in found}


def job(name, **fields):
    return {"id": name, **fields}


def test_in_the_order_of_arrival():
    late = [job("j", arrival_s=20), job("k", arrival_s=10), job("l", arrival_s=20)]
    assert list(placed(small(late, gpus=1))) == ["k"]
    assert sorted(placed(small(late, gpus=2))) == ["j", "k"]  # then as in the file


def test_each_where_it_adds_most():
    # Alone adds 1; with j 1/1.25 - (1 - 1/1.25) = 0.6.
    jobs = [job("j"), job("k")]
    assert len(set(placed(small(jobs, [AA], gpus=2)).values())) == 2
    assert len(set(placed(small(jobs, [AA], gpus=1)).values())) == 1


def test_the_better_partner():
    # l (b) with j (a): 1/1.6 - 0.2; with k (c): 1/1.1 - (1 - 1/1.1).
    jobs = [job("j"), job("k", workload="c"), job("l", workload="b")]
    bc = {"pair": ["b", "c"], "slowdown": [1.1, 1.1]}
    found = placed(small(jobs, [AB, bc], gpus=2))
    assert found["l"] == found["k"]


def test_no_harm_is_done_unless_placing_comes_first():
    # With each other both at 2.5: 0.8 in all, less than one alone.
    instance = small([job("j"), job("k")], [{**AA, "slowdown": [2.5, 2.5]}], gpus=1)
    assert list(placed(instance)) == ["j"]
    assert list(placed(instance, "slowdown")) == ["j", "k"]


def test_a_gang_starts_whole_or_not():
    jobs = [job("j", workers=3), job("k", workers=2)]
    assert list(placed(small(jobs, gpus=2))) == ["k"]
    assert len(placed(small(jobs, gpus=3))["j"]) == 3


def test_a_gang_may_share_some_of_its_gpus():
    jobs = [job("j"), job("k", workers=2)]
    assert len(placed(small(jobs, [AA], gpus=2))["k"]) == 2
    assert "k" not in placed(small(jobs, [AA], gpus=2, gang_sharing="whole"))


def test_whole_gangs_share_with_all_of_a_partner():
    jobs = [job("j", workers=2), job("k", workers=2)]
    found = placed(small(jobs, [AA], gpus=3, gang_sharing="whole"))
    assert set(found["j"]) == set(found["k"])


def test_a_running_job_is_joined():
    jobs = [job("r", state="running", gpus=["g-0"]), job("k")]
    assert placed(small(jobs, [AA], gpus=1)) == {"r": ("g-0",), "k": ("g-0",)}


def test_shares_of_jobs_that_start_together_may_still_change():
    # j alone has no cap; when k comes both get the only split that is known.
    split = {**AA, "share": [50, 50]}
    plan = solve(small([job("j"), job("k")], [split], gpus=1, shares=[50]), solver="greedy").plan
    assert [a.share for a in plan.assignments] == [(50,), (50,)]


def test_the_queue_can_mislead():
    # First come, j with k: 2 / 1.25 = 1.6. j with l, which comes last, is worth 2 / 1.1.
    ab = {"pair": ["a", "b"], "slowdown": [1.1, 1.1]}
    instance = small([job("j"), job("k"), job("l", workload="b")], [AA, ab], gpus=1)
    greedy, best = solve(instance, solver="greedy"), solve(instance, solver="cpsat")
    assert greedy.objective == pytest.approx(2 / 1.25)
    assert best.objective == pytest.approx(2 / 1.1)
    assert greedy.bound >= best.objective


def test_exclusive_use_takes_empty_gpus_only():
    jobs = [job("r", state="running", gpus=["g-0"]), job("j"), job("k")]
    assert placed(small(jobs, [AA]), rule="alone") == {"r": ("g-0",), "j": ("g-1",)}


def test_random_pairing_is_seeded():
    jobs = [job(name, workload="ab"[k % 2]) for k, name in enumerate("jklmnopq")]
    instance = small(jobs, [AA, AB], gpus=5)
    plans = [placed(instance, rule="random", seed=seed) for seed in range(10)]
    assert plans == [placed(instance, rule="random", seed=seed) for seed in range(10)]
    assert any(plan != plans[0] for plan in plans)


def test_jobs_beyond_the_time_limit_wait():
    groups = groups_of(small([job("r", state="running", gpus=["g-0"]), job("j")]))
    passed = Limits(Budget.of(0))
    assert (greedy_counts(groups, passed) == idle_counts(groups)).all()
    assert greedy_counts(groups, Limits()).sum() == 2


def test_a_proven_plan_keeps_to_the_queue_bug():
    """Ties were settled anew where greedy's value happened to be proven: c started, not b."""
    jobs = [job("a", arrival_s=20.0), job("b", arrival_s=10.0), job("c", arrival_s=20.0)]
    result = solve(small(jobs, gpus=1), solver="greedy")
    assert result.status == "optimal"
    assert [a.job for a in result.plan.assignments] == ["b"]
