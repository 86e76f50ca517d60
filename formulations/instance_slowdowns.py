"""The known slowdowns of an instance: its entries, and what its owner declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.assumed import AssumedSets, WaitingKinds, assumed_pairs
from dovetail.formulations.budget import Budget, require_room
from dovetail.formulations.rules import tail_bounds
from dovetail.formulations.slowdowns import (
    ANY_SHARE,
    Colocations,
    KnownPairs,
    KnownSets,
    KnownSlowdowns,
    Member,
    Members,
    Sharing,
    as_given,
)
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import GpuKind, SharingMode
from dovetail.instances.slowdowns.shares import CODES, NO_CAP, percent, share_code

_PAIR_BYTES = 200
"""Measured memory of planning with two workloads that no entry names, in both orders."""


class InstanceSlowdowns(KnownSlowdowns):
    """The known slowdowns of an instance.

    An entry holds on GPUs that are shared in its mode. One for a model takes precedence over one
    without a model, even if it says that the combination may not run. Combinations without caps
    that no entry names have the slowdowns that the cluster's owner declares (``assumed``), if any.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance.cluster, instance.workloads)
        self._instance = instance
        self._table = instance.slowdowns.numbered(self.workloads)
        self._pairs: dict[tuple[str | None, SharingMode], KnownPairs] = {}
        declared = instance.cluster.assumed
        self._assumed_pair = None if declared is None else declared.pair
        self._by_rule = declared is not None and declared.sets is not None
        self._assumed_sets: dict[GpuKind, AssumedSets] = {}
        self._sets = KnownSets(
            instance.slowdowns.sets.values(),
            instance.workloads,
            self.pairs,
            self._set_by_rule if self._by_rule else None,
        )

    def of(self, instance: Instance) -> InstanceSlowdowns | None:
        """Return these slowdowns for another instance, or None if it has others or other rules.

        The instance must have these entries and the rules by which they are read; nodes may differ.
        """
        mine = self._instance
        if instance is mine:
            return self
        if instance.cluster.assumed is not None or mine.cluster.assumed is not None:
            return None  # what is assumed depends on the jobs and their memory
        names, rules = tuple(instance.workloads), instance.cluster
        if names != self.workloads or instance.slowdowns is not mine.slowdowns:
            return None
        if not _same_alone(instance.workloads.values(), mine.workloads.values()):
            return None
        if rules == mine.cluster and instance.workloads == mine.workloads:
            return self
        if not _same_rules(rules, mine.cluster):
            return None
        found = copy(self)
        found._instance, found.rules = instance, rules
        return found

    @property
    def sets(self) -> bool:
        """Whether three or more jobs on a GPU have slowdowns."""
        return self._by_rule or len(self._sets) > 0

    def pairs(self, kind: GpuKind) -> KnownPairs:
        """Return the pairs that may share a GPU of a kind; see ``KnownSlowdowns``."""
        named = kind.model if kind.model in self._table.models else None, kind.sharing
        if named not in self._pairs:
            self._pairs[named] = KnownPairs(self._pairs_on(kind), len(self.workloads))
        return self._pairs[named]

    def at_first(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        """Return the figures of members that hold until the first of them ends."""
        if len(members) > 2:
            return self._sets.at_first(kind, members) or self._find_set(kind, members)
        named = [(self.workloads[k], code) for k, code in members]
        key = tuple(sorted(named))
        entries, (model, mode) = self._instance.entries, kind
        entry = entries.get((model, key, mode)) or entries.get((None, key, mode))
        if entry is None:
            return self.pairs(kind).find(*members)
        figures = as_given(entry)
        if figures is None:
            return None
        first = entry.workloads[0], share_code(entry.shares[0])
        return figures if named[0] == first else figures.permuted((1, 0))

    def seats(self, kind: GpuKind, wanted: Sequence[Member]) -> Colocations:
        """Return how these jobs may share a GPU, in their order.

        The share of a job is ``ANY_SHARE`` if it may still be chosen.
        """
        if len(wanted) > self.limited.get(kind.model, np.inf):
            return Colocations.none(len(wanted))
        if len(wanted) == 2:
            (one, _), (other, _) = wanted
            found = self.pairs(kind).both(one, other)
        else:
            found = self._seats_of_sets(kind, [workload for workload, _ in wanted])
        if not len(found):
            return found
        may = percent(found.share).sum(axis=1) <= self.rules.share_sum
        for k, (_, share) in enumerate(wanted):
            allowed = self._starting if share == ANY_SHARE else share
            may &= np.isin(found.share[:, k], allowed)
        return found.take(may)

    def joins_by_rule(self, kind: GpuKind, held: Members, budget: Budget) -> Iterable[Colocations]:
        """Return the sets that may be on a kind of GPU by the declared rule; by size."""
        if not self._by_rule:
            return ()
        found = self._sets_by_rule(kind).beside(held, budget)
        return (self._startable(each, len(held)) for each in found)

    def _seats_of_sets(self, kind: GpuKind, workloads: Sequence[int]) -> Colocations:
        found = self._sets.seats(kind, workloads)
        members = tuple((workload, NO_CAP) for workload in workloads)
        if self._sets.settles(kind, members):
            return found
        figures = self._set_by_rule(kind, members)
        if figures is None:
            return found
        return Colocations.joined([found, Colocations.of([members], [figures])])

    def _find_set(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        if self._sets.settles(kind, members):
            return self._sets.find(kind, members)
        return self._set_by_rule(kind, tuple(members))

    def _set_by_rule(self, kind: GpuKind, members: Members) -> Sharing | None:
        """Return the figures of a set that no entry names, by the declared rule, if any."""
        return self._sets_by_rule(kind).find(members) if self._by_rule else None

    def _sets_by_rule(self, kind: GpuKind) -> AssumedSets:
        if kind not in self._assumed_sets:
            cluster = self._instance.cluster
            every = (gpu for node in cluster.nodes for gpu in node.devices)
            gpus = (gpu for gpu in every if cluster.kind_of(gpu) == kind)
            room_mib = max(gpu.memory_mib for gpu in gpus) - cluster.reserve_mib
            most = self.most_on(kind)
            known = self.pairs(kind), self._sets, kind
            self._assumed_sets[kind] = AssumedSets(*known, self._waiting, room_mib, most)
        return self._assumed_sets[kind]

    @cached_property
    def _waiting(self) -> WaitingKinds:
        return WaitingKinds.of(self._instance)

    def _lower_by_rule(self, kind: GpuKind, least: Floats) -> None:
        if self._by_rule:
            of = self._waiting.workload
            for size in range(3, min(self.most_on(kind), least.shape[1]) + 1):
                by_rule = self._sets_by_rule(kind).least(size)
                least[of, size - 1] = np.minimum(least[of, size - 1], by_rule)

    def _sets_beside(self, kind: GpuKind, held: Members) -> Iterator[Colocations]:
        for found in self._sets.beside(kind, held):
            if found.workload.shape[1] <= self.most_on(kind):
                yield self._startable(found, len(held))

    def _every(self, kind: GpuKind) -> Iterator[Colocations]:
        yield self.pairs(kind).rows
        yield from self._sets.beside(kind, ())

    def _pairs_on(self, kind: GpuKind) -> Colocations:
        """Return the pairs on a kind, in each the workload whose name is first in the alphabet."""
        table = self._table
        row = np.flatnonzero(table.holds_on(*kind) & table.may_share)
        rank = self._rank[table.workload[row]] * CODES + table.share[row]
        turned = (rank[:, 0] > rank[:, 1])[:, None]
        del rank  # there may be millions of rows

        def ordered(column: NDArray[Any]) -> NDArray[Any]:
            found = column[row]
            return np.where(turned, found[:, ::-1], found)

        workload = ordered(table.workload).astype(np.int64)
        share = ordered(table.share).astype(np.int64)
        slowdown = ordered(table.slowdown)
        upper = np.fmax(ordered(table.upper), slowdown)
        last = self.at_last[workload, share]
        late = not np.isnan(table.p99).all()
        tail = np.maximum(tail_bounds(upper, ordered(table.p99)), last) if late else upper
        # Without tail latencies both bounds are one array: there may be millions of rows.
        np.maximum(upper, last, out=upper)
        found = Colocations(workload, share, slowdown, upper, tail, table.power_w[row])
        if self._assumed_pair is None or self.rules.max_jobs_per_gpu < 2:
            return found
        return Colocations.joined([found, self._assumed_pairs_on(kind, self._assumed_pair)])

    def _assumed_pairs_on(self, kind: GpuKind, slowdown: float) -> Colocations:
        """Return the pairs of workloads that jobs have and no entry names, without caps."""
        table, of = self._table, self._waiting.workload
        require_room(len(of) ** 2 * _PAIR_BYTES, f"the pairs of {len(of):,} workloads")
        place = np.full(len(self.workloads), len(of))
        place[of] = np.arange(len(of))
        row = np.flatnonzero(table.holds_on(*kind) & (table.share == NO_CAP).all(axis=1))
        one, other = place[table.workload[row]].T
        named = np.zeros((len(of) + 1, len(of) + 1), dtype=bool)
        named[one, other] = named[other, one] = True
        return assumed_pairs(named[:-1, :-1], of, slowdown)

    @cached_property
    def _rank(self) -> Ints:
        """The place of each workload in the order of the names."""
        rank = np.empty(len(self.workloads), dtype=np.int64)
        rank[sorted(range(len(rank)), key=self.workloads.__getitem__)] = np.arange(len(rank))
        return rank


def _same_rules(one: Cluster, other: Cluster) -> bool:
    """Return whether entries mean the same on the GPUs of two clusters."""
    fields = (name for name in Cluster.model_fields if name != "nodes")
    alike = all(getattr(one, name) == getattr(other, name) for name in fields)
    return alike and one.most_jobs() == other.most_jobs()


def _same_alone(some: Iterable[Workload], others: Iterable[Workload]) -> bool:
    """Return whether the throughputs of the workloads under caps are the same."""
    pairs = zip(some, others, strict=True)
    return all(a is b or a.throughput == b.throughput for a, b in pairs)
