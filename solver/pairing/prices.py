"""Prices to start from: those of the last round, or of a sample of the jobs.

The prices of a random eighth of the jobs (found the same way) are close to those of all, when
the limit on GPUs is scaled alike. They extend to the other jobs in one pass: each job's
potential is raised until no pair with a sampled job has negative reduced cost. Start prices
decide only how fast the proof is found, never what is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing import dense
from dovetail.solver.pairing.capacity import solve_prices
from dovetail.solver.pairing.compilation import Run, over_rows
from dovetail.solver.pairing.deadline import Deadline
from dovetail.solver.pairing.size_class import ClassData, SizeClass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNSAMPLED = 160
"""Jobs up to which a sample would save nothing."""

_LEAST_SAMPLE = 256
_SAMPLED_PART = 8
_LARGEST_PART = 4
"""The sample: an eighth of the jobs, at least 256 but no more than a quarter."""

_SAMPLE_ROUNDS = 2
"""Rounds of pricing for a sample, whose prices need not be exact."""

UNKNOWN_STEP, SAMPLED_STEP, KNOWN_STEP = 16, 64, 512
"""First steps of the price search, in parts of the largest value."""


@dataclass(frozen=True)
class Prices:
    """What GPUs and jobs are worth at the optimum, to start the next round from.

    Attributes
    ----------
    gpu : float
        Per GPU: what one more would add.
    job : (n,) float
        Per job: what it adds above the price of the GPUs it takes; NaN for jobs not known yet.
    """

    gpu: float
    job: Floats

    def reindexed(self, index: Ints) -> Prices:
        """Return the prices of another set of jobs.

        Parameters
        ----------
        index : (m,) int
            For each job of the new set its index in this one, -1 where it is new.
        """
        index = np.asarray(index, dtype=np.int64)
        if len(index) and not (index.min() >= -1 and index.max() < len(self.job)):
            raise ValueError(f"index must be from -1 to {len(self.job) - 1}, got {index.tolist()}")
        return Prices(self.gpu, np.append(self.job, np.nan)[index])


@dataclass(frozen=True)
class Start:
    """Where the price search begins: the price per GPU, the step, potentials by class."""

    price: int
    step: int
    potentials: Sequence[Ints | None]


def sampled(
    classes: Sequence[ClassData],
    limit: int,
    largest: int,
    rng: np.random.Generator,
    run: Run,
    deadline: Deadline,
) -> Start:
    """Return start prices from a sample of the jobs."""
    jobs = sum(len(c.nodes) for c in classes)
    if jobs <= _UNSAMPLED or all(c.graph is not None for c in classes):
        return Start(_typical(classes), max(1, largest // UNKNOWN_STEP), [None] * len(classes))
    share = min(max(_LEAST_SAMPLE, jobs // _SAMPLED_PART), jobs // _LARGEST_PART) / jobs
    chosen = [np.flatnonzero(rng.random(len(c.nodes)) < share) for c in classes]
    parts = [c.sample(run, k) for c, k in zip(classes, chosen, strict=True)]
    taken = sum(len(c.nodes) * c.size for c in parts) / sum(len(c.nodes) * c.size for c in classes)
    part_limit = max(1, round(limit * taken))
    first = sampled(parts, part_limit, largest, rng, run, deadline)
    solvers = [
        SizeClass(c, run, p, first.price * c.size)
        for c, p in zip(parts, first.potentials, strict=True)
    ]
    bracket, _ = solve_prices(
        solvers, part_limit, first.price, first.step, False, deadline, _SAMPLE_ROUNDS
    )
    price = bracket.best.price
    potentials = [
        _extended(c, k, t.potential, np.arange(len(c.nodes)), price * c.size, run)
        for c, k, t in zip(classes, chosen, bracket.best.tangents, strict=True)
    ]
    return Start(price, max(1, largest // SAMPLED_STEP), potentials)


def known(
    classes: Sequence[ClassData], prices: Prices, scale: float, largest: int, run: Run
) -> Start:
    """Return start prices from those of the last round."""
    price = max(0, round(prices.gpu * scale))
    potentials: list[Ints | None] = []
    for c in classes:
        old = prices.job[c.nodes]
        is_known = np.isfinite(old)
        doubled = np.round(2 * scale * np.where(is_known, old, 0.0)).astype(np.int64)
        potential = np.maximum(doubled, 2 * np.maximum(0, c.single - price * c.size))
        where = np.flatnonzero(is_known)
        new = np.flatnonzero(~is_known)
        potentials.append(
            _extended(c, where, potential[where], new, price * c.size, run, potential)
        )
    return Start(price, max(1, largest // KNOWN_STEP), potentials)


def _typical(classes: Sequence[ClassData]) -> int:
    """Return a first guess of the price per GPU: what the median job alone is worth."""
    worth = np.concatenate([np.maximum(c.single, 0) // c.size for c in classes])
    return int(np.median(worth)) if len(worth) else 0


def _extended(
    data: ClassData,
    known_nodes: Ints,
    known_potential: Ints,
    rows: Ints,
    price: int,
    run: Run,
    potential: Ints | None = None,
) -> Ints | None:
    """Extend the potentials of some jobs of a class to the given rows."""
    if data.fixed is None:
        return potential
    if potential is None:
        potential = 2 * np.maximum(0, data.single - price)
    over_rows(
        run, dense.extend_rows, len(rows), max(1, len(known_nodes)),
        data.fixed, known_nodes, known_potential, rows, price, potential,
    )  # fmt: skip
    return potential
