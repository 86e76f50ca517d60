"""Slowdowns that the owner of a cluster declares (``Cluster.assumed``), for jobs without caps.

- A pair that no entry names has the slowdown ``pair``, both jobs alike.
- A set of three and more that no entry names may share if each two of its jobs may, and if no
  entry says of some of its jobs that they may not share (``slowdown: null``). With ``sets:
  product``, a job's slowdown is the product of its slowdowns with each co-runner, and its bounds
  are the products of its bounds. A factor of a bound is at least 1, so that a bound holds when
  co-runners end.

The sets of a round are grown job by job. A set that lacks memory or gSLAs is dropped before it is
made larger: no larger set can need less memory or have smaller bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints, RowColumns, packed, ranges
from dovetail.formulations.budget import Budget, require_room
from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB, modes, most_bound
from dovetail.formulations.slowdowns import (
    Colocations,
    KnownPairs,
    KnownSets,
    Member,
    Members,
    Sharing,
)
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.sets import product_slowdown
from dovetail.instances.slowdowns.shares import NO_CAP

_TRIED_AT_ONCE = 2_000_000
"""Jobs of the sets that are tried at one time."""

_STEPS_PER_MEMBER = 50
"""Work to try one of them."""

_MEMBER_BYTES = 400
"""Measured memory of planning with a set, for each of its jobs."""

_LARGEST = 1e15
"""The largest slowdown; a larger product means that the jobs may not share."""


@dataclass(frozen=True)
class WaitingKinds:
    """The jobs of an instance by workload, as far as they decide which sets are possible.

    Attributes
    ----------
    workload : (u,) int
        The workloads that a job has, in the order of their names.
    waiting : (u,) int
        The number of waiting jobs of each.
    need_mib, need_part : (u,) float
        The least memory of a worker: in MiB, or as the part of what a GPU offers.
    upper, tail : (u,) float
        The largest bounds that some waiting job of priority ``batch`` or ``latency`` accepts; -inf
        if there is none.
    """

    workload: Ints
    waiting: Ints
    need_mib: Floats
    need_part: Floats
    upper: Floats
    tail: Floats

    @classmethod
    def of(cls, instance: Instance) -> WaitingKinds:
        """Return the jobs of an instance."""
        names = sorted({job.workload for job in instance.jobs})
        place = {name: k for k, name in enumerate(names)}
        number = {name: k for k, name in enumerate(instance.workloads)}
        waiting = np.zeros(len(names), dtype=np.int64)
        accepted = np.full((2, len(names)), -np.inf)
        overhead, least = instance.cluster.per_process_mib, np.empty((2, len(names)))
        for k, name in enumerate(names):
            ways = modes(instance.workloads[name], overhead)
            least[:, k] = min((way.memory_mib, way.memory_part) for way in ways)
        for job in instance.jobs:
            if not job.running:
                k, late = place[job.workload], int(job.priority == "latency")
                waiting[k] += 1
                accepted[late, k] = max(accepted[late, k], job.gsla or np.inf)
        numbers = np.array([number[name] for name in names], dtype=np.int64)
        return cls(numbers, waiting, *least, *most_bound(accepted))


def assumed_pairs(named: Bools, workload: Ints, slowdown: float) -> Colocations:
    """Return the pairs that no entry names, without caps and at one slowdown.

    Parameters
    ----------
    named : (u, u) bool
        The pairs that an entry names.
    workload : (u,) int
        The workloads, in the order of their names.
    slowdown : float
        The slowdown of both jobs.
    """
    one, other = np.nonzero(np.triu(~named))
    both = workload[np.stack([one, other], axis=1)]
    figures = np.full(both.shape, float(slowdown))
    unknown = np.full(len(both), np.nan)
    return Colocations(both, np.full_like(both, NO_CAP), figures, figures, figures, unknown)


class ProductSets(NamedTuple):
    """The sets on GPUs of a kind by the declared rule, for workloads whose pairs are tables.

    Attributes
    ----------
    sets : KnownSets
        The entries of three and more jobs. If one forbids a part of a set, the set may not share;
        the bounds of a set are at least those of its parts.
    kind : GpuKind
        The GPUs.
    slowdown, upper, tail : (workloads, workloads) float
        The figures of a job (rows) with another one (columns), without caps; NaN if unknown.
    """

    sets: KnownSets
    kind: GpuKind
    slowdown: Floats
    upper: Floats
    tail: Floats

    def rows(self, workload: Ints) -> Colocations:
        """Return those of these sets of workloads that may share, (n, size); none has an entry."""
        pair = workload[:, :, None], workload[:, None]
        found = Colocations(
            workload,
            np.full_like(workload, NO_CAP),
            product_slowdown(self.slowdown[pair]),
            product_slowdown(self.upper[pair], last=True),
            product_slowdown(self.tail[pair], last=True),
            np.full(len(workload), np.nan),
        )
        found = found.take(np.asarray(~np.isnan(found.slowdown).any(axis=1)))
        return _beside_parts(found, self.sets, self.kind) if len(self.sets) else found

    def find(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        """Return the figures of jobs that no entry names, or None if they may not share."""
        if any(share != NO_CAP for _, share in members):
            return None
        found = self.rows(np.array([[workload for workload, _ in members]], dtype=np.int64))
        return found.figures(0) if len(found) else None

    def left_of(self, members: Sequence[Member]) -> Iterator[tuple[Members, Sharing]]:
        """Yield the largest of these sets that may remain of one that an entry names."""
        return self.sets.left_by_rule(self.kind, members, self.find)


def _beside_parts(rows: Colocations, sets: KnownSets, kind: GpuKind) -> Colocations:
    """Return the rows of which no entry forbids a part, with the bounds of their parts."""
    upper, tail = rows.upper.copy(), rows.tail.copy()
    may = np.ones(len(rows), dtype=bool)
    for k, workloads in enumerate(rows.workload.tolist()):
        whole = [(workload, NO_CAP) for workload in workloads]
        for members, figures in sets.parts(kind, whole):
            if figures is None:
                may[k] = False
                break
            for member, most, late in zip(members, figures.upper, figures.tail, strict=True):
                at = [i for i, each in enumerate(whole) if each == member]
                upper[k, at] = np.maximum(upper[k, at], most)
                tail[k, at] = np.maximum(tail[k, at], late)
    return replace(rows, upper=upper, tail=tail).take(may)


@dataclass(frozen=True)
class _Grown(RowColumns):
    """Sets of equally many jobs: those that run first, then the others by name.

    Attributes
    ----------
    member : (n, size) int
        The jobs, as positions in ``WaitingKinds``.
    slowdown, upper, tail : (n, size) float
        Their figures.
    part : (n,) float
        The part of the largest GPU's memory that they need.
    """

    member: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats
    part: Floats

    def __len__(self) -> int:
        return len(self.member)

    def holds(self, members: Counter[int]) -> Bools:
        """Return which sets have all of these jobs, (n,)."""
        found = np.ones(len(self), dtype=bool)
        for member, times in members.items():
            found &= (self.member == member).sum(axis=1) >= times
        return found


class AssumedSets:
    """The sets of three and more jobs on the GPUs of one kind, by the declared rule.

    Parameters
    ----------
    pairs : KnownPairs
        The pairs that may share.
    sets : KnownSets
        The entries of larger sets.
    kind : GpuKind
        The model of the GPUs, and how jobs share them.
    waiting : WaitingKinds
        The jobs.
    room_mib : float
        The memory that the largest GPU of the kind offers to jobs, in MiB.
    most : int
        How many jobs may be on a GPU of the kind.
    """

    def __init__(
        self,
        pairs: KnownPairs,
        sets: KnownSets,
        kind: GpuKind,
        waiting: WaitingKinds,
        room_mib: float,
        most: int,
    ) -> None:
        self._pairs, self._sets, self._kind = pairs, sets, kind
        self._jobs, self._most = waiting, most
        self._part = waiting.need_mib / max(room_mib, MEMORY_TOLERANCE_MIB) + waiting.need_part
        self._full = 1 + MEMORY_TOLERANCE_MIB / max(room_mib, MEMORY_TOLERANCE_MIB)
        self._place = {number: k for k, number in enumerate(waiting.workload.tolist())}
        self._beside: dict[Members, tuple[Colocations, ...]] = {}

    def find(self, members: Members) -> Sharing | None:
        """Return the figures of these jobs, in their order, or None if they may not share."""
        if any(share != NO_CAP for _, share in members):
            return None
        row = self._one(members)
        if row is None or not len(self._allowed(row)):
            return None
        raised = self._raised(row)
        return self._colocations(raised).figures(0)

    def beside(self, held: Members, budget: Budget) -> Sequence[Colocations]:
        """Return the sets with these running jobs, which come first, and more; by size.

        Raises
        ------
        OutOfTimeError
            If the budget runs out.
        UnsupportedError
            If there is no memory for all sets.
        """
        if held not in self._beside:
            self._beside[held] = tuple(self._sets_beside(held, budget))
        return self._beside[held]

    def least(self, size: int) -> Floats:
        """Return a lower bound on the slowdown of each workload in sets of ``size``, (u,)."""
        return np.asarray(np.nanmin(self._tables[0], axis=1, initial=np.inf) ** (size - 1))

    def _sets_beside(self, held: Members, budget: Budget) -> Iterator[Colocations]:
        if any(share != NO_CAP for _, share in held):
            return
        grown = self._one(held)
        if grown is None:
            return
        grown = self._allowed(grown)
        while len(grown) and grown.member.shape[1] < self._most:
            grown = self._larger(grown, len(held), budget)
            if grown.member.shape[1] > 2 and len(new := self._not_named(grown)):
                yield self._colocations(self._raised(new))

    def _one(self, members: Members) -> _Grown | None:
        """Return a set of these jobs, or None if two of them may not share."""
        if any(workload not in self._place for workload, _ in members):
            return None
        member = np.array([[self._place[workload] for workload, _ in members]], dtype=np.int64)
        member = member.reshape(1, len(members))
        part = self._part[member].sum(axis=1)
        tables = [table[member[0][:, None], member[0]] for table in self._tables]
        for table in tables:
            np.fill_diagonal(table, 1.0)
        slowdown, upper, tail = (table.prod(axis=1)[None] for table in tables)
        unknown = np.isnan(slowdown).any()
        return None if unknown else _Grown(member, slowdown, upper, tail, part)

    def _larger(self, grown: _Grown, held: int, budget: Budget) -> _Grown:
        """Return the sets with one more job, each once; ``held`` jobs of each run."""
        size, number = grown.member.shape[1], len(self._jobs.workload)
        first = grown.member[:, -1] if size > held else np.zeros(len(grown), dtype=np.int64)
        tried = np.cumsum((number - first) * (size + 1))
        cuts = np.searchsorted(tried, np.arange(_TRIED_AT_ONCE, tried[-1], _TRIED_AT_ONCE))
        parts: list[_Grown] = []
        kept = 0
        for rows in np.split(np.arange(len(grown)), np.unique(cuts)):
            budget.check()
            if len(rows):
                parts.append(self._extended(grown, rows, first[rows], held))
                kept += len(parts[-1])
                total = kept * float(tried[-1] / tried[rows[-1]]) * (size + 1)
                what = f"the sets of {size + 1} of {number} workloads that cluster.assumed allows"
                require_room(total * _MEMBER_BYTES, what)
            budget.spend(_STEPS_PER_MEMBER * _TRIED_AT_ONCE)
        return _Grown.joined(parts)

    def _extended(self, grown: _Grown, rows: Ints, first: Ints, held: int) -> _Grown:
        """Return these sets with each further job from ``first`` on, if no rule is broken."""
        count = len(self._jobs.workload) - first
        row, new = np.repeat(rows, count), ranges(first, count)
        part = grown.part[row] + self._part[new]
        keep = (part <= self._full) & (self._jobs.waiting[new] > 0)
        row, new, part = row[keep], new[keep], part[keep]
        waiting = self._jobs.waiting[new]
        keep = (grown.member[row, held:] == new[:, None]).sum(axis=1) < waiting
        row, new, part = row[keep], new[keep], part[keep]
        member = grown.member[row]
        with np.errstate(over="ignore"):
            slowdown, upper, tail = (
                np.column_stack(
                    [
                        old[row] * table[member, new[:, None]],
                        table[new[:, None], member].prod(axis=1),
                    ]
                )
                for old, table in zip(
                    (grown.slowdown, grown.upper, grown.tail), self._tables, strict=True
                )
            )
        found = _Grown(np.column_stack([member, new]), slowdown, upper, tail, part)
        return self._allowed(found.take(self._accepted(found, held)))

    def _accepted(self, grown: _Grown, held: int) -> Bools:
        """Return which sets have known slowdowns that some jobs accept, (n,)."""
        free = grown.member[:, held:]
        accepted = grown.upper[:, held:] <= self._jobs.upper[free]
        accepted |= grown.tail[:, held:] <= self._jobs.tail[free]
        known = grown.slowdown <= _LARGEST  # NaN: unknown
        return np.asarray(accepted.all(axis=1) & known.all(axis=1))

    def _allowed(self, grown: _Grown) -> _Grown:
        """Return the sets without jobs of which an entry says that they may not share."""
        for members in self._forbidden:
            if members.total() <= grown.member.shape[1]:
                grown = grown.take(~grown.holds(members))
        return grown

    def _not_named(self, grown: _Grown) -> _Grown:
        """Return the sets that no entry names."""
        size = grown.member.shape[1]
        named = [key for key, _ in self._named if len(key) == size]
        if not named:
            return grown
        key = packed(np.vstack([np.sort(grown.member, axis=1), np.array(named, dtype=np.int64)]))
        return grown.take(~np.isin(key[: len(grown)], key[len(grown) :]))

    def _raised(self, grown: _Grown) -> _Grown:
        """Return the sets with bounds that also hold for what entries say of some of the jobs."""
        upper, tail = grown.upper.copy(), grown.tail.copy()
        for key, figures in self._named:
            if figures is None or len(key) >= grown.member.shape[1]:
                continue
            within = grown.holds(Counter(key))[:, None]
            for member, most, late in zip(key, figures.upper, figures.tail, strict=True):
                there = within & (grown.member == member)
                upper = np.where(there, np.maximum(upper, most), upper)
                tail = np.where(there, np.maximum(tail, late), tail)
        return replace(grown, upper=upper, tail=tail)

    def _colocations(self, grown: _Grown) -> Colocations:
        return Colocations(
            self._jobs.workload[grown.member],
            np.full_like(grown.member, NO_CAP),
            grown.slowdown,
            grown.upper,
            grown.tail,
            np.full(len(grown), np.nan),
        )

    @cached_property
    def _tables(self) -> tuple[Floats, Floats, Floats]:
        """Slowdown, bound and tail of each workload with each other, NaN if unknown, (u, u)."""
        number, rows = len(self._jobs.workload), self._pairs.rows
        place = np.full(
            int(max(rows.workload.max(initial=-1), self._jobs.workload.max(initial=-1))) + 1, -1
        )
        place[self._jobs.workload] = np.arange(number)
        both = place[rows.workload]
        use = np.flatnonzero((rows.share == NO_CAP).all(axis=1) & (both >= 0).all(axis=1))
        one, other = both[use].T

        def table(values: Floats) -> Floats:
            filled = np.full((number, number), np.nan)
            filled[one, other], filled[other, one] = values[use].T
            return filled

        return table(rows.slowdown), table(rows.upper), table(rows.tail)

    @cached_property
    def _named(self) -> list[tuple[tuple[int, ...], Sharing | None]]:
        """The entries of sets without caps: sorted jobs, and their figures in this order."""
        found = []
        for members, figures in self._sets.given(self._kind):
            known = all(k in self._place and share == NO_CAP for k, share in members)
            if known:
                order = sorted(range(len(members)), key=lambda k: self._place[members[k][0]])
                key = tuple(self._place[members[k][0]] for k in order)
                found.append((key, figures and figures.permuted(order)))
        return found

    @cached_property
    def _forbidden(self) -> list[Counter[int]]:
        """The sets of which an entry says that they may not share."""
        return [Counter(key) for key, figures in self._named if figures is None]
