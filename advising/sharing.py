"""Slowdowns of kinds of work that share a GPU, for each case, from what monitoring records.

They are those of the law of MPS at caps (``dovetail.predictors.kernels``), for profiles made of the
figures of the case. In the case likely the prediction counts, in the case low its upper bound,
which assumes the worst of unknown figures, and in the case high the square of the prediction over
the bound, at least 1: as much smaller as the bound is larger. These are estimates: the law was
fitted on one H200. ``benchmarks/advising/ranges.py`` has how often the cases hold there with each
workload left out. The law was fitted on pairs: of three and more jobs under caps nobody has
published a measurement, so there its bounds are untested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.work import CASES, Bools, Floats, Ints, Work
from dovetail.formulations.budget import Budget
from dovetail.instances.instance import Workload
from dovetail.predictors.kernels import Law, bounded, profiles, ranges, roofline

SPLITS: Final = ((50, 50), (60, 40), (40, 60), (70, 30), (30, 70))
"""The SM shares of two jobs, in per cent, that are compared."""

RESERVE_MIB: Final = 1_024.0
"""Memory of a card that stays free for the driver and contexts."""

_FORBIDDEN: Final = 1e6
_WORTH: Final = 0.02
"""Halves are taken unless the sum of both slowdowns is smaller by this at another split."""

CONFIDENCE: Final = 0.9
"""The confidence of the upper bounds of the case low."""

_LAW: Final = Law()
_FAR: Final = NormalDist().inv_cdf(CONFIDENCE)

_ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True, eq=False)
class KindPairs:
    """What two kinds of work do to each other on a GPU, in one case.

    Attributes
    ----------
    fits : (kinds, kinds) bool
        Whether both fit into the memory of a card, are on the same GPU model and use equally many
        GPUs on equally many nodes.
    allowed : (kinds, kinds) bool
        Whether they may share: they fit, and both slowdowns are within the limit at some split.
    split : (kinds, kinds) int
        The best split, a position in ``SPLITS``: the least sum of both slowdowns within the limit.
    slowdown : (kinds, kinds) float
        The slowdown of the first kind at that split; at the least one if none is within the limit;
        NaN if unknown.
    law : SharingLaw
        The law for the kinds that fit beside another in some case.
    """

    fits: Bools
    allowed: Bools
    split: NDArray[np.int8]
    slowdown: NDArray[np.float32]
    law: SharingLaw


def pairs_of(
    work: Work,
    case: int,
    limit: float,
    budget: Budget,
    splits: Sequence[tuple[int, int]] = SPLITS,
) -> KindPairs:
    """Return all pairs of kinds in a case, under a limit of the slowdown, at the best of splits.

    Raises
    ------
    OutOfTimeError
        When the budget is spent.
    """
    fits = _fits(work, case)
    shape = fits.shape
    allowed, split = np.zeros(shape, np.bool_), np.zeros(shape, np.int8)
    slowdown = np.full(shape, np.nan, np.float32)
    mirrored = np.array([splits.index((other, own)) for own, other in splits], np.int8)
    # Pairs that may share in any case: their slowdowns are told for all.
    asked = (fits | _fits(work, CASES.index("high"))) & work.used[:, None] & work.used[None, :]
    law = SharingLaw(work, case, np.flatnonzero(asked.any(axis=1)))
    first, second = np.nonzero(np.triu(asked))
    for start in range(0, len(first), _ROWS_AT_ONCE):
        budget.check()
        rows = slice(start, start + _ROWS_AT_ONCE)
        a, b = first[rows], second[rows]
        number, both, within = _best_split(law, np.stack([a, b], axis=1), limit, splits)
        slowdown[b, a], slowdown[a, b] = both[:, 1], both[:, 0]
        split[b, a], split[a, b] = mirrored[number], number
        allowed[a, b] = allowed[b, a] = within
    allowed &= fits
    if case == CASES.index("low"):
        # No record tells a service's tail latency: it shares with services only.
        allowed &= work.service[:, None] == work.service[None, :]
    return KindPairs(fits, allowed, split, slowdown, law)


def _best_split(
    law: SharingLaw, pairs: Ints, limit: float, splits: Sequence[tuple[int, int]]
) -> tuple[Ints, Floats, Bools]:
    """Return the split of each pair, both slowdowns there, and whether they are within the limit.

    The best split has the least sum of both slowdowns within the limit; without one, the least of
    the larger one.
    """
    least = np.full(len(pairs), np.inf)
    number, both = np.zeros(len(pairs), np.int64), np.full((len(pairs), 2), np.nan)
    for k, shares in enumerate(splits):
        found = law.slowdowns(pairs, np.full(pairs.shape, shares))
        within = (found <= limit).all(axis=1)
        cost = np.where(within, found.sum(axis=1), _FORBIDDEN + found.max(axis=1))
        better = cost < least - (_WORTH if k else 0.0)
        least = np.where(better, cost, least)
        number[better], both[better] = k, found[better]
    return number, both, np.asarray(least < _FORBIDDEN)


class SharingLaw:
    """The law of MPS for some kinds of the work in a case.

    Parameters
    ----------
    work : Work
        The work.
    case : int
        The case, a position in ``CASES``.
    kinds : (n,) int
        The kinds, all of known use.
    """

    def __init__(self, work: Work, case: int, kinds: Ints) -> None:
        self._case = case
        self._place = np.full(len(work.used), -1)
        self._place[kinds] = np.arange(len(kinds))
        self._demand = ranges(profiles({str(k): _workload(work, case, k) for k in kinds.tolist()}))

    def slowdowns(self, kinds: Ints, shares: Ints) -> Floats:
        """Return the slowdowns of sets of kinds with these shares.

        Parameters
        ----------
        kinds, shares : (sets, k) int
            The kinds that share a GPU, and their shares in per cent.

        Returns
        -------
        (sets, k) float
        """
        unknown = np.full(kinds.shape, np.nan)
        likely, upper, _ = bounded(_LAW, self._demand, self._place[kinds], shares, unknown, _FAR)
        if self._case == CASES.index("likely"):
            return likely
        if self._case == CASES.index("low"):
            return upper
        return np.maximum(1.0, likely**2 / upper)

    def alone(self, shares: Ints) -> Floats:
        """Return the slowdown of each kind that runs alone at a share; NaN for other kinds.

        Parameters
        ----------
        shares : (kinds,) int
            The share of each kind in per cent.
        """
        found, known = np.full(len(self._place), np.nan), self._place >= 0
        demand = self._demand.worst if self._case == CASES.index("low") else self._demand.likely
        found[known] = roofline(demand, shares[known])
        return found


def _workload(work: Work, case: int, kind: int) -> Workload:
    """Return a kind as a workload with the profile of a case."""
    figures = {name: float(values[case, kind]) for name, values in work.metrics.items()}
    known = {name: value for name, value in figures.items() if not np.isnan(value)}
    kernels = work.profiles.get(kind)
    if kernels is not None:
        known = {**kernels.model_dump(exclude_none=True), **known}
    return Workload.from_data({"memory_mib": 0.0, "metrics": known})


def has_partner(work: Work, allowed: Bools) -> Bools:
    """Return whether each kind may share with another one, or with itself if it has two jobs."""
    others = allowed.copy()
    np.fill_diagonal(others, allowed.diagonal() & (work.runs > 1))
    return np.asarray(others.any(axis=1))


def _fits(work: Work, case: int) -> Bools:
    memory, models = work.memory_mib[case], np.unique(work.models, return_inverse=True)[1]
    card = np.minimum(work.card_mib[:, None], work.card_mib[None, :])
    with np.errstate(invalid="ignore"):
        fits = memory[:, None] + memory[None, :] <= card - RESERVE_MIB
    fits &= models[:, None] == models[None, :]
    fits &= work.gpus[:, None] == work.gpus[None, :]
    fits &= work.nodes[:, None] == work.nodes[None, :]
    return np.asarray(fits)
