"""Gangs on GPUs of several classes, each evaluated at a few paces.

A gang runs at the pace of its slowest worker and holds all its GPUs until it ends. So the cost of a
GPU depends on the slowest of the others, which a single group cannot express. Here a gang that
takes GPUs of several classes becomes a few variants, each at a pace: a slowdown at which it is
evaluated everywhere, on no GPU that slows it more. A plan at a pace has the stated value if the
gang runs at that pace, and a higher one if it runs faster. For each pace only the GPUs that are
worth most are kept, so that each gang has a few to choose from, not all: a heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints, joined_ints, packed
from dovetail.formulations.rounds import Round, Variants
from dovetail.formulations.values import JobValues, Rows

Number = TypeVar("Number", bound=np.generic)

_PACES = 4
"""Maximum number of paces for a gang."""

_DEMAND = 2.0
"""Gangs are kept until they need this many times the available GPUs."""


class _Wide(NamedTuple):
    """Groups of one size in which one gang starts, alone or with running jobs.

    ``rows``, and ``gang``: the gang's column in each row.
    """

    rows: Rows
    gang: Ints

    def of_gang(self, columns: NDArray[Number]) -> NDArray[Number]:
        """Return the gang's entry of each row."""
        return columns[np.arange(len(columns)), self.gang]


def paced(
    compiled: Round, values: JobValues, parts: Sequence[Rows], variants: Variants
) -> tuple[list[Rows], Variants]:
    """Return groups with gangs that need several classes at a few paces, and variants.

    Parameters
    ----------
    compiled : Round
        The round; gangs may share some of their GPUs.
    values : JobValues
        The objective. It assumes that a variant beyond those of the round is as slow as in its row
        until it ends.
    parts : sequence of Rows
        All groups, each part of one size.
    variants : Variants
        The variants that the rows index.
    """
    if not compiled.gangs_wait:
        return list(parts), variants
    kept, wide = [], []
    for part in parts:
        narrow, starts, gang = _kinds(compiled, part, part.job)
        kept.append(part if narrow.all() else part.take(narrow))
        if starts.any():
            wide.append(_Wide(part.take(starts), gang[starts]))
    if not wide:
        return kept, variants
    return _Offers(compiled, values, wide, variants).added_to(kept)


def _kinds(compiled: Round, rows: Rows, job: Ints) -> tuple[Bools, Bools, Ints]:
    """Return which groups one class has room for, in which one gang starts, and its column.

    Gangs that start together take all their GPUs together, so they have equally many workers.
    """
    workers = compiled.jobs.workers[job]
    pending = ~compiled.jobs.running[job]
    gang = pending & (workers > 1)
    room = compiled.classes.size[rows.gpu_class][:, None]
    most = np.where(pending, workers, 0).max(axis=1)[:, None]
    narrow = ~(gang & (workers > room)).any(axis=1) & (~pending | (workers == most)).all(axis=1)
    starts = gang.any(axis=1) & (pending.sum(axis=1) == 1)
    return narrow, starts, gang.argmax(axis=1)


