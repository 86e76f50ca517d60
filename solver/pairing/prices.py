"""Initial prices, from the last round or from a sample of the jobs.

The prices of a random eighth of the jobs (found in the same way) are close to those of all jobs if
the limit on GPUs is scaled accordingly. They are extended to the other jobs in one pass: each job's
potential is raised until no pair with a sampled job has negative reduced cost. Initial prices
affect only how fast the proof is found, never the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.budget import Budget
from dovetail.solver.pairing.capacity import solve_prices
from dovetail.solver.pairing.compilation import KernelCompiler
from dovetail.solver.pairing.dense import FORBIDDEN
from dovetail.solver.pairing.result import Prices
from dovetail.solver.pairing.size_class import ClassData, ClassStart, SizeClass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNSAMPLED = 160
"""Number of jobs up to which a sample saves nothing."""

_LEAST_SAMPLE = 256
_SAMPLED_PART = 8
_LARGEST_PART = 4
"""The sample: an eighth of the jobs, at least 256 but no more than a quarter."""

_SAMPLE_ROUNDS = 2
"""Pricing rounds for a sample, whose prices need not be exact."""


@dataclass(frozen=True)
class PriceStart:
    """The start of the price search.

    Attributes
    ----------
    price : int
        The price per GPU.
    classes : sequence of ClassStart
        The starts of the classes.
    slope : int, optional
        By how much the price changes per group (see ``Bracket``).
    """

    price: int
    classes: Sequence[ClassStart]
    slope: int | None = None


def sampled(
    classes: Sequence[ClassData],
    limit: int,
    largest: int,
    rng: np.random.Generator,
    run: KernelCompiler,
    budget: Budget,
) -> PriceStart:
    """Return initial prices from a sample of the jobs."""
    jobs = sum(len(c.nodes) for c in classes)
    if jobs <= _UNSAMPLED or all(c.graph is not None for c in classes):
        return PriceStart(_typical(classes), [ClassStart.unknown(c) for c in classes])
    share = min(max(_LEAST_SAMPLE, jobs // _SAMPLED_PART), jobs // _LARGEST_PART) / jobs
    chosen = [np.flatnonzero(rng.random(len(c.nodes)) < share) for c in classes]
    parts = [c.sample(run, k) for c, k in zip(classes, chosen, strict=True)]
    taken = sum(len(c.nodes) * c.size for c in parts) / sum(len(c.nodes) * c.size for c in classes)
    part_limit = max(1, round(limit * taken))
    first = sampled(parts, part_limit, largest, rng, run, budget)
    solvers = [
        SizeClass(c, run, k, first.price * c.size)
        for c, k in zip(parts, first.classes, strict=True)
    ]
    bracket, _ = solve_prices(
        solvers, part_limit, first.price, largest, False, budget, _SAMPLE_ROUNDS, first.slope
    )
    price = bracket.best.price
    starts = [
        _extended(c, k, t.potential, price * c.size, run)
        for c, k, t in zip(classes, chosen, bracket.best.tangents, strict=True)
    ]
    slope = None if bracket.slope is None else int(bracket.slope * taken)
    return PriceStart(price, starts, slope)


def _extended(
    data: ClassData, chosen: Ints, potential: Ints, price: int, run: KernelCompiler
) -> ClassStart:
    """Return the potentials of all jobs from those of the chosen jobs."""
    start = ClassStart.unknown(data)
    if data.pairs is None:
        return start
    raised = 2 * np.maximum(0, data.single - price)
    rows = np.arange(len(raised))
    data.pairs.raise_potentials(chosen, potential, rows, price, raised, run)
    return replace(start, potential=raised)


def known(
    classes: Sequence[ClassData], prices: Prices, scale: float, most: int, run: KernelCompiler
) -> PriceStart:
    """Return the start from the prices of the last round.

    Its values may have been much larger than this round's, so initial prices are at most ``most``.
    The price of GPUs is what this round's values of the last round's pairs are above their jobs'
    prices, for half of the pairs.
    """
    old = np.clip(prices.job * scale, -most, most)
    above = np.concatenate([_above_prices(c, prices, old, run) for c in classes])
    price = round(min(max(np.median(above) if len(above) else prices.gpu * scale, 0.0), most))
    return PriceStart(price, [_known_class(c, prices, old, price * c.size, run) for c in classes])


def _above_prices(data: ClassData, prices: Prices, old: Floats, run: KernelCompiler) -> Floats:
    """Return the values per GPU of the last round's pairs above their jobs' prices."""
    if data.pairs is None or prices.partner is None:
        return np.zeros(0)
    place = np.full(len(prices.job) + 1, -1, dtype=np.int64)
    place[data.nodes] = np.arange(len(data.nodes))
    own, other = np.arange(len(data.nodes)), place[prices.partner[data.nodes]]
    own, other = own[other >= 0], other[other >= 0]
    value = data.pairs.values(own, other, run)
    above = value - old[data.nodes[own]] - old[data.nodes[other]]
    return np.asarray(above[(value != FORBIDDEN) & np.isfinite(above)] / data.size)


def _known_class(
    data: ClassData, prices: Prices, old: Floats, price: int, run: KernelCompiler
) -> ClassStart:
    nodes = data.nodes
    is_known = np.isfinite(old[nodes])
    potential = np.round(2 * np.where(is_known, old[nodes], 0.0)).astype(np.int64)
    potential = np.maximum(potential, 2 * np.maximum(0, data.single - price))
    new = np.flatnonzero(~is_known)
    if data.pairs is not None:
        where = np.flatnonzero(is_known)
        data.pairs.raise_potentials(where, potential[where], new, price, potential, run)
    place = np.full(len(prices.job) + 1, -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    start = replace(ClassStart.unknown(data), potential=potential)
    if prices.partner is not None:
        start = replace(start, partner=place[prices.partner[nodes]])
    if prices.pairs is not None:
        first, second = place[prices.pairs]
        inside = (first >= 0) & (second >= 0)
        start = replace(start, pairs=(first[inside], second[inside]), new=new)
    return start


def _typical(classes: Sequence[ClassData]) -> int:
    """Return a first guess of the price per GPU: the median value per GPU of a job alone."""
    worth = np.concatenate([np.maximum(c.single, 0) // c.size for c in classes])
    return int(np.median(worth)) if len(worth) else 0
