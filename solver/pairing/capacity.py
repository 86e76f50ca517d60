"""The capacity price: a Lagrangean relaxation of the limit on GPUs.

With a price per GPU the limit disappears from the constraints, and

    bound(price) = price x limit + max over matchings of (value - price x GPUs used)

is a piecewise linear convex function, each solution being a tangent. It is minimised by moving to
the intersection of the tangents of a solution that uses too much and of one that does not (Kelley's
cutting planes in one dimension); prices are whole units, so this ends.

If all groups take the same number of GPUs, the two final solutions *merge* into the optimum: their
symmetric difference falls into components that change the number of groups by at most one. Both are
optimal at prices one unit apart (or at one), so a component that adds a group adds between these
two prices to the value, and none removes one. Taking the most valuable until the limit is reached
gives a value equal to the bound: f(k) = L(price) + price k for one of the two prices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import Budget
from dovetail.solver.pairing.compilation import kernel
from dovetail.solver.pairing.size_class import Graph, SizeClass, Tangent

Ints = NDArray[np.int64]

_BISECT_AFTER, _BISECT_EVERY = 6, 3
"""Tangents converge fast in practice; occasional bisection guarantees it."""

_WIDEN = 4
"""Growth of the step while only one side of the best price is known."""

_ROUNDS = 25
"""Maximum number of pricing rounds of the price search (a few are usual)."""


class Point(Protocol):
    """A solution at a price; its use and its value are doubled."""

    @property
    def price(self) -> int: ...  # noqa: D102
    @property
    def dual2(self) -> int: ...  # noqa: D102
    @property
    def count2(self) -> int: ...  # noqa: D102
    @property
    def value2(self) -> int: ...  # noqa: D102


P = TypeVar("P", bound=Point)


@dataclass(frozen=True)
class Joint:
    """The solutions of all classes at a price per GPU; ``count2`` is in GPUs."""

    price: int
    tangents: tuple[Tangent, ...]
    dual2: int
    count2: int

    @property
    def value2(self) -> int:
        """The value of the solution, doubled."""
        return self.dual2 + self.price * self.count2


@dataclass(frozen=True)
class Bracket(Generic[P]):
    """The result of the price search.

    Attributes
    ----------
    best : P
        The solution whose tangent gives the least bound.
    fewer, more : P or None
        The nearest solutions within the limit and beyond it.
    bound2 : int
        The least bound, doubled.
    """

    best: P
    fewer: P | None
    more: P | None
    bound2: int

    @property
    def slope(self) -> int | None:
        """By how much the price changes per group, halved; None if one side is unknown."""
        if self.fewer is None or self.more is None or self.more.count2 <= self.fewer.count2:
            return None
        width = self.fewer.price - self.more.price
        return width // (self.more.count2 - self.fewer.count2)


def least_bound(
    evaluate: Callable[[int], P],
    limit: int,
    price: int,
    scale: int,
    tolerance2: int = 0,
    fewer: P | None = None,
    more: P | None = None,
    slope: int | None = None,
) -> Bracket[P]:
    """Minimise the bound over prices >= 0, starting at ``price`` or from two known sides.

    While only one side is known, the step is proportional to the excess or shortfall of use, as if
    the price had to change in the same proportion. ``scale`` replaces a price of 0. ``tolerance2``
    is how far above the minimum (doubled) the bound may stay.
    """
    if fewer is not None and more is not None:
        price = _where_tangents_meet(fewer, more)
    unit = max(1, (price or scale) // (2 * limit + 1) if slope is None else slope)
    for count in range(10**9):
        point = evaluate(price)
        if point.count2 > 2 * limit:
            more = point
        else:
            fewer = point
            if price == 0 or point.count2 == 2 * limit:
                return Bracket(point, point, more, _at(point, limit))
        if more is None or fewer is None:
            price = max(0, price + unit * (point.count2 - 2 * limit))
            unit *= _WIDEN
        elif fewer.price - more.price <= 1 or _met(fewer, more, limit, tolerance2):
            break
        elif count > _BISECT_AFTER and count % _BISECT_EVERY == 0:
            price = (fewer.price + more.price) // 2
        else:
            price = _where_tangents_meet(fewer, more)
    assert fewer is not None
    assert more is not None
    best = min(fewer, more, key=lambda p: _at(p, limit))
    return Bracket(best, fewer, more, _at(best, limit))


def _at(point: Point, limit: int) -> int:
    return point.dual2 + 2 * point.price * limit


def _met(fewer: Point, more: Point, limit: int, tolerance2: int) -> bool:
    """Return whether no price in between can lower the bound by more than the tolerance."""
    uses = more.count2 - fewer.count2
    gains = more.value2 - fewer.value2
    least = min(_at(fewer, limit), _at(more, limit))
    return (least - tolerance2 - fewer.value2) * uses <= gains * (2 * limit - fewer.count2)


def _where_tangents_meet(fewer: Point, more: Point) -> int:
    price = (more.value2 - fewer.value2) // (more.count2 - fewer.count2)
    return min(max(price, more.price + 1), fewer.price - 1)


def evaluate_all(classes: Sequence[SizeClass], price: int, integral: bool, budget: Budget) -> Joint:
    """Solve all classes at a price per GPU."""
    tangents = tuple(c.evaluate(price * c.data.size, integral, budget) for c in classes)
    used2 = sum(c.data.size * t.count2 for c, t in zip(classes, tangents, strict=True))
    return Joint(price, tangents, sum(t.dual2 for t in tangents), used2)


def solve_prices(
    classes: Sequence[SizeClass],
    limit: int,
    price: int,
    scale: int,
    integral: bool,
    budget: Budget,
    rounds: int = _ROUNDS,
    slope: int | None = None,
) -> tuple[Bracket[Joint], bool]:
    """Find the capacity price and price in pairs alternately, until none prices in.

    The result is the last bracket, and whether its best point is proven for all pairs.
    """
    tolerance2 = 0 if integral else 2 * limit
    for _ in range(rounds):
        bracket = least_bound(
            lambda t: evaluate_all(classes, t, integral, budget),
            limit,
            price,
            scale,
            tolerance2,
            slope=slope,
        )
        added = sum(
            c.price_in(t, budget) for c, t in zip(classes, bracket.best.tangents, strict=True)
        )
        if added == 0:
            return bracket, True
        price, slope = bracket.best.price, bracket.slope
    return bracket, False


def merged(size_class: SizeClass, bracket: Bracket[Tangent], count: int) -> Ints:
    """Return the best matching of at most ``count`` groups from the two nearest solutions."""
    fewer, more = bracket.fewer, bracket.more
    assert fewer is not None
    missing = count - fewer.count2 // 2
    if more is None or missing == 0:
        return fewer.partner
    component = np.empty(len(size_class), dtype=np.int64)
    size_class.run(components)(fewer.partner, more.partner, component)
    values, counts = [], []
    for tangent in (fewer, more):
        value2, count2 = node_values(size_class, tangent.partner)
        values.append(_sums(component, value2))
        counts.append(_sums(component, count2))
    adds = np.flatnonzero(counts[1] - counts[0] == 2)
    gain = (values[1] - values[0])[adds]
    dearest = adds[np.argsort(-gain, kind="stable")[:missing]]
    return np.where(np.isin(component, dearest), more.partner, fewer.partner)


def _sums(component: Ints, amount: Ints) -> Ints:
    total = np.zeros(int(component.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(total, component, amount)
    return total


def node_values(size_class: SizeClass, partner: Ints) -> tuple[Ints, Ints]:
    """Return each job's contribution to the doubled value and the doubled number of groups."""
    own = np.arange(len(size_class))
    weight = np.zeros(len(size_class), dtype=np.int64)
    graph: Graph = size_class.graph
    size_class.run(partner_weights)(graph.start, graph.head, graph.weight, partner, weight)
    data = size_class.data
    value2 = np.where(partner < 0, 2 * data.rest, weight)
    value2 = np.where(partner == own, 2 * data.single, value2)
    count2 = np.where(partner < 0, 0, np.where(partner == own, 2, 1))
    return value2, count2


@kernel
def partner_weights(start: Ints, head: Ints, weight: Ints, partner: Ints, found: Ints) -> None:
    """Look up the weight of each node's edge to its partner."""
    for i in range(partner.size):
        for e in range(start[i], start[i + 1]):
            if head[e] == partner[i]:
                found[i] = weight[e]


@kernel
def components(a: Ints, b: Ints, component: Ints) -> None:
    """Number the components of the union of two matchings."""
    n = a.size
    stack = np.empty(2 * n + 2, np.int64)
    for i in range(n):
        component[i] = -1
    count = 0
    for root in range(n):
        if component[root] >= 0:
            continue
        component[root] = count
        stack[0] = root
        height = 1
        while height > 0:
            height -= 1
            i = stack[height]
            j = a[i]
            if j >= 0 and component[j] < 0:
                component[j] = count
                stack[height] = j
                height += 1
            j = b[i]
            if j >= 0 and component[j] < 0:
                component[j] = count
                stack[height] = j
                height += 1
        count += 1
