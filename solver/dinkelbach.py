"""The largest ratio of two linear functions: Dinkelbach's method.

With N and D > 0 linear and F(t) = max N - t D, F falls strictly in t and is 0 exactly at the
best ratio; the maximiser at t = N(x) / D(x) has a ratio at least that of x, and the iteration
ends where F(t) = 0 (Management Science 13(7), 1967). Any bound U >= F(t) bounds the ratio by
t + max(U, 0) / D_min, with D_min the least value of D, because N <= t D + U.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dovetail.solver.types import Found, relative_gap

F = TypeVar("F", bound=Found)

_TOLERANCE = 1e-9


def best_ratio(
    start: F,
    terms: Callable[[F], tuple[float, float]],
    maximise: Callable[[float, F], F],
    least: float,
    gap: float,
) -> F:
    """Return what has the largest N / D, with a proven bound on that ratio.

    Parameters
    ----------
    start : Found
        Something feasible.
    terms : callable
        Returns N and D of what was found.
    maximise : callable
        Given t and something feasible, maximises N - t D.
    least : float
        A lower bound on D.
    gap : float
        Relative gap between ratio and bound at which to stop.
    """
    best, bound = start, math.inf
    while True:
        gain, cost = terms(best)
        if cost == 0:
            return replace(best, bound=0.0, stopped="complete")
        ratio = gain / cost
        found = maximise(ratio, best)
        bound = min(bound, ratio + max(found.bound, 0.0) / least)
        new_gain, new_cost = terms(found)
        if new_cost > 0 and new_gain / new_cost > ratio * (1 + _TOLERANCE):
            best, ratio = found, new_gain / new_cost
        elif found.stopped == "complete" or relative_gap(bound, ratio) <= gap:
            return replace(best, bound=bound, stopped="complete")
        if found.stopped != "complete":
            return replace(best, bound=bound, stopped=found.stopped)
