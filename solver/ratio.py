"""The largest ratio of two linear functions: Dinkelbach's method.

With N and D > 0 linear and F(t) = max N - t D, F falls strictly in t and is 0 exactly at the
best ratio; the maximiser at t = N(x) / D(x) has a ratio at least that of x, and the iteration
ends where F(t) = 0 (Management Science 13(7), 1967). Any bound U >= F(t) bounds the ratio by
t + max(U, 0) / D_min, with D_min the least value of D, because N <= t D + U.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dovetail.instances.plan import Stopped
from dovetail.solver.answers import relative_gap

X = TypeVar("X")

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Maximum(Generic[X]):
    """A maximiser, a proven upper bound on the maximum, and why the search ended."""

    x: X
    bound: float
    stopped: Stopped


def best_ratio(
    start: X,
    terms: Callable[[X], tuple[float, float]],
    maximise: Callable[[float, X], Maximum[X]],
    least: float,
    gap: float,
) -> Maximum[X]:
    """Return the x of the largest N(x) / D(x), with a proven bound on that ratio.

    Parameters
    ----------
    start : X
        A feasible x.
    terms : callable
        Returns N(x) and D(x).
    maximise : callable
        Given t and a feasible x, maximises N - t D.
    least : float
        A lower bound on D.
    gap : float
        Relative gap between ratio and bound at which to stop.
    """
    best, bound = start, math.inf
    while True:
        gain, cost = terms(best)
        if cost == 0:
            return Maximum(best, 0.0, "complete")
        ratio = gain / cost
        found = maximise(ratio, best)
        bound = min(bound, ratio + max(found.bound, 0.0) / least)
        new_gain, new_cost = terms(found.x)
        if new_cost > 0 and new_gain / new_cost > ratio * (1 + _TOLERANCE):
            best = found.x
        elif found.stopped == "complete" or relative_gap(bound, ratio) <= gap:
            return Maximum(best, bound, "complete")
        if found.stopped != "complete":
            return Maximum(best, bound, found.stopped)
