"""Look-up of the known combinations of workloads on a GPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations
from math import comb
from operator import is_
from typing import Final, NamedTuple, Self, TypeVar, cast

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.rules import slowdown_at_last
from dovetail.instances._record import AnyShare
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code, share_total
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable

T = TypeVar("T")

Member = tuple[str, AnyShare]
"""A workload and its share on the GPU."""

ANY_SHARE: Final = -1
"""The share of a job that may still get any share."""

Wanted = tuple[str, AnyShare]
"""A workload, and its share or ``ANY_SHARE``."""


class Combination(NamedTuple):
    """A known combination, its values in the order of ``members``.

    ``upper`` and ``p99`` hold until each member ends, see ``rules``; they are None if only the
    slowdown, or no tail latency, is known. Tens of thousands are created at a time, and tuples are
    faster than dataclasses.
    """

    members: tuple[Member, ...]
    slowdown: tuple[float, ...]
    upper: tuple[float, ...] | None
    p99: tuple[float, ...] | None
    power_w: float | None

    def bounds(self, latency: Sequence[bool]) -> tuple[float, ...]:
        """Return the bound that each member's gSLA is checked against; ``latency`` by member."""
        usual = self.upper or self.slowdown
        tail = self.p99 or usual
        return tuple(t if late else u for t, u, late in zip(tail, usual, latency, strict=True))

    def stretched(self, factors: Sequence[float]) -> Combination:
        """Return the combination with every member's values multiplied by its factor."""
        if all(factor == 1 for factor in factors):
            return self

        def times(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(v * f for v, f in zip(values, factors, strict=True))

        return self._replace(
            slowdown=times(self.slowdown),
            upper=self.upper and times(self.upper),
            p99=self.p99 and times(self.p99),
        )

    def reordered(self, members: Sequence[Member]) -> Combination:
        """Return the same combination with its members in this order."""
        if tuple(members) == self.members:
            return self
        left = list(range(len(self.members)))
        order = []
        for member in members:
            position = next(k for k in left if self.members[k] == member)
            left.remove(position)
            order.append(position)
        return self.permuted(order)

    def permuted(self, order: Sequence[int]) -> Combination:
        """Return the same combination, its members in the order of these positions."""
        return Combination(
            tuple(self.members[k] for k in order),
            tuple(self.slowdown[k] for k in order),
            self.upper and tuple(self.upper[k] for k in order),
            self.p99 and tuple(self.p99[k] for k in order),
            self.power_w,
        )


@dataclass(frozen=True)
class Template:
    """Known combinations of one size with the same first members, as arrays.

    Attributes
    ----------
    free : (s, size - held) int
        Index of the workload of each free place.
    twin : (s, size) bool
        Free places that are interchangeable with the place before them.
    share : (s, size) int
        The cap of each place, 0 if there is none.
    slowdown, upper, tail : (s, size) float
        Slowdown of each place, and the bounds that the gSLA of a job of priority ``batch`` or
        ``latency`` is checked against.
    power_w : (s,) float
        Power of the GPU, NaN where unknown.
    """

    free: Ints
    twin: Bools
    share: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats
    power_w: Floats

    @cached_property
    def wanted(self) -> Ints:
        """The number of free places with the same workload as each, (s, size - held)."""
        return np.asarray((self.free[:, :, None] == self.free[:, None]).sum(axis=2))

    def take(self, rows: Ints) -> Template:
        """Return the selected rows."""
        return Template(*(getattr(self, each.name)[rows] for each in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Template]) -> Template:
        """Return the rows of templates (at least one) with equally many residents and places."""
        if len(parts) == 1:
            return parts[0]
        columns = ([getattr(part, each.name) for part in parts] for each in fields(cls))
        return cls(*map(np.concatenate, columns))

    @classmethod
    def of(cls, known: Sequence[Combination], held: int, place: Mapping[str, int]) -> Template:
        """Return the template of combinations (at least one); the first ``held`` are residents."""
        size = len(known[0].members)
        names = [[place[name] for name, _ in k.members[held:]] for k in known]
        share = [[share_code(cap) for _, cap in k.members] for k in known]
        twin = [[j > held and k.members[j] == k.members[j - 1] for j in range(size)] for k in known]
        power = [np.nan if k.power_w is None else k.power_w for k in known]
        return cls(
            free=np.array(names, dtype=np.int64),
            twin=np.array(twin, dtype=bool),
            share=np.array(share, dtype=np.int64),
            slowdown=np.array([k.slowdown for k in known]),
            upper=np.array([k.upper or k.slowdown for k in known]),
            tail=np.array([k.p99 or k.upper or k.slowdown for k in known]),
            power_w=np.array(power, dtype=np.float64),
        )


class Book:
    """The known combinations of workloads on a GPU, and cached results derived from them.

    Parameters
    ----------
    rules : Cluster
        The available shares, and how many jobs a GPU may hold.
    workloads : tuple of str
        The workloads.

    Attributes
    ----------
    limited : dict of str to int
        Maximum number of jobs on a GPU of each model with a lower limit than the cluster's.
    """

    def __init__(self, rules: Cluster, workloads: tuple[str, ...]) -> None:
        self.rules = rules
        self.workloads = workloads
        most = rules.most_jobs().items()
        self.limited = {model: jobs for model, jobs in most if jobs < rules.max_jobs_per_gpu}
        self._made: dict[str, object] = {}

    def most_on(self, model: str) -> int:
        """Return how many jobs may be on a GPU of a model."""
        return self.limited.get(model, self.rules.max_jobs_per_gpu)

    @property
    def sets(self) -> bool:
        """Whether there are combinations of three or more jobs on a GPU."""
        raise NotImplementedError

    def find(self, model: str, members: Sequence[Member]) -> Combination | None:
        """Return the known combination of the members on a GPU model, or None."""
        raise NotImplementedError

    def known(self, model: str) -> Sequence[Combination]:
        """Return every combination that may run on a GPU model.

        Models without entries of their own have the same sequence.
        """
        raise NotImplementedError

    def of_any_size(self, model: str) -> Sequence[Combination]:
        """Return the combinations of ``known`` and those too large for the model."""
        return self.known(model)

    def templates(self, model: str, held: tuple[Member, ...]) -> Sequence[Template]:
        """Return the combinations in which jobs may join others, one template per size.

        Parameters
        ----------
        model : str
            The GPU model.
        held : tuple of (str, int or None)
            The running jobs there; they come first in the templates.
        """
        raise NotImplementedError

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a cached result, computed at the first call with this name."""
        if name not in self._made:
            self._made[name] = make()
        return cast("T", self._made[name])


_OF_NODES: Final = ("machines", "hosts")
"""Cached results that depend on the nodes and on the jobs' requests to them."""

_Key = tuple[tuple[str, int], ...]
"""Workloads and shares (0 for none), sorted."""


class SlowdownIndex(Book):
    """The slowdown entries of an instance by GPU model.

    An entry for a model takes precedence over one without a model, even if it says that the
    combination may not run.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance.cluster, tuple(instance.workloads))
        self._instance = instance
        self._by_key = instance.entries
        self._named = {model for model, _ in self._by_key}.union(self.limited)
        self._known: dict[str | None, Sequence[Combination]] = {}
        self._known_with: dict[str, Mapping[Member, Sequence[Combination]]] = {}
        self._found: dict[tuple[str, tuple[Member, ...]], Combination | None] = {}
        self._templates: dict[tuple[str, tuple[Member, ...]], Sequence[Template]] = {}
        self._at_last: dict[Member, float] = {}

    @classmethod
    def of_sets(cls, instance: Instance, table: SlowdownTable) -> Self:
        """Return the entries of three or more in a table, under the rules of an instance."""
        return cls(
            Instance.model_construct(
                name="sets",
                cluster=instance.cluster,
                workloads=instance.workloads,
                jobs=(),
                slowdowns=Slowdowns.of(table.sets),
            )
        )

    def settles(self, model: str, members: Sequence[Member]) -> bool:
        """Return whether an entry says if these members may share a GPU of the model."""
        key = _key(members)
        return (model, key) in self._by_key or (None, key) in self._by_key

    def of(self, instance: Instance) -> SlowdownIndex | None:
        """Return this index for another instance, or None if that has other entries or rules.

        The instance must have these entries and the rules by which they are read; nodes may differ.
        """
        mine = self._instance
        if instance is mine:
            return self
        names, rules = tuple(instance.workloads), instance.cluster
        if names != self.workloads or not _same(instance.slowdowns, mine.slowdowns):
            return None
        if not _same_alone(instance.workloads.values(), mine.workloads.values()):
            return None
        if rules == mine.cluster and instance.workloads == mine.workloads:
            return self
        if not _same_rules(rules, mine.cluster):
            return None
        found = copy(self)
        found._instance, found.rules = instance, rules
        found._made = {name: made for name, made in self._made.items() if name not in _OF_NODES}
        return found

    def find(self, model: str, members: Sequence[Member]) -> Combination | None:
        """Return the known combination of the members on a GPU model, or None."""
        asked = model, tuple(members)
        if asked not in self._found:
            entry = self._entry(model, _key(members))
            if entry is None or len(members) > self.limited.get(model, np.inf):
                self._found[asked] = None
            else:
                self._found[asked] = self._combination(model, entry).reordered(members)
        return self._found[asked]

    def at_first(self, model: str, members: Sequence[Member]) -> Combination | None:
        """Return a known combination with the bounds that hold until the first member ends."""
        entry = self._entry(model, _key(members))
        return None if entry is None else _as_given(entry).reordered(members)

    def known(self, model: str) -> Sequence[Combination]:
        """Return every combination that may run on a GPU model; see ``Book``."""
        named = model if model in self._named else None
        if named not in self._known:
            self._known[named] = tuple(
                self._combination(named, entry) for _, entry in self._entries(named)
            )
        return self._known[named]

    def of_any_size(self, model: str) -> Sequence[Combination]:
        """Return the known combinations of any number of jobs; see ``Book``."""
        if model not in self.limited:
            return self.known(model)
        return tuple(self._combination(model, entry) for _, entry in self._holding(model))

    def known_with(self, model: str, member: Member) -> Sequence[Combination]:
        """Return every combination with this member that may run on a GPU model."""
        if model not in self._known_with:
            index: dict[Member, list[Combination]] = defaultdict(list)
            for known in self.known(model):
                for each in set(known.members):
                    index[each].append(known)
            self._known_with[model] = index
        return self._known_with[model].get(member, ())

    def templates(self, model: str, held: tuple[Member, ...]) -> Sequence[Template]:
        """Return the combinations in which jobs may join others; see ``Book``."""
        if (model, held) not in self._templates:
            by_size: dict[int, list[Combination]] = {}
            for known in self.known_with(model, held[0]) if held else self.known(model):
                if (seated := self._beside(held, known)) is not None:
                    by_size.setdefault(len(known.members), []).append(seated)
            place = {name: k for k, name in enumerate(self.workloads)}
            self._templates[model, held] = tuple(
                Template.of(found, len(held), place) for _, found in sorted(by_size.items())
            )
        return self._templates[model, held]

    def _beside(self, held: Sequence[Member], known: Combination) -> Combination | None:
        """Return a combination with the residents first, or None if no job may join them in it."""
        rules = self.rules
        free = list(known.members)
        for member in held:
            if member not in free:
                return None
            free.remove(member)
        if (
            not free
            or len(known.members) > rules.max_jobs_per_gpu
            or share_total(share for _, share in known.members) > rules.share_sum
            or not all(self._may_start(share) for _, share in free)
        ):
            return None
        free.sort(key=lambda member: (member[0], share_code(member[1])))
        return known.reordered([*held, *free])

    def seats(self, model: str, wanted: Sequence[Wanted]) -> Iterator[Combination]:
        """Yield the combinations in which these jobs may share a GPU, in their order.

        Parameters
        ----------
        model : str
            The GPU model.
        wanted : sequence of (str, int or None)
            The workload of each, and its share, ``ANY_SHARE`` if it may still be chosen.
        """
        names = tuple(sorted(name for name, _ in wanted))
        for entry in self._of_workloads(model).get(names, ()):
            known = self._combination(model, entry)
            if share_total(share for _, share in known.members) <= self.rules.share_sum:
                yield from map(known.permuted, self._orders(known.members, wanted))

    def _orders(self, members: Sequence[Member], wanted: Sequence[Wanted]) -> Iterator[list[int]]:
        """Yield every order in which members take the wanted places, equal ones in theirs."""
        alike: dict[Member, list[int]] = defaultdict(list)
        for position, member in enumerate(members):
            alike[member].append(position)
        yield from self._arranged(alike, wanted)

    def _arranged(
        self, left: Mapping[Member, list[int]], wanted: Sequence[Wanted]
    ) -> Iterator[list[int]]:
        """Yield the positions for the wanted places; of equal members, the first left."""
        (name, share), *others = wanted
        for member, positions in left.items():
            if positions and member[0] == name and self._may_have(member, share):
                first = positions.pop(0)
                if not others:
                    yield [first]
                else:
                    yield from ([first, *rest] for rest in self._arranged(left, others))
                positions.insert(0, first)

    def _may_have(self, member: Member, share: AnyShare) -> bool:
        return member[1] == share or (share == ANY_SHARE and self._may_start(member[1]))

    def _may_start(self, share: AnyShare) -> bool:
        return share is None or share in self.rules.shares

    def _of_workloads(self, model: str) -> Mapping[tuple[str, ...], Sequence[SlowdownEntry]]:
        """Return every entry that may run on a GPU model, by its sorted workloads."""
        named = model if model in self._named else None

        def made() -> Mapping[tuple[str, ...], Sequence[SlowdownEntry]]:
            found: dict[tuple[str, ...], list[SlowdownEntry]] = defaultdict(list)
            for key, entry in self._entries(named):
                found[tuple([name for name, _ in key])].append(entry)
            return found

        return self.once(f"entries on {named}", made)

    @cached_property
    def sets(self) -> bool:
        """Whether there are entries of three or more jobs on a GPU."""
        return any(entry.set for entry in self._instance.slowdowns)

    def pairs(self, model: str) -> Sequence[SlowdownEntry]:
        """Return the unchanged entries of all pairs that may run on a GPU model."""
        if self.limited.get(model) == 1:
            return []
        entries = self._instance.slowdowns
        own = {entry.key[1] for entry in entries if entry.gpu_model == model}
        return [
            entry
            for entry in entries
            if entry.pair
            and entry.slowdown
            and (
                entry.gpu_model == model
                or (entry.gpu_model is None and not (own and entry.key[1] in own))
            )
        ]

    def _entry(self, model: str | None, key: _Key) -> SlowdownEntry | None:
        """Return the entry that applies to a GPU model, or None if the members may not share."""
        entry = self._by_key.get((model, key)) or self._by_key.get((None, key))
        return entry if entry is not None and entry.slowdown is not None else None

    def _combination(self, model: str | None, entry: SlowdownEntry) -> Combination:
        """Return an entry as a combination, with bounds that hold until each member ends."""
        given = _as_given(entry)
        last = tuple(map(self._alone_at_last, given.members))
        upper = tuple(map(max, given.upper or given.slowdown, last))
        tail = given.p99 and tuple(map(max, given.p99, last))
        if len(given.members) > 2:
            for key in self._within(entry.key[1]):
                if (fewer := self._entry(model, key)) is not None:
                    among = _as_given(fewer)
                    uppers = among.upper or among.slowdown
                    tail = _raised(tail or upper, given.members, among, among.p99 or uppers)
                    upper = _raised(upper, given.members, among, uppers)
        return given._replace(upper=upper, p99=tail)

    def _alone_at_last(self, member: Member) -> float:
        if member not in self._at_last:
            name, share = member
            self._at_last[member] = slowdown_at_last(self._instance.workloads[name], share)
        return self._at_last[member]

    def _within(self, key: _Key) -> Iterator[_Key]:
        """Yield the combinations of two or more that remain when some members have ended."""
        for size, keys in self._sizes.items():
            if size >= len(key):
                continue
            if comb(len(key), size) <= len(keys):
                yield from keys.intersection(combinations(key, size))
            else:
                yield from (each for each in keys if Counter(each) <= Counter(key))

    @cached_property
    def _sizes(self) -> Mapping[int, set[_Key]]:
        """The known combinations by number of members, on any model."""
        found: dict[int, set[_Key]] = defaultdict(set)
        for _, key in self._by_key:
            found[len(key)].add(key)
        return found

    def _entries(self, model: str | None) -> Iterator[tuple[_Key, SlowdownEntry]]:
        """Yield the entries that apply to a GPU model and allow sharing."""
        most = np.inf if model is None else self.limited.get(model, np.inf)
        return (found for found in self._holding(model) if len(found[0]) <= most)

    def _holding(self, model: str | None) -> Iterator[tuple[_Key, SlowdownEntry]]:
        """Yield the entries of ``_entries`` without the model's limit on the number of jobs."""
        for (where, key), entry in self._by_key.items():
            overridden = where != model and (model, key) in self._by_key
            if where in (None, model) and not overridden and entry.slowdown is not None:
                yield key, entry


def _same_rules(one: Cluster, other: Cluster) -> bool:
    """Return whether entries mean the same on the GPUs of two clusters."""
    fields = (name for name in Cluster.model_fields if name != "nodes")
    alike = all(getattr(one, name) == getattr(other, name) for name in fields)
    return alike and one.most_jobs() == other.most_jobs()


def _same(entries: Sequence[SlowdownEntry], others: Sequence[SlowdownEntry]) -> bool:
    """Return whether these are the same records; equal records read twice are not."""
    return entries is others or (len(entries) == len(others) and all(map(is_, entries, others)))


def _same_alone(some: Iterable[Workload], others: Iterable[Workload]) -> bool:
    """Return whether the throughputs of the workloads under caps are the same."""
    pairs = zip(some, others, strict=True)
    return all(a is b or a.throughput == b.throughput for a, b in pairs)


def _raised(
    bounds: tuple[float, ...],
    members: Sequence[Member],
    among: Combination,
    figures: tuple[float, ...],
) -> tuple[float, ...]:
    """Return bounds of members, raised to the figures of the members of a smaller combination."""
    least = dict(zip(among.members, figures, strict=True))
    return tuple(max(b, least.get(m, b)) for b, m in zip(bounds, members, strict=True))


def _key(members: Sequence[Member]) -> _Key:
    return tuple(sorted((name, share_code(share)) for name, share in members))


def _as_given(entry: SlowdownEntry) -> Combination:
    members = tuple(zip(entry.workloads, entry.shares, strict=True))
    slowdown = entry.slowdown or ()
    return Combination(members, slowdown, entry.upper, entry.p99, entry.power_w)
