"""The oracle against the shared vectors, and against every plan that the checker accepts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import isclose, prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.instance import Instance, Job
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from tests.data import solved_vectors
from tests.oracle import MINIMISED, TWO_STAGE, optimum
from tests.strategies import Shape, instances, random_instance


def test_agrees_with_the_optimum_of_every_shared_round() -> None:
    rounds = solved_vectors()
    assert len(rounds) == 56
    for entry in rounds:
        instance, known = Instance.from_data(entry["instance"]), entry["optimum"]
        slowdown = optimum(instance, "slowdown")
        found = {
            "throughput": optimum(instance, "throughput").value,
            "jct": optimum(instance, "jct").value,
            "slowdown": {
                "weight_placed": slowdown.placed_weight,
                "sum_of_weighted_slowdowns": slowdown.value,
            },
        }
        assert found == {
            "throughput": pytest.approx(known["throughput"], rel=1e-6),
            "jct": pytest.approx(known["jct"], rel=1e-6),
            "slowdown": pytest.approx(known["slowdown"], rel=1e-6),
        }, instance.name


@given(instances(Shape(jobs=4, gpus=3, nodes=True)), st.sampled_from(OBJECTIVES))
def test_its_plans_are_valid_and_worth_what_it_says(
    instance: Instance, objective: ObjectiveName
) -> None:
    best = optimum(instance, objective)
    report = check(instance, best.plan, objective)
    assert report.violations == ()
    assert report.value == pytest.approx(best.value, rel=1e-9, abs=1e-12)
    assert report.placed_weight == pytest.approx(best.placed_weight)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_plan_that_the_checker_accepts_is_better(objective: ObjectiveName) -> None:
    """Every plan of tiny instances, valid or not."""
    asked = 0
    for seed in range(30):
        instance = random_instance(Random(seed), Shape(jobs=3, gpus=2, workloads=2))
        if number_of_plans(instance) <= 1000:
            asked += 1
            assert_nothing_better(instance, objective, seed)
    assert asked > 20


def assert_nothing_better(instance: Instance, objective: ObjectiveName, seed: int) -> None:
    best = optimum(instance, objective)
    target = rank(best.placed_weight, best.value, objective)
    reports = [check(instance, plan, objective) for plan in every_plan(instance)]
    ranks = [ranked(report) for report in reports if report.valid]
    assert all(isclose(a, b, abs_tol=1e-9) for a, b in zip(max(ranks), target, strict=True)), seed


def ranked(report: CheckReport) -> tuple[float, float]:
    assert report.value is not None
    return rank(report.placed_weight, report.value, report.objective)


def rank(weight: float, value: float, objective: ObjectiveName) -> tuple[float, float]:
    """The key by which plans are compared; more is better."""
    sign = -1 if objective in MINIMISED else 1
    return (round(weight, 9) if objective in TWO_STAGE else 0.0, sign * value)


def number_of_plans(instance: Instance) -> int:
    return prod(len(list(choices(instance, job))) for job in instance.jobs)


def every_plan(instance: Instance) -> Iterator[Plan]:
    for chosen in product(*(list(choices(instance, job)) for job in instance.jobs)):
        yield Plan(assignments=tuple(each for each in chosen if each is not None))


def choices(instance: Instance, job: Job) -> Iterator[Assignment | None]:
    """Every way to place one job, on GPUs of any model at any listed share, or not to."""
    if job.running:
        assert job.gpus is not None
        yield Assignment(job=job.id, gpus=job.gpus, share=job.share, sub_batch=job.sub_batch)
        return
    yield None
    batch = instance.workloads[job.workload].batch
    sizes = [batch.size // 2**k for k in range(4)] if batch else [None]
    shares = (None, *instance.cluster.shares)
    for gpus in combinations(instance.places, job.workers):
        for share in product(shares, repeat=job.workers):
            for size in sizes:
                yield Assignment(job=job.id, gpus=gpus, share=share, sub_batch=size)
