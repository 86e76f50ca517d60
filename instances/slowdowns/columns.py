"""The known slowdowns of an instance as columns: a row for each pair, larger sets as records."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import accumulate, chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidatorFunctionWrapHandler,
)
from pydantic_core.core_schema import (
    CoreSchema,
    no_info_wrap_validator_function,
    plain_serializer_function_ser_schema,
)

from dovetail.instances.slowdowns.entry import (
    EACH,
    FIGURES,
    MODES,
    SINGLE,
    SOURCES,
    EntryKey,
    GpuKind,
    Members,
    SharingMode,
    SlowdownEntry,
)
from dovetail.instances.slowdowns.gathering import (
    AT_ONCE,
    COLUMNS,
    DEFAULTS,
    FIELDS,
    Bools,
    Floats,
    Gathering,
    Ints,
    column_of,
    joined,
    renumbered,
    taken,
)
from dovetail.instances.slowdowns.shares import BEST_EFFORT, share_of

if TYPE_CHECKING:
    from dovetail.instances.instance import Workload

_SHARES: Final = 128
"""More than the number of shares, so that a workload and its share fit in one number."""

_FEW: Final = 5
"""How many entries are shown in full."""

_ALWAYS: Final = ("workload", "slowdown")
"""The columns that every entry shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Slowdowns(Sequence[SlowdownEntry]):
    """Measured or predicted slowdowns of workloads that share a GPU.

    As a sequence it has an entry for each, in the order of the file; an entry is made when it is
    asked for. Pairs are rows of columns, which may not be written to.

    Attributes
    ----------
    names : tuple of str
        The workloads that the rows number.
    models : tuple of str
        The GPU models that the rows number.
    row : (n,) int
        The position of each pair among all entries.
    model : (n,) int
        The GPU model, -1 for all.
    workload : (n, 2) int
        Both workloads.
    share : (n, 2) int
        The codes of their shares (``shares``).
    slowdown : (n, 2) float
        Iteration time together / alone of each; NaN: they may not share.
    upper, p99 : (n, 2) float
        Upper bounds of the slowdowns, and growth of the tail latencies; NaN if not known.
    power_w : (n,) float
        Power of the shared GPU in watts; NaN if not known.
    confidence : (n,) float
        The confidence of the upper bounds; NaN if not given.
    source : (n,) int
        Position of the origin in ``SOURCES``, -1 if not given.
    mode : (n,) int
        Position of the sharing mode in ``MODES``.
    sets : mapping of int to SlowdownEntry
        The entries of three and more workloads by their position among all entries, ascending.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    row: Ints
    model: Ints
    workload: Ints
    share: Ints
    slowdown: Floats
    upper: Floats
    p99: Floats
    power_w: Floats
    confidence: Floats
    source: Ints
    mode: Ints
    sets: Mapping[int, SlowdownEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            column = getattr(self, name)
            if column.flags.writeable:
                column.flags.writeable = False
        object.__setattr__(self, "sets", MappingProxyType(dict(self.sets)))

    # -- made of ------------------------------------------------------------------------------

    @classmethod
    def of(cls, entries: Iterable[SlowdownEntry], names: Sequence[str] = ()) -> Slowdowns:
        """Return the columns of records; ``names`` are numbered before others."""
        if isinstance(entries, Slowdowns):
            return entries
        found = list(entries)
        return _gathered(found, names) if found or names else _none()

    @classmethod
    def of_pairs(
        cls,
        names: Sequence[str],
        workload: NDArray[np.integer[Any]],
        models: Sequence[str] = (),
        **columns: NDArray[Any] | float | None,
    ) -> Slowdowns:
        """Return columns of pairs that are known to fit the rules.

        Parameters
        ----------
        names, models
            As the attributes.
        workload : (n, 2) int
            Positions of both workloads in ``names``.
        **columns
            The other columns, or one value for all rows; None or left out: not known.
        """
        count = len(workload)
        found: dict[str, Any] = {"row": np.arange(count), "workload": workload, **columns}
        made: dict[str, Any] = {name: column_of(name, found.get(name), count) for name in COLUMNS}
        return Slowdowns(tuple(names), tuple(models), **made)

    # -- as a sequence ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.row) + len(self.sets)

    @overload
    def __getitem__(self, place: int) -> SlowdownEntry: ...

    @overload
    def __getitem__(self, place: slice) -> Slowdowns: ...

    def __getitem__(self, place: int | slice) -> SlowdownEntry | Slowdowns:
        if isinstance(place, slice):
            first, end, step = place.indices(len(self))
            if step != 1:
                return Slowdowns.of([self[k] for k in range(first, end, step)], self.names)
            return self._between(first, max(first, end))
        k = range(len(self))[place]
        if k in self.sets:
            return self.sets[k]
        at = int(np.searchsorted(self.row, k)) if self.sets else k
        (entry,) = self._entries(slice(at, at + 1))
        return entry

    def __iter__(self) -> Iterator[SlowdownEntry]:
        pairs = self._entries()
        for k in range(len(self)):
            found = self.sets.get(k)
            yield next(pairs) if found is None else found

    def extended(self, others: Sequence[SlowdownEntry]) -> Slowdowns:
        """Return these entries and others after them."""
        return Slowdowns.joined([self, Slowdowns.of(others, self.names)])

    @classmethod
    def joined(cls, parts: Sequence[Slowdowns]) -> Slowdowns:
        """Return the entries of several, one after the other."""
        some = [part for part in parts if len(part)] or [*parts[:1]]
        if len(some) == 1:
            return some[0]
        names = tuple(dict.fromkeys(chain.from_iterable(part.names for part in parts)))
        models = tuple(dict.fromkeys(chain.from_iterable(part.models for part in some)))
        alike = [part.numbered(names, models) for part in some]
        made = {name: joined([getattr(part, name) for part in alike]) for name in COLUMNS}
        starts = [0, *accumulate(map(len, some))]
        made["row"] = np.concatenate(
            [part.row + np.int32(start) for part, start in zip(alike, starts, strict=False)]
        )
        sets = {
            start + k: entry
            for part, start in zip(some, starts, strict=False)
            for k, entry in part.sets.items()
        }
        return Slowdowns(names, models, **made, sets=sets)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        if self is other:
            return True
        if len(self) != len(other):
            return False
        if not isinstance(other, Slowdowns):
            return all(mine == theirs for mine, theirs in zip(self, other, strict=True))
        names = tuple(dict.fromkeys((*self.names, *other.names)))
        models = tuple(dict.fromkeys((*self.models, *other.models)))
        one, two = self.numbered(names, models), other.numbered(names, models)
        return dict(one.sets) == dict(two.sets) and all(
            np.array_equal(getattr(one, name), getattr(two, name), equal_nan=name in FIGURES)
            for name in COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if len(self) <= _FEW:
            return repr(tuple(self))
        return f"<Slowdowns: {len(self.row):,} pairs, {len(self.sets):,} sets>"

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _restored, (Slowdowns, {**values, "sets": dict(self.sets)})

    # -- parts --------------------------------------------------------------------------------

    def select(
        self, rows: Bools | NDArray[np.integer[Any]], sets: Iterable[int] | None = None
    ) -> Slowdowns:
        """Return the entries of some rows and the sets at some positions, in their order.

        Parameters
        ----------
        rows : (n,) bool, or int
            Which rows, or their numbers.
        sets : iterable of int, optional
            Positions of sets; default: all.
        """
        chosen = np.sort(np.arange(len(self.row))[rows])
        kept = self.sets if sets is None else {k: self.sets[k] for k in sorted(sets)}
        if len(chosen) + len(kept) == len(self):
            return self
        made = {name: taken(getattr(self, name), chosen) for name in COLUMNS}
        places = np.sort(np.concatenate([made["row"], np.array([*kept], dtype=np.int32)]))
        made["row"] = np.searchsorted(places, made["row"]).astype(np.int32)
        ranked = zip(np.searchsorted(places, [*kept]).tolist(), kept.values(), strict=True)
        return Slowdowns(self.names, self.models, **made, sets=dict(ranked))

    def among(self, names: Collection[str]) -> Slowdowns:
        """Return the entries of which all workloads are among these."""
        wanted = set(names)
        mask = np.array([name in wanted for name in self.names], dtype=bool)
        sets = [k for k, entry in self.sets.items() if wanted.issuperset(entry.workloads)]
        return self.select(np.asarray(mask[self.workload].all(axis=1)), sets)

    def _between(self, first: int, end: int) -> Slowdowns:
        a, b = np.searchsorted(self.row, [first, end]).tolist()
        made = {name: getattr(self, name)[a:b] for name in COLUMNS}
        made["row"] = made["row"] - np.int32(first)
        sets = {k - first: entry for k, entry in self.sets.items() if first <= k < end}
        return Slowdowns(self.names, self.models, **made, sets=sets)

    def numbered(self, names: Sequence[str], models: Sequence[str] | None = None) -> Slowdowns:
        """Return the same entries with these workloads and GPU models in this order.

        Every name that a row has must be among them.
        """
        wanted, known = tuple(names), self.models if models is None else tuple(models)
        if wanted == self.names and known == self.models:
            return self
        made: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        made["workload"] = renumbered(self.workload, self.names, wanted)
        made["model"] = renumbered(self.model, self.models, known)
        return Slowdowns(**{**made, "names": wanted, "models": known})

    def renamed(self, new: Mapping[str, str]) -> Slowdowns:
        """Return the entries with other names of workloads."""
        made: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        made["names"] = tuple(new.get(name, name) for name in self.names)
        made["sets"] = {
            k: entry.model_copy(update={"set": tuple(new.get(n, n) for n in entry.workloads)})
            for k, entry in self.sets.items()
        }
        return Slowdowns(**made)

    # -- questions ----------------------------------------------------------------------------

    @property
    def may_share(self) -> Bools:
        """The rows with numbers, (n,) bool."""
        return ~np.isnan(self.slowdown[:, 0])

    def used(self) -> set[str]:
        """Return the names of the workloads that some entry has."""
        numbers = np.unique(self.workload).tolist()
        of_sets = chain.from_iterable(entry.workloads for entry in self.sets.values())
        return {*(self.names[k] for k in numbers), *of_sets}

    def odd(self, workloads: Mapping[str, Workload], modes: Collection[SharingMode]) -> list[int]:
        """Return the positions of entries that need a look at whether they fit an instance.

        These are all sets, and pairs of other modes, of unknown workloads or with a share that
        only isolated workloads have.
        """
        strange = np.array([name not in workloads for name in self.names], dtype=bool)
        rigid = np.array(
            [name in workloads and workloads[name].isolation is None for name in self.names],
            dtype=bool,
        )
        odd = ~np.isin(self.mode, [MODES.index(mode) for mode in modes])
        if strange.any():
            odd |= strange[self.workload].any(axis=1)
        idle = np.flatnonzero((self.share == BEST_EFFORT).any(axis=1))
        behind = rigid[self.workload[idle]] & (self.share[idle] == BEST_EFFORT)
        odd[idle[behind.any(axis=1)]] = True
        return sorted([*self.row[odd].tolist(), *self.sets])

    def of_model(self, model: str) -> Bools:
        """Return the rows for one GPU model alone."""
        return np.asarray(self.model == (self.models.index(model) if model in self.models else -2))

    def holds_on(self, model: str, sharing: SharingMode) -> Bools:
        """Return the rows that hold on GPUs of a model that are shared in this way.

        Those of the model come before those for all.
        """
        of_mode = self.mode == MODES.index(sharing)
        own = self.of_model(model) & of_mode
        for_all = (self.model == -1) & of_mode
        if own.any() and for_all.any():
            members = self.members
            for_all &= ~np.isin(members, members[own])
        return np.asarray(own | for_all)

    @property
    def members(self) -> NDArray[np.int64]:
        """Both workloads with their shares as one number each, whatever their order."""
        one, other = (self.workload[:, k] * np.int64(_SHARES) + self.share[:, k] for k in range(2))
        members = np.minimum(one, other)
        members *= len(self.names) * _SHARES
        members += np.maximum(one, other, out=one)
        return np.asarray(members)

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The keys of all rows in ascending order, and the row of each."""
        keys = self.keys
        order = np.argsort(keys, kind="stable")
        return keys[order], order.astype(np.int32)

    @property
    def keys(self) -> NDArray[np.int64]:
        """A number for each row, the same for two rows only if their entries have one key."""
        keys = self.members
        keys *= len(MODES)
        keys += self.mode
        keys *= len(self.models) + 1
        keys += self.model
        keys += 1
        return keys

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The position of each workload."""
        return {name: k for k, name in enumerate(self.names)}

    def repeated(self) -> tuple[int, int] | None:
        """Return the positions of the first entry whose key an earlier one has, and of that one."""
        keys, order = self._sorted
        again = 1 + np.flatnonzero(keys[1:] == keys[:-1])
        found: list[tuple[int, int]] = []
        if len(again):
            later = again[np.argmin(order[again])]
            first = np.searchsorted(keys, keys[later])
            found.append((int(self.row[order[later]]), int(self.row[order[first]])))
        seen: dict[EntryKey, int] = {}
        for k, entry in self.sets.items():
            if seen.setdefault(entry.key, k) != k:
                found.append((k, seen[entry.key]))
        return min(found, default=None)

    @cached_property
    def by_key(self) -> ByKey:
        """The entries by their keys."""
        return ByKey(self)

    def place(self, key: EntryKey) -> int | None:
        """Return the position of the pair with a key among the rows, or None."""
        model, members, mode = key
        if len(members) != 2 or (model is not None and model not in self.models):
            return None
        number = 0 if model is None else 1 + self.models.index(model)
        found = self._rows([members], [MODES.index(mode)], [number])
        return None if found[0] < 0 else int(found[0])

    def holding(self, pairs: Sequence[tuple[GpuKind, Members]]) -> Ints:
        """Return the row that holds for each pair on a kind of GPU, -1 where there is none.

        An entry for the model comes before the one for all.
        """
        numbers = {model: 1 + k for k, model in enumerate(self.models)}
        members = [each for _, each in pairs]
        mode = [MODES.index(kind.sharing) for kind, _ in pairs]
        for_all = self._rows(members, mode, [0] * len(pairs))
        if not numbers:
            return for_all
        own = self._rows(members, mode, [numbers.get(kind.model, 0) for kind, _ in pairs])
        return np.where(own >= 0, own, for_all)

    def like(self, others: Slowdowns) -> Ints:
        """Return the row here with the key of each row of others, -1 where there is none."""
        names = tuple(dict.fromkeys((*self.names, *others.names)))
        models = tuple(dict.fromkeys((*self.models, *others.models)))
        keys, order = self.numbered(names, models)._sorted
        return _found(keys, order, others.numbered(names, models).keys)

    def _rows(self, pairs: Sequence[Members], mode: Sequence[int], model: Sequence[int]) -> Ints:
        """Return the row of each pair of a mode for a GPU model, from 1, or for all: 0."""
        ends = [self.number.get(name, -1) * _SHARES + code for pair in pairs for name, code in pair]
        low, high = np.sort(np.array(ends, dtype=np.int64).reshape(-1, 2), axis=1).T
        members = (low * (len(self.names) * _SHARES) + high) * len(MODES) + mode
        asked = members * (len(self.models) + 1) + model
        return _found(*self._sorted, asked)

    # -- records and data ---------------------------------------------------------------------

    def at(self, row: int) -> SlowdownEntry:
        """Return the entry of a row."""
        (entry,) = self._entries(slice(row, row + 1))
        return entry

    def to_data(self) -> Iterator[dict[str, Any]]:
        """Yield each entry as plain data; fields at their default are left out."""
        pairs = self._given(slice(None), list)
        for k in range(len(self)):
            found = self.sets.get(k)
            yield next(pairs) if found is None else found.to_data()

    def _entries(self, rows: slice = slice(None)) -> Iterator[SlowdownEntry]:
        return (SlowdownEntry.model_construct(**given) for given in self._given(rows, tuple))

    def _given(self, rows: slice, kind: type[Any]) -> Iterator[dict[str, Any]]:
        """Yield the fields of entries that differ from their defaults, in the records' order."""
        first, end, _ = rows.indices(len(self.row))
        for start in range(first, end, AT_ONCE):
            part = slice(start, min(end, start + AT_ONCE))
            columns = {
                FIELDS[name]: self._values(name, part, kind)
                for name in FIELDS
                if self.has(name, part)
            }
            for row in zip(*columns.values(), strict=True):
                given = zip(columns, row, strict=True)
                yield {name: v for name, v in given if v is not None or name == "slowdown"}

    def has(self, name: str, part: slice) -> bool:
        """Return whether a field of some rows differs from its default."""
        if name in _ALWAYS:
            return True
        some = getattr(self, name)[part]
        if some.strides[0] == 0:
            some = some[:1]
        return not (np.isnan(some).all() if name in FIGURES else (some == DEFAULTS[name]).all())

    def _values(self, name: str, part: slice, kind: type[Any]) -> list[Any]:
        """Return a column as the values of a field, None for its default."""
        rows = getattr(self, name)[part].tolist()
        if name in EACH:
            return [kind(row) if row[0] == row[0] else None for row in rows]
        if name in SINGLE:
            return [value if value == value else None for value in rows]
        if name == "workload":
            return [kind((self.names[a], self.names[b])) for a, b in rows]
        if name == "share":
            return [kind(map(share_of, row)) if any(row) else None for row in rows]
        words = {"model": self.models, "source": SOURCES, "mode": MODES}[name]
        return [words[value] if value != DEFAULTS[name] else None for value in rows]


