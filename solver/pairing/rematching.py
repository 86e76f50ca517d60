"""Successive problems that differ in the values of some jobs.

The values are rounded to whole units once, and the graph of likely pairs is kept and grows. Each
problem is solved from the prices and the rows of a solution of a similar problem: only the rows of
jobs whose edges are no longer tight look for a new partner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import UNLIMITED, Budget, OutOfTimeError
from dovetail.solver.pairing import blossom, dense
from dovetail.solver.pairing.arguments import checked
from dovetail.solver.pairing.capacity import least_bound, merged, solve_prices
from dovetail.solver.pairing.compilation import KernelCompiler
from dovetail.solver.pairing.matching import matching_of, of_only_class, quickest_run, searched
from dovetail.solver.pairing.prices import PriceStart
from dovetail.solver.pairing.result import Prices
from dovetail.solver.pairing.size_class import NOT_ALONE, ClassData, Tangent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LOST_BITS = 4
"""Bits by which the largest value may fall before values must be rounded again."""


@dataclass(frozen=True)
class Rematched:
    """A best matching of one of the problems.

    Attributes
    ----------
    mate : (n,) int
        See ``Matching``.
    bound : float
        A proven bound on the value of every matching.
    start : PriceStart
        The start for the next problem.
    prices : Prices
        Prices that prove a bound on every matching, alone (see ``Rematching.prices``).
    """

    mate: Ints
    bound: float
    start: PriceStart
    prices: Prices


class Rematching:
    """Solves a problem of jobs that take one GPU each, and then further problems of these jobs.

    Parameters
    ----------
    pair_value, single_value, gpus, required, seed, previous
        The arguments of ``match_pairs`` for the first problem, with a dense ``pair_value``.
    budget : Budget
        The budget of this and all later solutions.

    Attributes
    ----------
    first : Matching
        The solution of the first problem.
    start : PriceStart or None
        The start for the next problem; None if there are no jobs.
    prices : Prices or None
        The prices of the first problem, see ``Rematched``.
    """

    def __init__(
        self,
        pair_value: Floats,
        single_value: Floats,
        gpus: int,
        required: Bools,
        budget: Budget = UNLIMITED,
        seed: int = 0,
        previous: Prices | None = None,
    ) -> None:
        began = budget.now()
        problem = checked(pair_value, single_value, gpus, None, required)
        with quickest_run(len(problem), budget) as run:
            search = searched(problem, run, began, budget, seed, previous)
        self.first = matching_of(problem, search)
        self.start = _start(search.main[0]) if search.main else None
        self._budget = budget
        self._whole = search.whole
        self._solvers = search.solvers
        self.prices = self._prices(search.main[0]) if search.main else None

    def revalue(
        self, jobs: Ints, pair_value: Floats, single_value: Floats, required: Bools
    ) -> bool:
        """Give some jobs other values; return whether the units still suit the values.

        Parameters
        ----------
        jobs : (k,) int
        pair_value : (k, n) float
            NaN where two jobs may not share, including all pairs that could not share at first, and
            for a job with itself.
        single_value : (k,) float
            NaN if a job may not run alone.
        required : (k,) bool
        """
        whole = self._whole
        pair = np.ceil(pair_value * whole.scale)
        single = np.ceil(single_value * whole.scale)
        if (np.abs(pair) > whole.largest).any() or (np.abs(single) > whole.largest).any():
            return False
        (solver,) = self._solvers
        fixed = np.nan_to_num(pair, nan=dense.FORBIDDEN).astype(np.int32)
        alone = np.nan_to_num(single, nan=NOT_ALONE).astype(np.int64)
        solver.revalue(jobs, fixed, alone, np.where(required, -whole.penalty, 0))
        return _is_at_least(whole.largest >> _LOST_BITS, solver.data)

    def solve(self, start: PriceStart) -> Rematched | None:
        """Return a best matching, starting from another problem's solution; None if there is none.

        Raises
        ------
        OutOfTimeError
            If the budget is used up first.
        """
        whole, budget = self._whole, self._budget
        (solver,) = self._solvers
        solver.resume(start.classes[0], start.price)
        with quickest_run(len(solver), budget) as solver.run:
            near = least_bound(
                lambda price: solver.evaluate(price, False, budget),
                whole.limit,
                start.price,
                whole.largest,
                2 * whole.limit,
            )
            bracket, priced = solve_prices(
                self._solvers, whole.limit, near.best.price, whole.largest, True, budget
            )
            if not priced:
                raise OutOfTimeError
            if bracket.bound2 < -whole.penalty:
                return None
            best = of_only_class(bracket)
            mate = merged(solver, best, whole.limit)
        bound = bracket.bound2 / (2 * whole.scale)
        return Rematched(mate, bound, _start(best.best), self._prices(best.best))

    @property
    def run(self) -> KernelCompiler:
        """How the kernels of the last problem were run."""
        (solver,) = self._solvers
        return solver.run

    def _prices(self, tangent: Tangent) -> Prices:
        """Return the duals with those of blossoms laid on their jobs, half on either end of a pair.

        The prices of all jobs and of all GPUs together bound every matching.
        """
        (solver,) = self._solvers
        around, total = blossom.nested(tangent.parent, tangent.dual, solver.run)
        inside = around[: len(solver)]
        laid2 = 2 * tangent.potential + np.where(inside >= 0, total[inside], 0)
        scale = self._whole.scale
        return Prices(tangent.price / scale, laid2 / (4 * scale))


def _start(tangent: Tangent) -> PriceStart:
    return PriceStart(tangent.price, [tangent.start])


def _is_at_least(magnitude: int, data: ClassData) -> bool:
    """Return whether some value has at least this magnitude."""
    assert isinstance(data.pairs, dense.MatrixPairs)
    fixed = data.pairs.fixed
    if fixed.max(initial=0) >= magnitude or data.single.max(initial=0) >= magnitude:
        return True
    least = np.where(fixed == dense.FORBIDDEN, 0, fixed).min(initial=0)
    return bool(least <= -magnitude) or bool(
        (data.single[data.single != NOT_ALONE] <= -magnitude).any()
    )
