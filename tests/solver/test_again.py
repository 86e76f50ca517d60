"""Repeated rounds: without reasons, from the last round, and within a time limit."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from dovetail import check, solve
from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates import listing
from dovetail.formulations.candidates.groups import gain_ceiling, idle_counts, score
from dovetail.instances import library
from dovetail.instances.checking.checker import with_claims
from dovetail.instances.errors import InputError
from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES
from dovetail.solver import rounds
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.explaining.wording import NOT_EXAMINED
from tests.data import small
from tests.forms import groups_of, values_of
from tests.oracle import TWO_STAGE, optimum
from tests.strategies import random_instance

AB = {"pair": ["a", "b"], "slowdown": [1.25, 1.6]}


@pytest.fixture(scope="module")
def queue() -> Instance:
    return generate(30, seed=4, workloads=6, running=0.3)


def on_air(instance: Instance, plan) -> list:
    """Return the jobs of an instance, those that a plan starts now running."""
    placed = {row.job: row for row in plan.assignments}
    return [
        job.replace(
            state="running",
            gpus=placed[job.id].gpus,
            share=placed[job.id].share,
            sub_batch=placed[job.id].sub_batch,
        )
        if job.id in placed
        else job
        for job in instance.jobs
    ]


def members(groups) -> set[tuple]:
    """Return every group as its class and its members: job, share and slowdown."""
    return {
        (
            int(groups.gpu_class[g]),
            *((int(groups.job[m]), int(groups.share[m]), groups.slowdown[m])
              for m in groups.members(g)),
        )
        for g in range(len(groups))
    }  # fmt: skip


def test_without_reasons_the_plan_is_the_same(queue):
    explained, plain = solve(queue), solve(queue, explain=False)
    assert explained.plan.waiting
    assert plain.plan.waiting == ()
    assert plain.plan.assignments == explained.plan.assignments
    assert (plain.objective, plain.bound) == (explained.objective, explained.bound)
    assert check(queue, plain.plan).valid
    waits = explained.plan.waiting[0]
    assert explain(queue, plain.plan, waits.job).reason == waits.reason


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_claims_are_checked_as_in_a_whole_check(queue, objective):
    plan = solve(queue, objective).plan
    bare = plan.replace(objective=None, status=None, waiting=())
    report = with_claims(check(queue, bare, objective), queue, plan)
    assert report == check(queue, plan)
    assert report.valid
    claims = plan.objective
    for wrong in (
        {"objective": claims.replace(value=claims.value * 1.01, bound=None, gap=None)},
        {"waiting": plan.waiting[1:]},
        {"status": "optimal", "objective": claims.replace(bound=None, gap=None)},
    ):
        false = plan.replace(**wrong)
        report = with_claims(check(queue, bare, objective), queue, false)
        assert report.violations == check(queue, false).violations
        assert not report.valid


def test_other_jobs_on_the_same_cluster():
    before = small([{"id": "j"}], [AB])
    assert [job.id for job in before.jobs_by_id.values()] == ["j"]
    jobs = small([{"id": "k", "workload": "b"}, {"id": "l"}]).jobs
    after = before.with_jobs(jobs)
    assert after == before.replace(jobs=jobs)
    assert list(after.jobs_by_id) == ["k", "l"]
    assert list(before.jobs_by_id) == ["j"]
    assert after.slowdowns is before.slowdowns


@pytest.mark.parametrize(
    "wrong",
    [
        [{"id": "j"}, {"id": "j"}],
        [{"id": "j", "workload": "z"}],
        [{"id": "j", "state": "running", "gpus": ["g-9"]}],
        [{"id": "j", "state": "running", "gpus": ["g-0"], "sub_batch": 8}],
    ],
)
def test_jobs_that_do_not_fit_are_refused_in_the_same_words(wrong):
    instance = small([], [AB])
    jobs = [type(small([{"id": "j"}]).jobs[0]).from_data({"workload": "a", **job}) for job in wrong]
    with pytest.raises(InputError) as in_full:
        instance.replace(jobs=tuple(jobs))
    with pytest.raises(InputError) as again:
        instance.with_jobs(jobs)
    assert str(again.value) == str(in_full.value)


@pytest.mark.parametrize("objective", ["throughput", "jct", "completion"])
def test_a_round_after_the_last_one(queue, objective):
    first = solve(queue, objective)
    jobs = on_air(queue, first.plan)
    ended = next(k for k, job in enumerate(jobs) if job.running)
    after = queue.with_jobs(jobs[:ended] + jobs[ended + 1 :])
    warm, cold = solve(after, objective, previous=first), solve(after, objective)
    assert warm.book is first.book
    assert cold.book is not first.book
    assert warm.status == cold.status == "optimal"
    assert warm.objective == pytest.approx(cold.objective, rel=1e-6)


def test_other_slowdowns_are_read_anew():
    jobs = [{"id": "j"}, {"id": "k", "workload": "b"}]
    first = solve(small(jobs, [AB], gpus=1))
    assert first.objective == pytest.approx(1 / 1.25 + 1 / 1.6)
    slower = small(jobs, [{**AB, "slowdown": [1.5, 1.6]}], gpus=1)
    again = solve(slower, previous=first)
    assert again.book is not first.book
    assert again.objective == pytest.approx(1 / 1.5 + 1 / 1.6)
    # At most one job a GPU: the same entries, but no jobs may share.
    apart = slower.replace(cluster=slower.cluster.replace(max_jobs_per_gpu=1))
    assert solve(apart, previous=again).objective == pytest.approx(1)


def test_limits_may_be_numbers_of_numpy():
    limits = {"time_limit": np.float32(60), "gap": np.float32(0), "seed": np.int64(3)}
    result = solve(library.load("first-pairs"), **limits)
    assert result.status == "optimal"
    assert result.plan.to_data()["seed"] == 3


def test_a_plan_that_comes_late_says_so(monkeypatch):
    instance = library.load("first-pairs")
    monkeypatch.setattr(rounds, "_LATE_S", 0.0)
    late = solve(instance, time_limit=0.0).plan.notes[-1]
    assert late.endswith("s, 0 s were allowed: steps in progress were finished")
    monkeypatch.setattr(rounds, "_LATE_S", 3600.0)
    assert not any("allowed" in note for note in solve(instance, time_limit=0.0).plan.notes)


def test_a_deadline_leaves_groups_out(monkeypatch):
    monkeypatch.setattr(listing, "ROWS_IN_TIME", 1)
    instance = generate(12, seed=2, workloads=4, running=0.4)
    every = groups_of(instance)
    assert every.complete
    in_time = groups_of(instance, "throughput", budget=Budget.of(3600))
    assert in_time.complete
    assert members(in_time) == members(every)
    late = groups_of(instance, "throughput", budget=Budget.of(0))
    assert not late.complete
    assert members(late) < members(every)
    # Jobs alone, and residents without a join, are there; so is the group that slows least.
    least = {g for g in members(every) if len(g) == 2}
    assert least <= members(late)
    assert any(len(g) > 2 for g in members(late))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", [{}, {"gpu_models": ("V100", "K80")}, {"gang_sharing": "whole"}])
def test_an_answer_in_no_time_is_valid_and_honest(monkeypatch, objective, kind):
    monkeypatch.setattr(listing, "ROWS_IN_TIME", 1)
    instance = generate(12, seed=3, workloads=4, running=0.3, **kind)
    best = solve(instance, objective)
    late = solve(instance, objective, time_limit=0.0)
    assert check(instance, late.plan).valid
    assert (late.status, late.stopped) == ("feasible", "time_limit")
    assert late.proof is None
    assert {waiting.reason for waiting in late.plan.waiting} == {NOT_EXAMINED}
    assert any("before all groups were listed" in note for note in late.plan.notes)
    if objective not in TWO_STAGE:
        assert late.bound is not None
        assert late.objective <= best.objective + 1e-9 <= late.bound + 1e-6
    else:
        assert late.bound is None
        weight = best.plan.objective.placed_weight
        assert late.plan.objective.placed_weight_bound >= weight


@pytest.mark.parametrize("objective", ["throughput", "jct", "completion"])
def test_no_plan_gains_more_than_the_ceiling(objective):
    for seed in range(40):
        instance = random_instance(Random(seed))
        groups = groups_of(instance, objective)
        most = gain_ceiling(groups.values)
        assert most >= optimum(instance, objective).value * (1 - 1e-9), seed
        idle = score(groups, idle_counts(groups))
        assert math.isfinite(most)
        assert most >= idle.gain - 1e-9


def test_a_ceiling_by_hand():
    # Two GPUs; j and k together reach 0.8 + 0.625 at best, l is alone only. With price
    # t for a GPU no group gains more than 2 t + (1 - t) for l, + the better of 1 - t and
    # 0.8 - t / 2 for j, and of 1 - t and 0.625 - t / 2 for k: at t = 0.4 all of it is
    # 0.8 + 0.6 + 0.6 + 0.6 = 2.6, at 0.625: 1.25 + 0.375 + 0.4875 + 0.375 = 2.4875, and at
    # 0.75: 1.5 + 0.25 + 0.425 + 0.25 = 2.425 = 1 + 0.8 + 0.625, which a plan reaches.
    jobs = [{"id": "j"}, {"id": "k", "workload": "b"}, {"id": "l", "workload": "c"}]
    assert gain_ceiling(values_of(small(jobs, [AB]))) == pytest.approx(2.425)
    assert optimum(small(jobs, [AB]), "throughput").value == pytest.approx(2.425)
