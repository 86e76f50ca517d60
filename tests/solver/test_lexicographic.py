"""Two stages on arrays, against enumeration; bounds hold whatever the limits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from dovetail.solver.answers import Limits
from dovetail.solver.lexicographic import Heaviest

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

    def heaviest(self, limits: Limits) -> Heaviest:
        return Heaviest(
            self.weight,
            np.isfinite(self.pair),
            np.isfinite(self.single),
            self.gpus,
            self.size,
            self.required,
            limits,
        )

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
    "seeds", [range(40), pytest.param(range(40, 600), marks=pytest.mark.long)], ids=len
)


@SEEDS
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_largest_weight_then_the_best_gain(seeds, weights):
    demanded = 0
    for seed in seeds:
        case = Case.random(seed, weights)
        heaviest = case.heaviest(Limits())
        best = heaviest.best(case.pair, case.single, Limits())
        weight, gain = case.score(best.mate)
        known = case.optimum()
        assert heaviest.proven
        assert weight == pytest.approx(known[0], rel=1e-7), seed
        assert gain == pytest.approx(known[1], rel=1e-6, abs=1e-6), seed
        assert best.bound >= known[1] - 1e-12, seed
        first = case.score(heaviest.mate)[0]
        assert first + heaviest.spare >= known[0] * (1 - 1e-14), seed
        demanded += known[1] < 0
    assert demanded > len(seeds) / 20  # weight is placed although it costs gain


def test_a_later_gain_does_not_suffer_from_an_earlier_one():
    for seed in range(20):
        case = Case.random(seed, "few")
        heaviest = case.heaviest(Limits())
        first = heaviest.best(case.pair, case.single, Limits())
        heaviest.best(-1e3 * case.pair, -1e3 * case.single, Limits())
        again = heaviest.best(case.pair, case.single, Limits())
        assert case.score(again.mate) == pytest.approx(case.score(first.mate), rel=1e-6, abs=1e-6)


@SEEDS
def test_the_least_cost_is_under_every_cost(seeds):
    for seed in seeds:
        case = Case.random(seed, "few")
        pair, single = np.abs(case.pair), np.abs(case.single)
        heaviest = case.heaviest(Limits())
        dearest = heaviest.best(-pair, -single, Limits())
        least = -Case(case.weight, -pair, -single, case.gpus, case.size, case.required).score(
            dearest.mate
        )[1]
        assert 0 <= heaviest.least_cost(pair, single) <= least + 1e-6


def test_out_of_time_the_bounds_are_true():
    for seed in range(20):
        case = Case.random(seed, "few")
        late = Limits(deadline=time.monotonic())
        heaviest = case.heaviest(late)
        weight, gain = case.optimum()
        assert heaviest.spare == math.inf or case.score(heaviest.mate)[0] + heaviest.spare >= weight
        if heaviest.proven:
            best = heaviest.best(case.pair, case.single, late)
            assert (best.stopped, best.bound) == ("time_limit", math.inf)
            assert case.score(best.mate)[0] == pytest.approx(weight)
        timely = case.heaviest(Limits())
        best = timely.best(case.pair, case.single, late)
        assert best.stopped == "time_limit"
        assert best.bound >= gain
        assert case.score(best.mate)[0] == pytest.approx(weight)


def test_the_best_gain_needs_the_weight_proven():
    n = 30
    rng = np.random.default_rng(1)
    pair = rng.uniform(1, 2, (n, n))
    pair = pair + pair.T
    heaviest = Heaviest(
        rng.uniform(1, 2, n),
        np.ones((n, n), dtype=bool),
        np.ones(n, dtype=bool),
        10,
        np.ones(n, dtype=np.int64),
        np.zeros(n, dtype=bool),
        Limits(deadline=time.monotonic()),
    )
    assert not heaviest.proven
    with pytest.raises(ValueError, match="must be proven"):
        heaviest.best(pair, np.ones(n), Limits())