class ByKey(Mapping[EntryKey, SlowdownEntry]):
    """The entries of `Slowdowns` by GPU model, sorted (workload, code of the share) and mode.

    A record is made when it is asked for; keys come in the order of the entries.
    """

    def __init__(self, known: Slowdowns) -> None:
        self._known = known
        self._sets = {entry.key: entry for entry in known.sets.values()}

    def __getitem__(self, key: EntryKey) -> SlowdownEntry:
        if key in self._sets:
            return self._sets[key]
        at = self._place(key)
        if at is None:
            raise KeyError(key)
        return self._known.at(at)

    def __contains__(self, key: object) -> bool:
        return key in self._sets or self._place(key) is not None

    def _place(self, key: Any) -> int | None:  # noqa: ANN401
        try:
            return self._known.place(key)
        except (TypeError, ValueError):
            return None

    def __iter__(self) -> Iterator[EntryKey]:
        return (entry.key for entry in self._known)

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> ItemsView[EntryKey, SlowdownEntry]:
        """Return the keys and entries, each record made once."""
        return _KeyedItems(self)

    def values(self) -> ValuesView[SlowdownEntry]:
        """Return the entries."""
        return _KeyedValues(self)


class _KeyedItems(ItemsView[EntryKey, SlowdownEntry]):
    _mapping: ByKey

    def __iter__(self) -> Iterator[tuple[EntryKey, SlowdownEntry]]:
        return ((entry.key, entry) for entry in self._mapping._known)


