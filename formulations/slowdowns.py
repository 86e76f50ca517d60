"""The known slowdowns of jobs that share a GPU, as arrays indexed by numbers of workloads.

``KnownSlowdowns`` is what a round reads: the pairs on each kind of GPU (`KnownPairs`) and the sets
of three and more (`KnownSets`). A kind is a GPU model with how jobs share it. An instance's are
read from its table (``instance_slowdowns``); a policy derives its own from predictions and
measurements (``solver.policies.beliefs``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Final, NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints, RowColumns
from dovetail.formulations.budget import Budget
from dovetail.formulations.rules import slowdown_at_last
from dovetail.instances.instance import Cluster, Workload
from dovetail.instances.slowdowns.entry import GpuKind, SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.shares import CODES, NO_CAP, percent, share_code, share_of

Member = tuple[int, int]
"""The number of a workload, and the code of its share on the GPU (``instances.shares``)."""

Members = tuple[Member, ...]

ANY_SHARE: Final = -1
"""The share of a job that may still get any share."""


class Sharing(NamedTuple):
    """The figures of jobs that share a GPU, in the order in which the jobs were named.

    Attributes
    ----------
    slowdown, upper, tail : tuple of float
        As in `Colocations`.
    power_w : float
        Power of the GPU, NaN if unknown.
    """

    slowdown: tuple[float, ...]
    upper: tuple[float, ...]
    tail: tuple[float, ...]
    power_w: float

    def bounds(self, latency: Sequence[bool]) -> tuple[float, ...]:
        """Return the bound that each job's gSLA is checked against; ``latency`` by job."""
        return tuple(
            t if late else u for t, u, late in zip(self.tail, self.upper, latency, strict=True)
        )

    def times(self, factors: Sequence[float]) -> Sharing:
        """Return the figures with every job's slowdown and bounds multiplied by its factor."""

        def times(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(v * f for v, f in zip(values, factors, strict=True))

        return Sharing(times(self.slowdown), times(self.upper), times(self.tail), self.power_w)

    def permuted(self, order: Sequence[int]) -> Sharing:
        """Return the figures of the jobs at these positions."""

        def picked(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(values[k] for k in order)

        return Sharing(picked(self.slowdown), picked(self.upper), picked(self.tail), self.power_w)


@dataclass(frozen=True)
class Colocations(RowColumns):
    """Jobs that may share a GPU: rows of equally many workloads with shares and figures.

    Attributes
    ----------
    workload : (n, size) int
        The number of each workload.
    share : (n, size) int
        The code of its share.
    slowdown : (n, size) float
        Slowdown of each.
    upper, tail : (n, size) float
        The bounds that the gSLA of a job of priority ``batch`` or ``latency`` is checked against;
        they hold until it ends (``rules``).
    power_w : (n,) float
        Power of the GPU, NaN where unknown.
    """

    workload: Ints
    share: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats
    power_w: Floats

    @classmethod
    def of(cls, members: Sequence[Sequence[Member]], figures: Sequence[Sharing]) -> Colocations:
        """Return colocations (at least one) of these members, equally many in each."""
        both = np.array(members, dtype=np.int64)
        return Colocations(
            both[:, :, 0],
            both[:, :, 1],
            np.array([each.slowdown for each in figures]),
            np.array([each.upper for each in figures]),
            np.array([each.tail for each in figures]),
            np.array([each.power_w for each in figures], dtype=np.float64),
        )

    @classmethod
    def none(cls, size: int) -> Colocations:
        """Return no row of this size."""
        return cls.unknown(size).take(slice(0, 0))

    @classmethod
    def unknown(cls, size: int) -> Colocations:
        """Return one row without figures."""
        nothing, figures = np.zeros((1, size), dtype=np.int64), np.full((1, size), np.nan)
        return Colocations(nothing, nothing, figures, figures, figures, np.array([np.nan]))

    def __len__(self) -> int:
        return len(self.workload)

    def figures(self, row: int) -> Sharing:
        """Return the figures of one row."""
        return Sharing(
            tuple(self.slowdown[row].tolist()),
            tuple(self.upper[row].tolist()),
            tuple(self.tail[row].tolist()),
            float(self.power_w[row]),
        )

    def ordered(self, order: Ints) -> Colocations:
        """Return the rows with their jobs in another order, positions (n, size)."""
        rows = np.arange(len(order))[:, None]
        return Colocations(
            self.workload[rows, order],
            self.share[rows, order],
            self.slowdown[rows, order],
            self.upper[rows, order],
            self.tail[rows, order],
            self.power_w,
        )

    def able(self, held: int, waiting: Ints) -> Ints:
        """Return the rows whose places after the first ``held`` these jobs can take.

        ``waiting`` is the number of jobs of each workload.
        """
        free = self.workload[:, held:]
        number = waiting.take(free)
        enough = number > 0
        if free.shape[1] > 1:
            enough &= number >= (free[:, :, None] == free[:, None]).sum(axis=2)
        return np.flatnonzero(enough.all(axis=1))

    def twins(self, held: int) -> Bools:
        """Return which places are interchangeable with the place before them, (n, size).

        The first ``held`` places belong to running jobs and are interchangeable with none.
        """
        twin = np.zeros(self.workload.shape, dtype=bool)
        for k in range(held + 1, self.workload.shape[1]):
            alike = self.workload[:, k] == self.workload[:, k - 1]
            twin[:, k] = alike & (self.share[:, k] == self.share[:, k - 1])
        return twin


@dataclass(frozen=True)
class SplitTables:
    """The known pairs as tables by workload, workload and split.

    Attributes
    ----------
    shares : (s, 2) int
        The shares of each split, as seen from the first workload.
    slowdown, upper, tail : (workloads, workloads, s) float
        Figures of the first workload with the second; NaN if the two may not share.
    power_w : (workloads, workloads, s) float
        Power of the GPU; NaN where unknown.
    """

    shares: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats
    power_w: Floats

    @property
    def late(self) -> bool:
        """Whether some tail bound differs from the bound of the slowdown."""
        same = self.upper is self.tail or np.array_equal(self.upper, self.tail, equal_nan=True)
        return not same


class KnownPairs:
    """The pairs that may share a GPU of one kind.

    Parameters
    ----------
    rows : Colocations
        Each pair once, in any order.
    workloads : int
        The number of workloads.
    fresh : (n,) bool, optional
        The pairs that may start together on an idle GPU; all by default.
    """

    def __init__(self, rows: Colocations, workloads: int, fresh: Bools | None = None) -> None:
        self.rows = rows
        self.fresh = np.ones(len(rows), dtype=bool) if fresh is None else fresh
        self._workloads = workloads
        self._members = workloads * CODES
        self._splits: dict[int, SplitTables] = {}

    def find(self, one: Member, other: Member) -> Sharing | None:
        """Return the figures of two workloads at their shares, or None if they may not share."""
        keys, rows = self._keyed
        first, second = (workload * CODES + share for workload, share in (one, other))
        key = min(first, second) * self._members + max(first, second)
        at = int(np.searchsorted(keys, key))
        if at == len(keys) or keys[at] != key:
            return None
        row = int(rows[at])
        found = self.rows.figures(row)
        turned = (self.rows.workload[row, 0], self.rows.share[row, 0]) != one
        return found.permuted((1, 0)) if turned else found

    def found(self, workload: Ints, share: Ints) -> Colocations:
        """Return the rows of pairs (m, 2) that are known, with their jobs in this order."""
        keys, rows = self._keyed
        row = rows[np.searchsorted(keys, self._key(workload * CODES + share))]
        turned = self.rows.workload[row, 0] != workload[:, 0]
        turned |= self.rows.share[row, 0] != share[:, 0]
        return self._turned(2 * row + turned)

    def _key(self, member: Ints) -> Ints:
        key = np.minimum(member[:, 0], member[:, 1])
        key *= self._members
        key += np.maximum(member[:, 0], member[:, 1])
        return key

    @cached_property
    def _keyed(self) -> tuple[Ints, Ints]:
        """The sorted key of each pair, and its row."""
        keys = self._key(self.rows.workload * CODES + self.rows.share)
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def beside(self, member: Member) -> Colocations:
        """Return the pairs with a workload at a share, which comes first."""
        workload, share = member
        least = (workload * CODES + share) * self._members
        return self._between(least, least + self._members)

    def both(self, one: int, other: int) -> Colocations:
        """Return the pairs of two workloads at any shares, with the first one first."""
        keys, rows = self._directed
        least = one * CODES * self._members
        first, last = np.searchsorted(keys, [least, least + CODES * self._members])
        with_other = keys[first:last] % self._members // CODES == other
        found = rows[first:last][with_other]
        return self._turned(np.sort(found)) if len(found) else self.rows.take(slice(0, 0))

    def splits(self, share_sum: int) -> SplitTables:
        """Return the pairs whose caps sum to at most ``share_sum`` percent as tables."""
        if share_sum not in self._splits:
            self._splits[share_sum] = self._tables(share_sum)
        return self._splits[share_sum]

    def _between(self, least: int, end: int) -> Colocations:
        keys, rows = self._directed
        first, last = np.searchsorted(keys, [least, end])
        return self._turned(np.sort(rows[first:last]))

    def _turned(self, directed: Ints) -> Colocations:
        """Return rows by twice their number; odd if the second job is to come first."""
        row, turned = np.divmod(directed, 2)
        return self.rows.take(row).ordered(np.stack([turned, 1 - turned], axis=1))

    @cached_property
    def _directed(self) -> tuple[Ints, Ints]:
        """The sorted key of each pair in both directions, and twice its row (plus 1 if turned)."""
        member = self.rows.workload * CODES + self.rows.share
        there = member[:, 0] * self._members + member[:, 1]
        back = member[:, 1] * self._members + member[:, 0]
        row = np.arange(len(there))
        unlike = there != back
        keys = np.concatenate([there, back[unlike]])
        rows = np.concatenate([2 * row, 2 * row[unlike] + 1])
        order = np.argsort(keys, kind="stable")
        return keys[order], rows[order]

    def _tables(self, share_sum: int) -> SplitTables:
        fits = percent(self.rows.share).sum(axis=1) <= share_sum
        rows = self.rows if fits.all() else self.rows.take(fits)
        own, other = rows.share.T
        there, back = own * CODES + other, other * CODES + own
        codes = np.unique(np.append(np.unique(there), np.unique(back)))
        (a, b), shape = rows.workload.T, (self._workloads, self._workloads, len(codes))
        forward = a, b, np.searchsorted(codes, there)
        backward = b, a, np.searchsorted(codes, back)

        def table(values: Floats) -> Floats:
            filled = np.full(shape, np.nan)
            filled[forward], filled[backward] = values.T
            return filled

        shares = np.stack(np.divmod(codes, CODES), axis=1)
        both = np.stack([rows.power_w, rows.power_w], axis=1)
        upper = table(rows.upper)
        tail = upper if rows.tail is rows.upper else table(rows.tail)
        return SplitTables(shares, table(rows.slowdown), upper, tail, table(both))


class _Given(NamedTuple):
    """An entry of a set: its members, and its figures until the first ends; None = they may not."""

    members: Members
    figures: Sharing | None


class _Set(NamedTuple):
    """Jobs that may share a GPU, and their figures in this order."""

    members: Members
    figures: Sharing


class KnownSets:
    """The entries of three and more jobs on a GPU.

    An entry holds on GPUs that are shared in its mode. One for a GPU model takes precedence over
    one for all models, also if it says that the jobs may not share.

    Parameters
    ----------
    entries : sequence of SlowdownEntry
        The entries.
    workloads : mapping of str to Workload
        The workloads.
    pairs : callable, optional
        Returns the known pairs on a kind of GPU, by which bounds are raised; default: none.
    by_rule : callable, optional
        Returns the figures of a set that no entry names (``assumed``), by which bounds are raised,
        too; default: none are known.
    """

    def __init__(
        self,
        entries: Iterable[SlowdownEntry],
        workloads: Mapping[str, Workload],
        pairs: Callable[[GpuKind], KnownPairs] | None = None,
        by_rule: Callable[[GpuKind, Members], Sharing | None] | None = None,
    ) -> None:
        number = {name: k for k, name in enumerate(workloads)}
        self._workloads = tuple(workloads.values())
        self._rank = {number[name]: k for k, name in enumerate(sorted(number))}
        self._pairs, self._by_rule = pairs, by_rule
        self._given: dict[tuple[str | None, SharingMode, Members], _Given] = {}
        for entry in entries:
            shares = map(share_code, entry.shares)
            members = tuple(zip(map(number.__getitem__, entry.workloads), shares, strict=True))
            where = entry.gpu_model, entry.mode
            self._given[*where, _sorted(members)] = _Given(members, as_given(entry))
        self._on: dict[GpuKind, Mapping[Members, _Set]] = {}
        self._with: dict[GpuKind, Mapping[Member, Sequence[_Set]]] = {}
        self._named: dict[GpuKind, Mapping[tuple[int, ...], Sequence[_Set]]] = {}

    def __len__(self) -> int:
        return len(self._given)

    def given(self, kind: GpuKind) -> Iterator[tuple[Members, Sharing | None]]:
        """Yield the members of each entry on a kind of GPU, and their figures at first.

        The figures are None if the members may not share.
        """
        for _, found in self._applying(kind):
            yield found.members, found.figures

    def settles(self, kind: GpuKind, members: Sequence[Member]) -> bool:
        """Return whether an entry says if these members may share a GPU of the kind."""
        return self._entry(kind, _sorted(members)) is not None

    def at_first(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        """Return the figures that hold until the first member ends, or None if unknown."""
        found = self._entry(kind, _sorted(members))
        return found and found.figures and _reordered(found.members, found.figures, members)

    def find(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        """Return the figures of the members on a kind of GPU, or None if they may not share."""
        found = self.on(kind).get(_sorted(members))
        return found and _reordered(found.members, found.figures, members)

    def on(self, kind: GpuKind) -> Mapping[Members, _Set]:
        """Return every set that may share a GPU of the kind, by its sorted members."""
        if kind not in self._on:
            self._on[kind] = {
                key: _Set(given.members, self._until_each_ends(kind, key, given))
                for key, given in self._applying(kind)
                if given.figures
            }
        return self._on[kind]

    def beside(self, kind: GpuKind, held: Sequence[Member]) -> Sequence[Colocations]:
        """Return the sets with these members and more, by size; the members come first."""
        if not len(self):
            return []
        by_size: dict[int, list[tuple[list[Member], Sharing]]] = defaultdict(list)
        for members, figures in self._having(kind, held[0]) if held else self.on(kind).values():
            if len(members) > len(held) and not Counter(held) - Counter(members):
                free = list((Counter(members) - Counter(held)).elements())
                ordered = [*held, *sorted(free, key=self._by_name)]
                by_size[len(members)].append((ordered, _reordered(members, figures, ordered)))
        return [Colocations.of(*zip(*found, strict=True)) for _, found in sorted(by_size.items())]

    def seats(self, kind: GpuKind, workloads: Sequence[int]) -> Colocations:
        """Return the sets of these workloads at any shares, each in every order of theirs."""
        found: list[tuple[Members, Sharing]] = []
        for members, figures in self._of_workloads(kind).get(tuple(sorted(workloads)), ()):
            found += [
                (order, _reordered(members, figures, order))
                for order in _orders(members, workloads)
            ]
        if not found:
            return Colocations.none(len(workloads))
        return Colocations.of(*zip(*found, strict=True))

    def _of_workloads(self, kind: GpuKind) -> Mapping[tuple[int, ...], Sequence[_Set]]:
        if kind not in self._named:
            index: dict[tuple[int, ...], list[_Set]] = defaultdict(list)
            for key, known in self.on(kind).items():
                index[tuple(workload for workload, _ in key)].append(known)
            self._named[kind] = index
        return self._named[kind]

    def _by_name(self, member: Member) -> Member:
        return self._rank[member[0]], member[1]

    def _having(self, kind: GpuKind, member: Member) -> Sequence[_Set]:
        if kind not in self._with:
            index: dict[Member, list[_Set]] = defaultdict(list)
            for known in self.on(kind).values():
                for each in set(known.members):
                    index[each].append(known)
            self._with[kind] = index
        return self._with[kind].get(member, ())

    def _applying(self, kind: GpuKind) -> Iterator[tuple[Members, _Given]]:
        """Yield the sorted members of each entry that applies to a kind of GPU, and the entry."""
        for (_, _, key), given in self._given.items():
            if self._entry(kind, key) is given:
                yield key, given

    def _entry(self, kind: GpuKind, key: Members) -> _Given | None:
        """Return the entry that applies to a kind of GPU; one for its model comes first."""
        model, mode = kind
        return self._given.get((model, mode, key)) or self._given.get((None, mode, key))

    def _until_each_ends(self, kind: GpuKind, key: Members, given: _Given) -> Sharing:
        """Return the figures of a set with bounds of all that may remain of it."""
        assert given.figures is not None
        last = [slowdown_at_last(self._workloads[k], share_of(code)) for k, code in key]
        upper = dict(zip(key, last, strict=True))
        tail = dict(upper)
        for members, known in self._within(kind, key, given):
            for each, u, t in zip(members, known.upper, known.tail, strict=True):
                upper[each], tail[each] = max(upper[each], u), max(tail[each], t)
        return given.figures._replace(
            upper=tuple(upper[each] for each in given.members),
            tail=tuple(tail[each] for each in given.members),
        )

    def _within(self, kind: GpuKind, key: Members, given: _Given) -> Iterator[_Set]:
        """Yield a set, and what is known of two or more of its members on the kind of GPU."""
        assert given.figures is not None
        yield _Set(given.members, given.figures)
        if self._pairs is not None:
            pairs = self._pairs(kind)
            for both in dict.fromkeys(combinations(key, 2)):
                if (found := pairs.find(*both)) is not None:
                    yield _Set(both, found)
        for members, figures in self.parts(kind, key):
            if figures is not None:
                yield _Set(members, figures)
        if self._by_rule is not None:
            for members, figures in self.left_by_rule(kind, key, self._by_rule):
                yield _Set(members, figures)

    def parts(
        self, kind: GpuKind, members: Sequence[Member]
    ) -> Iterator[tuple[Members, Sharing | None]]:
        """Yield the entries of three and more of these members, without that of all of them.

        With the members of each come its figures at first, None if they may not share.
        """
        key = _sorted(members)
        for size, keys in self._sizes.items():
            if size >= len(key):
                continue
            fewer: Iterable[Members] = keys
            if comb(len(key), size) <= len(keys):
                fewer = keys.intersection(combinations(key, size))
            for each in fewer:
                smaller = self._entry(kind, each)
                if smaller and not Counter(each) - Counter(key):
                    yield smaller.members, smaller.figures

    def left_by_rule(
        self,
        kind: GpuKind,
        members: Sequence[Member],
        by_rule: Callable[[GpuKind, Members], Sharing | None],
    ) -> Iterator[tuple[Members, Sharing]]:
        """Yield the largest sets by the declared rule that may remain of a set, and their figures.

        The bounds of a set by the rule are at least those of all sets that may remain of it.
        """
        key = _sorted(members)
        asked, seen = [key], {key}
        while asked:
            whole = asked.pop()
            for k in range(len(whole)):
                left = whole[:k] + whole[k + 1 :]
                if left in seen or len(left) < 3:
                    continue
                seen.add(left)
                figures = None if self._entry(kind, left) else by_rule(kind, left)
                if figures is None:
                    asked.append(left)
                else:
                    yield left, figures

    @cached_property
    def _sizes(self) -> Mapping[int, set[Members]]:
        """The sets by number of members, on any kind of GPU."""
        found: dict[int, set[Members]] = defaultdict(set)
        for _, _, key in self._given:
            found[len(key)].add(key)
        return found


def _sorted(members: Iterable[Member]) -> Members:
    return tuple(sorted(members))


def _orders(left: Members, workloads: Sequence[int]) -> Iterator[Members]:
    """Yield the members in every order in which they have these workloads; equal ones once."""
    if not workloads:
        yield ()
    for member in dict.fromkeys(left):
        if workloads and member[0] == workloads[0]:
            at = left.index(member)
            for others in _orders(left[:at] + left[at + 1 :], workloads[1:]):
                yield (member, *others)


def _reordered(members: Members, figures: Sharing, wanted: Sequence[Member]) -> Sharing:
    """Return figures of members in the order of ``wanted``."""
    left = list(range(len(members)))
    order = []
    for member in wanted:
        position = next(k for k in left if members[k] == member)
        left.remove(position)
        order.append(position)
    return figures.permuted(order)


def as_given(entry: SlowdownEntry) -> Sharing | None:
    """Return the figures of an entry, None if it says that the jobs may not share."""
    if entry.slowdown is None:
        return None
    upper = entry.upper or entry.slowdown
    power_w = np.nan if entry.power_w is None else entry.power_w
    return Sharing(entry.slowdown, upper, entry.p99 or upper, power_w)


class KnownSlowdowns:
    """The known slowdowns of a round's workloads, and the rules that limit who may share.

    Parameters
    ----------
    rules : Cluster
        The available shares, and how many jobs a GPU may hold.
    workloads : mapping of str to Workload
        The workloads, numbered in this order.

    Attributes
    ----------
    number : dict of str to int
        The number of each workload.
    limited : dict of str to int
        Maximum number of jobs on a GPU of each model with a lower limit than the cluster's.
    """

    def __init__(self, rules: Cluster, workloads: Mapping[str, Workload]) -> None:
        self.rules = rules
        self.workloads = tuple(workloads)
        self.number = {name: k for k, name in enumerate(self.workloads)}
        most = rules.most_jobs().items()
        self.limited = {model: jobs for model, jobs in most if jobs < rules.max_jobs_per_gpu}
        self._starting = np.array([NO_CAP, *map(share_code, rules.shares)], dtype=np.int64)
        self._alone = tuple(workloads.values())
        self._found: dict[tuple[GpuKind, Members], Sharing | None] = {}
        self._joins: dict[tuple[GpuKind, Members], Sequence[Colocations]] = {}
        self._least: dict[GpuKind, Floats] = {}

    def most_on(self, kind: GpuKind) -> int:
        """Return how many jobs may be on a GPU of a kind."""
        return self.limited.get(kind.model, self.rules.max_jobs_per_gpu)

    @property
    def sets(self) -> bool:
        """Whether three or more jobs may share a GPU."""
        raise NotImplementedError

    def pairs(self, kind: GpuKind) -> KnownPairs:
        """Return the pairs that may share a GPU of a kind that holds two jobs."""
        raise NotImplementedError

    def find(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        """Return the figures of the members on a kind of GPU, or None if they may not share."""
        key = kind, tuple(members)
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, kind: GpuKind, members: Members) -> Sharing | None:
        if len(members) > self.limited.get(kind.model, np.inf):
            return None
        if len(members) == 2:
            return self.pairs(kind).find(*members)
        return self._find_set(kind, members)

    def joins(self, kind: GpuKind, held: Members) -> Sequence[Colocations]:
        """Return how jobs may join others on a kind of GPU, or start together; by size.

        ``held`` are the running jobs there; they come first. Sets by a declared rule are not among
        them, see ``joins_by_rule``.
        """
        if (kind, held) not in self._joins:
            found = [*self._pairs_beside(kind, held), *self._sets_beside(kind, held)]
            self._joins[kind, held] = [each for each in found if len(each)]
        return self._joins[kind, held]

    def joins_by_rule(self, kind: GpuKind, held: Members, budget: Budget) -> Iterable[Colocations]:
        """Return the sets of three and more that may share by a declared rule; by size.

        Raises
        ------
        OutOfTimeError
            If the budget runs out before all sets of a size are found.
        UnsupportedError
            If there is no memory for all.
        """
        return ()

    def least_slowdowns(self, kind: GpuKind) -> Floats:
        """Return the least slowdown of each workload among 1, 2, ... jobs; inf for none.

        The shape is (workloads, most jobs on a GPU).
        """
        if kind not in self._least:
            least = np.full((len(self.workloads), self.rules.max_jobs_per_gpu), np.inf)
            for found in self._every(kind):
                size = found.workload.shape[1]
                if size <= min(self.most_on(kind), least.shape[1]):
                    np.minimum.at(least[:, size - 1], found.workload, found.slowdown)
            self._lower_by_rule(kind, least)
            self._least[kind] = least
        return self._least[kind]

    def _lower_by_rule(self, kind: GpuKind, least: Floats) -> None:
        """Lower the least slowdowns to those that a declared rule may give, in place."""

    @cached_property
    def at_last(self) -> Floats:
        """The slowdown of each workload after its co-runners have ended, (workloads, shares)."""
        found = np.ones((len(self._alone), CODES))
        for k, workload in enumerate(self._alone):
            for share in workload.throughput:
                found[k, share] = slowdown_at_last(workload, share)
        return found

    def _every(self, kind: GpuKind) -> Iterable[Colocations]:
        """Return all that is known of jobs that start together on a kind of GPU."""
        return self.joins(kind, ())

    def _find_set(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        raise NotImplementedError

    def _sets_beside(self, kind: GpuKind, held: Members) -> Iterable[Colocations]:
        raise NotImplementedError

    def _pairs_beside(self, kind: GpuKind, held: Members) -> Iterator[Colocations]:
        if len(held) < 2 <= self.most_on(kind):
            pairs = self.pairs(kind)
            found = pairs.beside(held[0]) if held else pairs.rows.take(pairs.fresh)
            yield self._startable(found, len(held))

    def _startable(self, rows: Colocations, held: int) -> Colocations:
        """Return the rows in which all but the first ``held`` jobs may start at their shares."""
        may = np.isin(rows.share[:, held:], self._starting).all(axis=1)
        return rows.take(may & (percent(rows.share).sum(axis=1) <= self.rules.share_sum))
