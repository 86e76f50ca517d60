"""Several class sizes under one limit on GPUs: a knapsack over concave values.

The Lagrangean bound of ``capacity`` leaves a gap if groups take different numbers of GPUs. It is
closed without a search tree. Each class's value f(k) of k groups is concave and bounded by
tangents; a dynamic programme over the classes finds how many groups each should get if all tangents
were exact. There f is made exact (by a price search for that class alone, then merging), which adds
tangents; this repeats until the value of the matchings equals the programme's bound.

Only numbers of groups that lose no more than the gap at the capacity price can improve the
incumbent, and only pairs with a reduced cost below the gap can be in a better solution: relative to
the Lagrangean bound any solution loses at least the sum of its reduced costs. These pairs are first
added to the graph; after that the sparse graph is sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import Budget
from dovetail.solver.pairing.capacity import (
    Bracket,
    Joint,
    least_bound,
    merged,
    node_values,
)
from dovetail.solver.pairing.size_class import SizeClass, Tangent, exact_sum

Ints = NDArray[np.int64]

_IMPOSSIBLE = -(2**62)

_FEW = 16
"""Maximum number of pairs added per job before the optimum on the present graph."""

_MOST = 4_000_000
"""Maximum number of pairs added in the last step, over all jobs; with more, the gap remains."""

_MOST_CELLS = 2**24
"""Maximum number of cells of the knapsack's tables; with more, the gap remains."""

_WIDEN = 4

_NEAR = 32
"""The first tangents are at a distance of the gap divided by this number from the capacity price:
about where this many groups more or fewer would lose as much as the gap."""


@dataclass
class Incumbent:
    """The best solution so far: partners by class, value doubled."""

    partners: list[Ints]
    value2: int


