"""Two stages on arrays, against enumeration; bounds hold whatever the limits."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from dovetail.formulations.budget import Budget
from dovetail.solver.matching.lexicographic import Heaviest
from dovetail.solver.matching.pairing_problem import PairingProblem, PairList
from dovetail.solver.types import Limits

WEIGHTS = {
    "equal": lambda rng, n: np.ones(n),
    "few": lambda rng, n: rng.choice([1.0, 2.0, 3.0], n),
    "digits": lambda rng, n: rng.uniform(0.5, 2.0, n),
    "wide": lambda rng, n: np.round(10 ** rng.uniform(-1.5, 1.5, n), 3),
}


@dataclass(frozen=True)
class Case:
    """Weights and gains of a few jobs."""

    weight: np.ndarray
    pair: np.ndarray
    single: np.ndarray
    gpus: int
    size: np.ndarray
    required: np.ndarray

    @classmethod
    def random(cls, seed: int, weights: str) -> Case:
        """Return a case in which the required jobs can be placed, all of them alone."""
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 8))
        pair = np.round(rng.uniform(-3, 3, (n, n)), 2)
        pair[rng.random((n, n)) < 0.3] = np.nan
        pair = np.triu(pair, 1) + np.triu(pair, 1).T
        required = rng.random(n) < 0.15
        single = np.where(
            required | (rng.random(n) < 0.7), np.round(rng.uniform(-2, 2, n), 2), np.nan
        )
        size = rng.choice([1, 1, 2, 3], n) if seed % 2 else np.ones(n, dtype=np.int64)
        pair[size[:, None] != size] = np.nan
        gpus = int(size[required].sum() + rng.integers(0, n + 1))
        return cls(WEIGHTS[weights](rng, n), pair, single, gpus, size, required)

    @property
    def pairs(self) -> PairList:
        """The pairs that may share."""
        return PairList(len(self.pair), *np.nonzero(np.triu(np.isfinite(self.pair), 1)))

    def pairing(self, pair: np.ndarray, single: np.ndarray) -> PairingProblem:
        """Return the matchings at other values."""
        pairs = self.pairs
        return PairingProblem(
            pairs=pairs,
            pair=pair[pairs.first, pairs.second],
            alone=single,
            constant=0.0,
            size=self.size,
            gpus=self.gpus,
            required=self.required,
            taken=lambda mate: (mate, None),
        )

    def heaviest(self, limits: Limits) -> Heaviest:
        return Heaviest(self.weight, self.pairing(self.pair, self.single), limits)

    def score(self, mate: np.ndarray) -> tuple[float, float]:
        """Return weight and gain of a matching; of one that breaks a rule NaN."""
        own = np.arange(len(mate))
        leads = own[mate >= own]
        values = np.where(mate == own, self.single, self.pair[own, mate])[leads]
        placed = mate >= 0
        legal = (mate[mate[placed]] == own[placed]).all() and placed[self.required].all()
        if not legal or self.size[leads].sum() > self.gpus:
            return math.nan, math.nan
        return float(self.weight[placed].sum()), float(values.sum())

    def most(self, heaviest: Heaviest) -> float:
        """Return the bound on the weight that can be placed."""
        whole = heaviest.weight
        decided = float(self.weight[self.required].sum())
        return decided + (heaviest.first.bound + whole.rounding) / whole.scale

    def matchings(self) -> Iterator[np.ndarray]:
        """Yield every set of disjoint pairs and jobs alone."""
        yield from self._matchings(np.full(len(self.weight), -1), 0, set())

    def _matchings(self, mate: np.ndarray, job: int, taken: set[int]) -> Iterator[np.ndarray]:
        if job == len(mate):
            yield mate.copy()
            return
        yield from self._matchings(mate, job + 1, taken)
        if job in taken:
            return
        for other in range(job, len(mate)):
            if other not in taken:
                mate[job], mate[other] = other, job
                yield from self._matchings(mate, job + 1, taken | {job, other})
                mate[job] = mate[other] = -1

    def optimum(self) -> tuple[float, float]:
        """Return the largest weight, and the best gain of the matchings that have it."""
        scores = [s for s in map(self.score, self.matchings()) if not math.isnan(s[1])]
        weight = max(w for w, _ in scores)
        return weight, max(g for w, g in scores if w >= weight * (1 - 1e-7))


SEEDS = pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 600), marks=pytest.mark.long)], ids=len
)


@SEEDS
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_largest_weight_then_the_best_gain(seeds, weights):
    demanded = 0
    for seed in seeds:
        case = Case.random(seed, weights)
        heaviest = case.heaviest(Limits())
        best = heaviest.best(case.pairing(case.pair, case.single), Limits())
        weight, gain = case.score(best.counts)
        known = case.optimum()
        assert weight == pytest.approx(known[0], rel=1e-7), seed
        assert gain == pytest.approx(known[1], rel=1e-6, abs=1e-6), seed
        assert best.bound >= known[1] - 1e-12, seed
        assert case.most(heaviest) >= known[0] * (1 - 1e-14), seed
        demanded += known[1] < 0
    assert demanded > len(seeds) / 20  # weight is placed although it costs gain


@pytest.mark.parametrize("few", [0, 20])
def test_few_pairs_and_many_are_worth_the_same(few, monkeypatch):
    monkeypatch.setattr("dovetail.solver.matching.pairing_problem._SMALL", 0)
    monkeypatch.setattr("dovetail.solver.matching.pairing_problem._FEW", few)
    for seed in range(20):
        case = Case.random(seed, "few")
        heaviest = case.heaviest(Limits())
        best = heaviest.best(case.pairing(case.pair, case.single), Limits())
        assert case.score(best.counts) == pytest.approx(case.optimum(), rel=1e-6, abs=1e-6), seed
        drawn = case.pairing(-np.abs(case.pair), -np.abs(case.single))
        assert heaviest.least_cost(drawn) <= -heaviest.best(drawn, Limits()).bound + 1e-6


def test_few_pairs_of_many_jobs_take_no_full_matrix():
    jobs = 2000
    first = np.arange(jobs - 1)
    pairs = PairList(jobs, first, first + 1)
    tracemalloc.start()
    try:
        pairs.among(np.ones(jobs, dtype=bool)).summed(np.ones(jobs), None)
        assert tracemalloc.get_traced_memory()[1] < jobs**2
    finally:
        tracemalloc.stop()


def test_a_later_gain_does_not_suffer_from_an_earlier_one():
    for seed in range(20):
        case = Case.random(seed, "few")
        heaviest = case.heaviest(Limits())
        first = heaviest.best(case.pairing(case.pair, case.single), Limits())
        heaviest.best(case.pairing(-1e3 * case.pair, -1e3 * case.single), Limits())
        again = heaviest.best(case.pairing(case.pair, case.single), Limits())
        assert case.score(again.counts) == pytest.approx(
            case.score(first.counts), rel=1e-6, abs=1e-6
        )


@SEEDS
def test_the_least_cost_is_under_every_cost(seeds):
    for seed in seeds:
        case = Case.random(seed, "few")
        pair, single = np.abs(case.pair), np.abs(case.single)
        heaviest = case.heaviest(Limits())
        drawn = case.pairing(-pair, -single)
        dearest = heaviest.best(drawn, Limits())
        least = -Case(case.weight, -pair, -single, case.gpus, case.size, case.required).score(
            dearest.counts
        )[1]
        assert 0 <= heaviest.least_cost(drawn) <= least + 1e-6


def test_out_of_time_the_bounds_are_true():
    for seed in range(20):
        case = Case.random(seed, "few")
        late = Limits(Budget.of(0))
        heaviest = case.heaviest(late)
        weight, gain = case.optimum()
        assert case.most(heaviest) >= weight * (1 - 1e-14)
        if case.score(heaviest.first.counts)[0] == pytest.approx(weight):
            best = heaviest.best(case.pairing(case.pair, case.single), late)
            assert (best.stopped, best.bound) == ("time_limit", math.inf)
            assert case.score(best.counts)[0] == pytest.approx(weight)
        timely = case.heaviest(Limits())
        best = timely.best(case.pairing(case.pair, case.single), late)
        assert best.stopped == "time_limit"
        assert best.bound >= gain
        assert case.score(best.counts)[0] == pytest.approx(weight)