class _KeyedValues(ValuesView[SlowdownEntry]):
    _mapping: ByKey

    def __iter__(self) -> Iterator[SlowdownEntry]:
        return iter(self._mapping._known)


def _found(keys: NDArray[np.int64], order: Ints, asked: NDArray[np.int64]) -> Ints:
    """Return the row of each key by the sorted keys of all rows, -1 where there is none."""
    if not len(keys):
        return np.full(len(asked), -1)
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, order[at], -1)


def _gathered(entries: Sequence[SlowdownEntry], names: Sequence[str]) -> Slowdowns:
    gathering = Gathering(names)
    gathering.add_records(entries)
    return Slowdowns(**gathering.gathered())


@cache
def _none() -> Slowdowns:
    """Return columns without rows: the check of most starts needs no others."""
    return _gathered((), ())


def _restored(kind: type[Slowdowns], values: dict[str, Any]) -> Slowdowns:
    return kind(**values)


def _schema(_: object, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a list of entries, whose plain pairs are checked as columns."""
    return no_info_wrap_validator_function(
        _validated,
        handler.generate_schema(tuple[SlowdownEntry, ...]),
        serialization=plain_serializer_function_ser_schema(
            lambda known: list(known.to_data()) if isinstance(known, Slowdowns) else known
        ),
    )


def _validated(value: object, records: ValidatorFunctionWrapHandler) -> Slowdowns:
    if isinstance(value, Slowdowns):
        return value
    if not isinstance(value, list | tuple):
        return Slowdowns.of(records(value))
    if set(map(type, value)) <= {SlowdownEntry}:
        return Slowdowns.of(value)
    gathering = Gathering()
    odd = [
        k
        for start in range(0, len(value), AT_ONCE)
        for k in gathering.add(value[start : start + AT_ONCE])
    ]
    if odd:
        # Anything valid in the place of the others, so that errors have the right position.
        asked = [_VALID] * len(value)
        for k in odd:
            asked[k] = value[k]
        made = records(asked)
        gathering.put(odd, (made[k] for k in odd))
    return Slowdowns(**gathering.gathered())


_VALID: Final[Any] = SlowdownEntry(pair=("a", "b"), slowdown=None)

SlowdownsField = Annotated[Slowdowns, GetPydanticSchema(_schema)]
"""The slowdowns of an instance, as a field of a record."""