class ConcaveValue:
    """f of one class, bounded by its tangents."""

    def __init__(self, size_class: SizeClass, main: Tangent, budget: Budget) -> None:
        self.size_class = size_class
        self.main = main
        self.tangents = [main]
        self._budget = budget

    def bounds2(self, counts: Ints) -> Ints:
        """Return the doubled bounds on f at these numbers of groups."""
        bounds2: Ints = np.min([t.bound2(0) + 2 * t.price * counts for t in self.tangents], axis=0)
        return bounds2

    def enclose(self, gap2: int) -> None:
        """Find tangents on either side whose solutions lose more than the gap.

        They keep the window small before f is bounded in between; fractional tangents are found
        faster and give valid bounds.
        """
        for sign in (1, -1):
            step = max(1, gap2 // _NEAR)
            while True:
                price = max(0, self.main.price + sign * step)
                tangent = self._evaluate(price, integral=False)
                loss2 = self.main.dual2 - tangent.value2 + self.main.price * tangent.count2
                if loss2 > gap2 or price == 0 or tangent.count2 == 0:
                    break
                step *= _WIDEN

    def window(self, gap2: int) -> Ints:
        """Return the numbers of groups that lose at most the gap at the capacity price."""
        counts = np.arange(len(self.size_class) + 1)
        loss2 = self.main.dual2 + 2 * self.main.price * counts - self.bounds2(counts)
        return np.flatnonzero(loss2 <= gap2)

    def best(self, count: int) -> Ints:
        """Return a best matching of at most ``count`` groups; its bound is then exact."""
        fewer = [t for t in self.tangents if t.integral and t.count2 <= 2 * count]
        more = [t for t in self.tangents if t.integral and t.count2 > 2 * count]
        below = min(fewer, key=lambda t: t.price, default=None)
        if below is not None and (below.count2 == 2 * count or below.price == 0):
            return below.partner
        above = max(more, key=lambda t: t.price, default=None)
        bracket: Bracket[Tangent] = (
            Bracket(below, below, above, 0)
            if below and above and below.price - above.price <= 1
            else least_bound(
                self._evaluate,
                count,
                self.main.price,
                1,
                fewer=below,
                more=above,
            )
        )
        return merged(self.size_class, bracket, count)

    def _evaluate(self, price: int, integral: bool = True) -> Tangent:
        tangent = self.size_class.evaluate(price, integral, self._budget)
        self.tangents.append(tangent)
        return tangent


def close_gap(
    classes: Sequence[SizeClass],
    limit: int,
    main: Joint,
    incumbent: Incumbent,
    bound2: int,
    budget: Budget,
) -> tuple[list[ConcaveValue], int]:
    """Improve the incumbent to the optimum; return the classes' values and the proven bound.

    The gap of a good incumbent determines which pairs could be in a better solution; they are added
    to the graph first. If they are too many, the optimum on the present graph is found before.
    """
    if incumbent.value2 >= bound2:
        return [], bound2
    values = _values(classes, main, budget)
    _try(values, _filled(main, limit, values), incumbent)
    if limit * len(classes) > _MOST_CELLS:
        return [], bound2
    if not _add_survivors(classes, main, bound2 - incumbent.value2, _FEW):
        _refine(values, limit, incumbent, bound2)
        most = _MOST // sum(map(len, classes))
        if not _add_survivors(classes, main, bound2 - incumbent.value2, most):
            return [], bound2
    values = _values(classes, main, budget)
    return values, _refine(values, limit, incumbent, bound2)


def _values(classes: Sequence[SizeClass], main: Joint, budget: Budget) -> list[ConcaveValue]:
    return [ConcaveValue(c, t, budget) for c, t in zip(classes, main.tangents, strict=True)]


def _add_survivors(classes: Sequence[SizeClass], main: Joint, gap2: int, most: int) -> bool:
    """Add the pairs that could be in a better solution to the graphs, unless there are too many."""
    tangents = zip(classes, main.tangents, strict=True)
    return gap2 <= 0 or all(c.add_survivors(t, gap2, most) for c, t in tangents)


def _refine(values: Sequence[ConcaveValue], limit: int, incumbent: Incumbent, bound2: int) -> int:
    """Solve the problem on the working graphs; return its optimum."""
    for value in values:
        value.enclose(bound2 - incumbent.value2)
    while True:
        best2, counts = _knapsack(values, limit, bound2 - incumbent.value2)
        if best2 <= incumbent.value2:
            return incumbent.value2
        _try(values, counts, incumbent)


def _try(values: Sequence[ConcaveValue], counts: Sequence[int], incumbent: Incumbent) -> None:
    """Solve the classes for these numbers of groups; keep the solution if it is better."""
    partners = [v.best(k) for v, k in zip(values, counts, strict=True)]
    value2 = sum(
        exact_sum(node_values(v.size_class, p)[0]) for v, p in zip(values, partners, strict=True)
    )
    if value2 > incumbent.value2:
        incumbent.partners = partners
        incumbent.value2 = value2


def _filled(main: Joint, limit: int, values: Sequence[ConcaveValue]) -> list[int]:
    """Return the numbers of groups at the capacity price, changed so that all GPUs are used.

    Missing or surplus GPUs are balanced by the largest groups first.
    """
    left = limit - main.count2 // 2
    counts = [t.count2 // 2 for t in main.tangents]
    sizes = [v.size_class.data.size for v in values]
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        change = max(-counts[k], left // sizes[k])
        counts[k] += change
        left -= change * sizes[k]
    return counts


def _knapsack(values: Sequence[ConcaveValue], limit: int, gap2: int) -> tuple[int, list[int]]:
    """Return the best sum of the classes' bounds within the limit, and their group counts."""
    windows = [v.window(gap2) for v in values]
    sizes = [v.size_class.data.size for v in values]
    least = sum(s * int(w[0]) for s, w in zip(sizes, windows, strict=True))
    room = limit - least + 1
    if room <= 0:
        return _IMPOSSIBLE, []
    best = np.zeros(room, dtype=np.int64)
    choices = []
    for value, size, window in zip(values, sizes, windows, strict=True):
        following = np.full(room, _IMPOSSIBLE, dtype=np.int64)
        choice = np.zeros(room, dtype=np.int64)
        for k, bound2 in zip(window.tolist(), value.bounds2(window).tolist(), strict=True):
            shift = size * (k - int(window[0]))
            if shift >= room:
                break
            reached = best[: room - shift] + bound2
            better = reached > following[shift:]
            following[shift:][better] = reached[better]
            choice[shift:][better] = k
        best = following
        choices.append(choice)
    counts = []
    at = int(np.argmax(best))
    total = int(best[at])
    for size, window, choice in zip(
        reversed(sizes), reversed(windows), reversed(choices), strict=True
    ):
        k = int(choice[at])
        counts.append(k)
        at -= size * (k - int(window[0]))
    return total, counts[::-1]