class _Offers:
    """The groups at each pace: e expanded rows, ``part`` by part.

    Attributes
    ----------
    paces : list of (int, float)
        The variant and the pace of each offer.
    """

    def __init__(
        self, compiled: Round, values: JobValues, wide: Sequence[_Wide], variants: Variants
    ) -> None:
        self._round = compiled
        self._values = values
        self._first = len(variants)
        part = np.repeat(np.arange(len(wide)), [len(w.rows) for w in wide])
        row = np.concatenate([np.arange(len(w.rows)) for w in wide])
        variant = np.concatenate([w.of_gang(w.rows.variant) for w in wide])
        slowdown = np.concatenate([w.of_gang(w.rows.slowdown) for w in wide])
        gpu_class = np.concatenate([w.rows.gpu_class for w in wide])
        chosen, pace, base = self._expanded(variants.job, variant, slowdown, gpu_class)
        self._variants = Variants.joined([variants, variants.take(base)])
        self._job = self._variants.job
        self._rows: list[Rows] = []
        found = []
        for k, w in enumerate(wide):
            mine = part[chosen] == k
            found.append(self._worth(w, row[chosen[mine]], pace[mine]))
        self._each = np.concatenate([each for each, _ in found])
        self._gain = np.concatenate([gain for _, gain in found])

    def _expanded(
        self, job: Ints, variant: Ints, slowdown: Floats, gpu_class: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Return the rows at each pace, and the pace; and the variant of which each is one."""
        key = packed(np.stack([variant, self._round.classes.model[gpu_class]], axis=1))
        order = np.argsort(key, kind="stable")
        chosen, paces, bases = [], [], []
        self._limit: list[float] = []
        for of_key in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            base = variant[of_key[0]]
            workers = self._round.jobs.workers[job[base]]
            for limit in self._limits(slowdown[of_key], gpu_class[of_key], int(workers)):
                rows = of_key[slowdown[of_key] <= limit]
                chosen.append(rows)
                paces.append(np.full(len(rows), len(self._limit)))
                self._limit.append(limit)
                bases.append(base)
        return joined_ints(chosen), joined_ints(paces), np.array(bases, dtype=np.int64)

    def _limits(self, slowdown: Floats, gpu_class: Ints, workers: int) -> list[float]:
        """Return the paces of a gang, out of those at which enough GPUs have room."""
        order = np.argsort(slowdown, kind="stable")
        _, first = np.unique(gpu_class[order], return_index=True)
        room = np.zeros(len(order))
        room[first] = self._round.classes.size[gpu_class[order][first]]
        enough = np.cumsum(room) >= workers
        limits = np.unique(slowdown[order][enough])
        if len(limits) > _PACES:
            limits = limits[np.linspace(0, len(limits) - 1, _PACES).round().astype(np.int64)]
        found: list[float] = limits.tolist()
        return found

    def _worth(self, wide: _Wide, row: Ints, pace: Ints) -> tuple[Floats, Floats]:
        """Return the worth of each of a gang's GPUs at its pace, and the gain of the gang."""
        rows, gang = wide.rows.take(row), wide.gang[row][:, None]
        variant, slowdown = rows.variant.copy(), rows.slowdown.copy()
        np.put_along_axis(variant, gang, self._first + pace[:, None], axis=1)
        np.put_along_axis(slowdown, gang, np.array(self._limit)[pace][:, None], axis=1)
        rows = replace(rows, variant=variant, slowdown=slowdown)
        self._rows.append(rows)
        gains = self._values.gains(rows)
        gain = np.take_along_axis(gains, gang, axis=1)[:, 0]
        size = np.minimum(
            self._round.classes.size[rows.gpu_class],
            np.take_along_axis(self._round.jobs.workers[rows.job], gang, axis=1)[:, 0],
        )
        # The loss of a running job counts once, however many of its GPUs the gang takes.
        lost = (gains.sum(axis=1) - gain) / size
        return self._values.value(rows) + lost, gain

    def added_to(self, kept: list[Rows]) -> tuple[list[Rows], Variants]:
        """Return the groups of the best offers in addition to the kept groups."""
        keep = self._best()
        at = 0
        for rows in self._rows:
            kept.append(rows.take(keep[at : at + len(rows)]))
            at += len(rows)
        return kept, self._variants

    def _best(self) -> Bools:
        """Return which rows are among the best for their gang at their pace, for the best gangs."""
        gpu_class = np.concatenate([rows.gpu_class for rows in self._rows])
        pace = np.concatenate([rows.variant.max(axis=1) for rows in self._rows]) - self._first
        jobs = self._round.jobs
        of_pace = self._job[self._first :]
        workers = jobs.workers[of_pace]
        # The best row of each class, then the best classes.
        order = np.lexsort((-self._each, gpu_class, pace))
        order = order[~np.isnan(self._each[order])]
        new = np.ones(len(order), dtype=bool)
        new[1:] = np.diff(gpu_class[order]) != 0
        new[1:] |= np.diff(pace[order]) != 0
        order = order[new]
        order = order[np.lexsort((-self._each[order], pace[order]))]
        size = np.minimum(self._round.classes.size[gpu_class[order]], workers[pace[order]])
        total = np.cumsum(size)
        first = np.searchsorted(pace[order], np.arange(len(of_pace)))
        before = total - size
        before -= np.append(before, 0)[first][pace[order]]
        count = np.clip(workers[pace[order]] - before, 0, size)
        enough = np.bincount(pace[order], count, len(of_pace)) >= workers
        worth = np.bincount(pace[order], count * self._each[order], len(of_pace))
        gain = np.full(len(of_pace), -np.inf)
        gain[pace[order]] = self._gain[order]
        of_job = np.full(len(jobs.ids), -np.inf)
        np.maximum.at(of_job, of_pace, np.where(enough, worth + gain, -np.inf))
        ranked = np.argsort(-of_job / jobs.workers, kind="stable")
        ranked = ranked[of_job[ranked] > 0]
        demand = np.cumsum(jobs.workers[ranked]) - jobs.workers[ranked]
        among = np.zeros(len(of_job), dtype=bool)
        among[ranked[demand < _DEMAND * self._round.classes.size.sum()]] = True
        # Better gangs may take the GPUs that are best for it.
        taken = np.zeros(len(of_job))
        taken[ranked] = demand
        keep = np.zeros(len(self._each), dtype=bool)
        few = before < (taken + jobs.workers)[of_pace[pace[order]]]
        keep[order[few & (among[of_pace] & enough)[pace[order]]]] = True
        return keep
