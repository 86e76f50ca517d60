"""The contract of solvers: tests that each solver's class inherits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.formulations.programs.pair_graph import PairGraph, PartialSharingError
from dovetail.instances import library
from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.solver.result import Result
from dovetail.solver.rounds import solve
from dovetail.solver.types import relative_gap
from tests.data import solved_vectors
from tests.forms import groups_of
from tests.oracle import MINIMISED, TWO_STAGE, optimum
from tests.strategies import Shape, instances

T = TypeVar("T")

PLAIN = Shape(
    jobs=8,
    gpus=4,
    gangs=False,
    whole=False,
    shares=False,
    models=False,
    memory=False,
    running=False,
    batches=False,
    sets=False,
    latency=False,
)
"""One-GPU jobs, weights, gSLAs and upper bounds, nothing else."""

GANGS = replace(PLAIN, jobs=6, gangs=True)


def whole(instance: Instance) -> Instance:
    """Return the instance with whole gang sharing only."""
    return instance.replace(cluster=instance.cluster.replace(gang_sharing="whole"))


FAMILIES: dict[str, st.SearchStrategy[Instance]] = {
    "pairs": instances(PLAIN),
    "partial gangs": instances(GANGS),
    "whole gangs": instances(GANGS).map(whole),
    "gangs on nodes": instances(replace(GANGS, nodes=True, jobs=4, gpus=5)),
    "whole gangs on nodes": instances(replace(GANGS, nodes=True, running=True)).map(whole),
    "shares": instances(replace(PLAIN, jobs=7, shares=True)),
    "GPU models": instances(replace(PLAIN, gangs=True, jobs=6, models=True)),
    "memory": instances(replace(PLAIN, memory=True)),
    "sub-batches": instances(replace(PLAIN, jobs=5, gangs=True, memory=True, batches=True)),
    "latency": instances(replace(PLAIN, latency=True)),
    "running": instances(replace(PLAIN, shares=True, running=True)),
    "running gangs": instances(replace(GANGS, running=True)),
    "running whole gangs": instances(replace(GANGS, running=True)).map(whole),
    "sets of three": instances(replace(PLAIN, jobs=6, gpus=3, sets=True)),
    "percent": instances(replace(PLAIN, jobs=6, memory=True, models=True, percent=True)),
    "declared": instances(replace(PLAIN, jobs=6, gpus=3, memory=True, sets=True, assumed=True)),
    "everything": instances(Shape(jobs=5, nodes=True)),
}
"""Random rounds, each with the constraints that it is named after."""

FAR = 120.0
"""Seconds after which a small round counts as hanging."""


class ValidityContract:
    """The contract of heuristics too: valid plans, true bounds, and the words of the format."""

    solver: ClassVar[str]
    examples: ClassVar[int] = 10
    step: ClassVar[int] = 1
    """The short form solves every ``step``-th shared round and shipped instance."""

    families: ClassVar[Sequence[str]] = tuple(FAMILIES)
    """The families that the short form solves. ``auto`` has them all; the other solvers share
    most of their code with it, or with each other."""
    exact: ClassVar[bool] = False

    def takes(self, instance: Instance, objective: ObjectiveName) -> bool:
        """Tell whether the solver is made for this round."""
        return True

    def some(self, items: Sequence[T], full: bool) -> Sequence[T]:
        return items[:: 1 if full else self.step]

    def holds(self, family: str, full: bool, one_round: Any) -> None:
        """Call ``one_round(instance, objective)`` with random rounds of the family."""

        @settings(max_examples=self.examples * (10 if full else 1))
        @given(FAMILIES[family], st.sampled_from(OBJECTIVES))
        def every(instance: Instance, objective: ObjectiveName) -> None:
            powered = objective != "energy" or instance.cluster.assumed is None
            if powered and self.takes(instance, objective):
                one_round(instance, objective)

        every()

    def test_whatever_the_limits_the_plan_is_valid_and_the_bound_true(self):
        limits = cycle([(0.0, 0.0), (0.001, 0.0), (0.05, 0.05), (None, 0.05), (None, 0.3)])

        def one_round(instance: Instance, objective: ObjectiveName) -> None:
            seed = len(instance.slowdowns)
            time_limit, gap = next(limits)
            result = solve(
                instance, objective, self.solver, time_limit=time_limit, gap=gap, seed=seed
            )
            best = optimum(instance, objective)
            assert_true(result, instance, objective, best.value, best.placed_weight)
            assert_words(result, time_limit, gap, self.exact)

        self.holds("everything" if "everything" in self.families else "shares", False, one_round)

    @pytest.mark.parametrize("limits", [(0.001, 0.0), (0.1, 0.0), (None, 0.1)])
    def test_a_limit_on_a_large_round_leaves_a_valid_plan_with_a_true_bound(self, limits):
        time_limit, gap = limits
        instance, best = self.large()
        result = solve(instance, "throughput", self.solver, time_limit=time_limit, gap=gap)
        assert_true(result, instance, "throughput", best)
        assert_words(result, time_limit, gap, self.exact)

    def large(self) -> tuple[Instance, float]:
        """Return a larger round and the best throughput there is."""
        return library.load("lab"), library.manifest()["lab"].optimum["throughput"].value

    def test_same_seed_same_plan(self):
        instance, _ = self.large()
        first, second = (solve(instance, solver=self.solver, seed=7) for _ in range(2))
        assert first.stopped == "complete"
        assert first.plan.assignments == second.plan.assignments

    def test_an_empty_round(self):
        instance = library.load("first-pairs").replace(jobs=())
        for objective in OBJECTIVES:
            result = solve(instance, objective, self.solver)
            assert (result.status, result.stopped) == ("optimal", "complete")
            assert (result.objective, result.bound, result.gap) == (0.0, 0.0, 0.0)
            assert "-0" not in f"{result.objective:g} {result.bound:g}"


full = pytest.mark.parametrize(
    "full", [pytest.param(False, id="short"), pytest.param(True, marks=pytest.mark.long, id="long")]
)


class ExactContract(ValidityContract):
    """The additional contract of exact solvers: the best plan, proven."""

    exact = True
    least_part: ClassVar[float] = 1.0
    """The part of the shared rounds, each under three objectives, that the solver takes."""

    @full
    def test_shared_rounds(self, full):
        asked = 0
        rounds = self.some(solved_vectors(), full)
        for entry in rounds:
            instance = Instance.from_data(entry["instance"])
            for objective, known in entry["optimum"].items():
                if not self.takes(instance, objective):
                    continue
                asked += 1
                result = solve(instance, objective, self.solver, time_limit=FAR)
                if objective == "slowdown":
                    value, weight = known["sum_of_weighted_slowdowns"], known["weight_placed"]
                    assert_proven(result, instance, objective, value, weight)
                else:
                    assert_proven(result, instance, objective, known)
        assert asked >= self.least_part * 3 * len(rounds)

    @full
    def test_shipped_instances(self, full):
        claims = [
            (library.load(name), objective, claim)
            for name, entry in library.manifest().items()
            for objective, claim in entry.optimum.items()
        ]
        for instance, objective, claim in self.some(claims, full):
            if self.takes(instance, objective):
                result = solve(instance, objective, self.solver, time_limit=FAR)
                assert_proven(result, instance, objective, claim.value, claim.placed_weight)

    @full
    def test_equals_enumeration(self, full):
        def one_round(instance: Instance, objective: ObjectiveName) -> None:
            result = solve(instance, objective, self.solver, time_limit=FAR)
            best = optimum(instance, objective)
            assert_proven(result, instance, objective, best.value, best.placed_weight)

        for family in FAMILIES if full else self.families:
            self.holds(family, full, one_round)

    def test_running_jobs_may_be_preempted(self):
        # Alone on its GPU the running job is at 1; the other GPU of the round is free. The
        # optimum of a preempted round is that of the same jobs all pending.
        instance = library.load("running")
        for objective in ("throughput", "slowdown"):
            result = solve(instance, objective, self.solver, preempt=True, time_limit=FAR)
            best = optimum(instance.preempted(), objective)
            assert check(instance, result.plan).violations == ()
            assert result.status == "optimal"
            assert result.objective == pytest.approx(best.value, rel=1e-6)


class MatchingContract(ExactContract):
    """The contract of the solvers that take only rounds whose plans are matchings."""

    families = (
        "pairs",
        "whole gangs",
        "shares",
        "latency",
        "memory",
        "running",
        "running whole gangs",
    )
    least_part = 0.1

    def takes(self, instance: Instance, objective: ObjectiveName) -> bool:
        try:
            PairGraph(groups_of(instance, objective))
        except UnsupportedError:
            return False
        return True

    def large(self) -> tuple[Instance, float]:
        instance, _ = super().large()
        single = [job.model_copy(update={"workers": 1}) for job in instance.preempted().jobs]
        return instance.replace(jobs=tuple(single)), ONE_GPU_LAB


class PairsContract(MatchingContract):
    """The contract of the solver that takes rounds whose gangs may share in part as well."""

    families = (*MatchingContract.families, "partial gangs", "running gangs", "sub-batches")
    least_part = 0.25

    def takes(self, instance: Instance, objective: ObjectiveName) -> bool:
        try:
            PairGraph(groups_of(instance, objective))
        except PartialSharingError:
            return True
        except UnsupportedError:
            return False
        return True

    def large(self) -> tuple[Instance, float]:
        return ValidityContract.large(self)


ONE_GPU_LAB = 39.64890904
"""The best throughput of the lab with one GPU for every job, found alike by three solvers."""


def assert_proven(
    result: Result,
    instance: Instance,
    objective: ObjectiveName,
    value: float,
    weight: float | None = None,
) -> None:
    """The plan is valid, the best there is, and proven so."""
    report = assert_true(result, instance, objective, value, weight)
    assert result.objective == pytest.approx(value, rel=1e-6)
    if objective in TWO_STAGE and weight is not None:
        assert report.placed_weight == pytest.approx(weight, rel=1e-14)
    assert (result.status, result.stopped) == ("optimal", "complete")
    assert result.gap is not None
    assert result.gap <= 1e-6


def assert_true(
    result: Result,
    instance: Instance,
    objective: ObjectiveName,
    value: float,
    weight: float | None = None,
) -> CheckReport:
    """The plan is valid, and its claims hold against the best value."""
    report = check(instance, result.plan, objective)
    assert report.violations == ()
    assert result.status in ("optimal", "feasible")
    assert (result.status == "optimal") == (result.gap is not None and result.gap <= 1e-6)
    claim = result.plan.objective
    assert claim is not None
    if weight is not None and claim.placed_weight_bound is not None:
        assert claim.placed_weight_bound >= weight * (1 - 1e-14)
    if result.bound is None:
        assert result.gap is None
        return report
    assert result.gap == pytest.approx(relative_gap(result.bound, result.objective), abs=1e-12)
    sign = -1 if objective in MINIMISED else 1
    assert sign * (result.bound - value) >= -1e-8 * abs(value), "the bound is on the wrong side"
    return report


def assert_words(result: Result, time_limit: float | None, gap: float, exact: bool) -> None:
    """``stopped`` names the limit that was hit, and only a requested limit can be hit."""
    assert result.stopped in ("complete", "time_limit", "gap_reached")
    if result.stopped == "time_limit":
        assert time_limit is not None
    if result.stopped == "gap_reached":
        assert result.gap is not None
        assert 1e-6 < result.gap <= gap
    if exact and result.stopped == "complete":
        assert result.status == "optimal"
