"""The engine's results and their proofs: the only types that it shares with its checker."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import ArgumentError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Dual:
    """A dual of one class.

    Attributes
    ----------
    jobs : (m,) int
        The jobs of the class.
    price : float
        The price per group.
    potential : (m,) float
        The potential p of each job.
    blossoms : tuple of ((k,) int, float)
        Odd sets of jobs and their duals.
    """

    jobs: Ints
    price: float
    potential: Floats
    blossoms: tuple[tuple[Ints, float], ...]

    @property
    def constant(self) -> float:
        """The bound for no groups."""
        inside = [z * ((len(members) - 1) // 2) for members, z in self.blossoms]
        return math.fsum([*self.potential.tolist(), *inside])


@dataclass(frozen=True)
class Certificate:
    """The duals that prove a bound.

    Attributes
    ----------
    main : tuple of Dual
        One per class, feasible for all pairs.
    refined : tuple of Dual
        Further duals, feasible for the pairs that could be in a better solution.
    """

    main: tuple[Dual, ...]
    refined: tuple[Dual, ...] = ()


@dataclass(frozen=True)
class Prices:
    """The prices of GPUs and jobs at the optimum, from which the next round may start.

    Attributes
    ----------
    gpu : float
        Per GPU: the value that one more would add.
    job : (n,) float
        Per job: its value above the price of the GPUs it takes; NaN for new jobs.
    partner : (n,) int, optional
        In the fractional optimum at these prices: the job that a job is assigned to (not
        necessarily vice versa), itself if it has no partner; -1 if unknown.
    pairs : (2, e) int, optional
        The pairs of jobs that are likely at these prices, the smaller index first.

    Raises
    ------
    ArgumentError
        If ``gpu`` is NaN, or ``partner`` or ``pairs`` are not indices of these jobs.
    """

    gpu: float
    job: Floats
    partner: Ints | None = None
    pairs: Ints | None = None

    def __post_init__(self) -> None:
        n = len(self.job)
        partner, pairs = self.partner, self.pairs
        if partner is not None and (
            partner.shape != (n,) or (partner < -1).any() or (partner >= n).any()
        ):
            raise ArgumentError(f"partner must hold {n} indices of jobs or -1")
        if math.isnan(self.gpu):
            raise ArgumentError("gpu must be a number")
        if pairs is not None and (
            pairs.ndim != 2
            or len(pairs) != 2
            or (pairs < 0).any()
            or (pairs >= n).any()
            or (pairs[0] >= pairs[1]).any()
        ):
            raise ArgumentError("pairs must hold two indices of jobs each, the smaller first")

    def reindexed(self, index: Ints) -> Prices:
        """Return the prices of another set of jobs.

        Parameters
        ----------
        index : (m,) int
            The index of each job of the new set in this one, -1 if it is new.
        """
        index = np.asarray(index, dtype=np.int64)
        n = len(self.job)
        if len(index) and not (index.min() >= -1 and index.max() < n):
            raise ArgumentError(f"index must be from -1 to {n - 1}, got {index.tolist()}")
        place = np.full(n + 1, -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        place[-1] = -1
        partner, pairs = self.partner, self.pairs
        if partner is not None:
            partner = place[np.append(partner, -1)[index]]
        if pairs is not None:
            pairs = np.sort(place[pairs], axis=0)
            pairs = pairs[:, pairs[0] >= 0]
        return Prices(self.gpu, np.append(self.job, np.nan)[index], partner, pairs)


@dataclass(frozen=True)
class Matching:
    """The result and proof of ``match_pairs``.

    Attributes
    ----------
    mate : (n,) int
        Each job's partner; its own index if it runs alone; -1 if it is not placed.
    value : float
        The sum of the values of the pairs and of the jobs alone; -inf without a solution.
    bound : float
        A proven bound on the value of every solution; -inf if there is provably none.
    gap : float
        ``|bound - value| / max(|bound|, |value|)``, 0 if both are 0; inf without a solution if that
        is not proven.
    status : str
        ``optimal`` (gap at most 1e-6), ``feasible``, ``infeasible`` (proven) or ``unknown``.
    certificate : Certificate
        The duals that prove the bound; ``certificate_errors`` checks them.
    prices : Prices
        Prices from which the next round may start (``previous``).
    """

    mate: Ints
    value: float
    bound: float
    gap: float
    status: str
    certificate: Certificate
    prices: Prices
