"""What the columns of slowdowns are, and how plain data or records become columns that are checked.

A number that is no slowdown, but a speed or a percentage, is refused by one rule for every reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter, ValidationError

from dovetail.instances._record import Name, listed
from dovetail.instances.errors import InputError
from dovetail.instances.slowdowns.entry import (
    EACH,
    FIGURES,
    MODES,
    SINGLE,
    SOURCES,
    SlowdownEntry,
)
from dovetail.instances.slowdowns.shares import BEST_EFFORT, CODES, NO_CAP, share_of

if TYPE_CHECKING:
    from dovetail.instances.slowdowns.columns import Slowdowns

Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]
Bools = NDArray[np.bool_]

COLUMNS: Final = ("row", "model", "workload", "share", *FIGURES, "source", "mode")
"""The names of the columns."""

OF_BOTH: Final = frozenset(("workload", "share", *EACH))
"""The columns with a value for each workload of a pair."""

_NAMED: Final = {"pair": "workload", "gpu_model": "model"}

FIELDS: Final[Mapping[str, str]] = {
    _NAMED.get(field, field): field for field in SlowdownEntry.model_fields if field != "set"
}
"""The field of an entry for each column, in the order of the fields."""

DEFAULTS: Final[Mapping[str, float]] = {
    **dict.fromkeys(COLUMNS, math.nan),
    **{"row": 0, "workload": 0, "share": NO_CAP, "model": -1, "source": -1, "mode": 0},
}
"""The value of a row in which a field is not given."""

AT_ONCE: Final = 4096
"""How many rows become Python objects at a time, or the other way round."""

TYPES: Final[Mapping[str, type[np.generic]]] = {
    **{"row": np.int32, "model": np.int32, "workload": np.int32, "share": np.int16},
    **{"source": np.int8, "mode": np.int8},
    **dict.fromkeys(FIGURES, np.float64),
}
"""The types of the columns: as small as they may be, as there may be millions of rows."""


def column_of(name: str, values: NDArray[Any] | float | None, count: int) -> NDArray[Any]:
    """Return a column of its type; one value for all rows is kept once."""
    shape = (count, 2) if name in OF_BOTH else (count,)
    given = np.asarray(DEFAULTS[name] if values is None else values, dtype=TYPES[name])
    return given if given.shape == shape else np.broadcast_to(given, shape)


def is_constant(column: NDArray[Any]) -> bool:
    """Return whether a column is kept as one value for all rows."""
    return len(column) > 0 and not any(column.strides)


def taken(column: NDArray[Any], rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Return some rows of a column; one value for all rows stays one."""
    if is_constant(column):
        return np.broadcast_to(column.flat[0], (len(rows), *column.shape[1:]))
    return np.asarray(column[rows])


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the rows of columns one after the other."""
    first = parts[0]
    if all(map(is_constant, parts)):
        values = np.array([part.flat[0] for part in parts])
        if np.array_equal(values[1:], values[:-1], equal_nan=values.dtype.kind == "f"):
            length = sum(map(len, parts))
            return np.broadcast_to(first.flat[0], (length, *first.shape[1:]))
    return np.concatenate(parts)


def renumbered(column: Ints, old: Sequence[str], new: Sequence[str]) -> Ints:
    """Return positions in ``old`` as positions in ``new``; -1 stays."""
    if tuple(old) == tuple(new):
        return column
    place = {name: k for k, name in enumerate(new)}
    table = np.array([*(place.get(name, -1) for name in old), -1], dtype=column.dtype)
    return np.asarray(table[column])


class Gathering:
    """Slowdowns as they are read: parts of columns, and positions of what is no plain pair.

    Parameters
    ----------
    names : sequence of str
        Workloads that are numbered first.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = {name: k for k, name in enumerate(names)}
        self._models: dict[str, int] = {}
        self._parts: list[dict[str, Any]] = []
        self._sets: dict[int, SlowdownEntry] = {}
        self.count = 0

    def add(self, items: Sequence[object]) -> list[int]:
        """Take the plain pairs among entries of a file that keep the rules of their fields.

        Returns
        -------
        list of int
            The positions, among all that were added, of the other items. They are sets, unusual
            in another way, or break a rule: their records are to be put there.
        """
        places = np.arange(self.count, self.count + len(items), dtype=np.int32)
        self.count += len(items)
        part = self._plain(items)
        taken = places
        if part is None:
            plain = [k for k, item in enumerate(items) if self._plain([item]) is not None]
            taken = places[plain]
            part = self._plain([items[k] for k in plain])
            assert part is not None
        part["row"] = taken
        good = fits(part)
        if not good.all():
            part = {name: None if v is None else v[good] for name, v in part.items()}
        odd: list[int] = np.setdiff1d(places, part["row"], assume_unique=True).tolist()
        self._take(part)
        return odd

    def add_records(self, entries: Sequence[SlowdownEntry]) -> None:
        """Take records after everything before."""
        first = self.count
        self.count += len(entries)
        self.put(range(first, self.count), entries)

    def put(self, places: Iterable[int], entries: Iterable[SlowdownEntry]) -> None:
        """Take records at these positions."""
        pairs: list[SlowdownEntry] = []
        rows: list[int] = []
        for place, entry in zip(places, entries, strict=True):
            if entry.pair is None:
                self._sets[place] = entry
            else:
                pairs.append(entry)
                rows.append(place)
        if pairs:
            part = self._arrays(_fields(pairs))
            if part is None:
                # A copy of a record may have been given NumPy's numbers, or others.
                pairs = [SlowdownEntry.model_validate(dict(entry)) for entry in pairs]
                part = self._arrays(_fields(pairs))
                assert part is not None
            self._take({**part, "row": np.array(rows, dtype=np.int32)})

    def gathered(self) -> dict[str, Any]:
        """Return the values of `Slowdowns`; nothing can be added afterwards."""
        self._join()
        (part,) = self._parts
        made: dict[str, Any] = {
            name: column_of(name, part[name], len(part["row"])) for name in COLUMNS
        }
        row = made["row"]
        if (row[1:] < row[:-1]).any():
            order = np.argsort(row)
            made = {name: taken(column, order) for name, column in made.items()}
        sets = dict(sorted(self._sets.items()))
        return {"names": tuple(self._names), "models": tuple(self._models), **made, "sets": sets}

    def _take(self, part: dict[str, Any]) -> None:
        self._parts.append(part)
        if len(self._parts) >= _MOST_PARTS:
            self._join()

    def _join(self) -> None:
        """Make one part of all; small ones would leave holes in memory."""
        sizes = [len(part["row"]) for part in self._parts]
        self._parts = [{name: self._whole(name, sizes) for name in COLUMNS}]

    def _whole(self, name: str, sizes: Sequence[int]) -> NDArray[Any] | None:
        """Return a column, and forget its parts."""
        parts = [part.pop(name, None) for part in self._parts]
        if all(part is None for part in parts):
            return np.empty(0, dtype=np.int32) if name == "row" else None
        filled = (column_of(name, part, size) for part, size in zip(parts, sizes, strict=True))
        return np.concatenate(list(filled))

    def _plain(self, items: Sequence[Any]) -> dict[str, Any] | None:
        """Return the columns of pairs as in a file, or None if some item is anything else."""
        if not items:
            return self._arrays({name: [] for name in ("pair", "slowdown")})
        if set(map(type, items)) != {dict}:
            return None
        orders = set(map(tuple, items))
        if not all(
            "pair" in keys and "slowdown" in keys and _PAIR_FIELDS.issuperset(keys)
            for keys in orders
        ):
            return None
        if len(orders) == 1:
            (keys,) = orders
            values = zip(*map(dict.values, items), strict=True)
            return self._arrays(dict(zip(keys, values, strict=True)))
        present = set(chain.from_iterable(orders))
        return self._arrays(
            {name: [item.get(name, _ABSENT.get(name)) for item in items] for name in present}
        )

    def _arrays(self, values: Mapping[str, Sequence[Any]]) -> dict[str, Any] | None:
        """Return values of fields as columns, or None if some are not of the usual type."""
        found: dict[str, Any] = {}
        for name, rows in values.items():
            column = self._array(name, rows)
            if column is _ODD:
                return None
            found[_COLUMN_OF[name]] = column
        return found

    def _array(self, name: str, rows: Sequence[Any]) -> Any:  # noqa: ANN401 (a column, None or _ODD)
        if name == "pair":
            return self._named(rows)
        if name in EACH:
            return _numbers(rows, 2)
        if name in SINGLE:
            return _numbers(rows, 1)
        if name == "share":
            return _shares(rows)
        if name == "gpu_model":
            return self._model_numbers(rows)
        return _coded(rows, _CODES[name], TYPES[name])

    def _named(self, rows: Sequence[Any]) -> Any:  # noqa: ANN401
        ends = _flat(rows)
        if ends is None or not set(map(type, ends)) <= {str}:
            return _ODD
        if not _number_new(self._names, ends):
            return _ODD
        number = self._names
        return np.array([number[name] for name in ends], dtype=np.int32).reshape(-1, 2)

    def _model_numbers(self, rows: Sequence[Any]) -> Any:  # noqa: ANN401
        different = set(map(type, rows))
        if different <= {type(None)}:
            return None
        if not different <= {type(None), str}:
            return _ODD
        if not _number_new(self._models, [name for name in rows if name is not None]):
            return _ODD
        number = self._models
        found = [-1 if name is None else number[name] for name in rows]
        return np.array(found, dtype=TYPES["model"])


def _fields(pairs: Sequence[SlowdownEntry]) -> dict[str, list[Any]]:
    return {name: [getattr(entry, name) for entry in pairs] for name in _PAIR_FIELDS}


def _number_new(number: dict[str, int], names: Iterable[str]) -> bool:
    """Number the names that have no number yet; return whether each is a possible name."""
    fresh = [name for name in dict.fromkeys(names) if name not in number]
    try:
        for name in fresh:
            _NAME.validate_python(name)
    except ValidationError:
        return False
    number.update(zip(fresh, range(len(number), len(number) + len(fresh)), strict=True))
    return True


def _flat(rows: Sequence[Any]) -> list[Any] | None:
    """Return the items of lists of two, or None if some row is anything else."""
    if not set(map(type, rows)) <= {list, tuple} or not set(map(len, rows)) <= {2}:
        return None
    return list(chain.from_iterable(rows))


def _numbers(rows: Sequence[Any], each: int) -> Any:  # noqa: ANN401
    """Return numbers as a column, NaN for None; None for no numbers at all."""
    given = [row for row in rows if row is not None]
    if not given:
        return None
    values = _flat(given) if each == 2 else given
    if values is None or not set(map(type, values)) <= {float, int}:
        return _ODD
    try:
        array = np.array(values, dtype=np.float64)
    except OverflowError:
        return _ODD
    if np.isnan(array).any():
        return _ODD
    shape = (-1, 2) if each == 2 else (-1,)
    array = array.reshape(shape)
    if len(given) == len(rows):
        return array
    column = np.full((len(rows), *array.shape[1:]), np.nan)
    column[[row is not None for row in rows]] = array
    return column


def _shares(rows: Sequence[Any]) -> Any:  # noqa: ANN401
    if not any(map(_is_given, rows)):
        return None
    ends = _flat([_NO_SHARES if row is None else row for row in rows])
    if ends is None:
        return _ODD
    column = _coded(ends, _SHARE_CODES, np.int16)
    return column if column is _ODD else column.reshape(-1, 2)


def _is_given(row: object) -> bool:
    return row is not None


def _coded(rows: Sequence[Any], codes: Mapping[Any, int], kind: type[Any]) -> Any:  # noqa: ANN401
    # By type too: True is 1, and 30.0 is 30.
    if not set(map(type, rows)) <= {str, int, type(None)}:
        return _ODD
    try:
        return np.array([codes[row] for row in rows], dtype=kind)
    except KeyError:
        return _ODD


def fits(part: Mapping[str, Any]) -> Bools:
    """Return which rows of columns, as in a file, keep the rules of `SlowdownEntry`."""
    count = len(part["workload"])
    whole = {name: column_of(name, part.get(name), count) for name in FIELDS}
    slowdown, share, upper = whole["slowdown"], whole["share"], whole["upper"]
    null, unbounded = np.isnan(slowdown[:, 0]), np.isnan(upper[:, 0])
    good: Bools = ~(share == BEST_EFFORT).all(axis=1) & (
        unbounded | (upper >= slowdown).all(axis=1)
    )
    time_sliced = whole["mode"] == MODES.index("time_sliced")
    good &= ~(time_sliced & ((share != NO_CAP) & (share != BEST_EFFORT)).any(axis=1))
    twin = (whole["workload"][:, 0] == whole["workload"][:, 1]) & (share[:, 0] == share[:, 1])
    for name in FIGURES:
        if part.get(name) is None:
            continue
        column = whole[name]
        absent = np.isnan(column)
        allowed = absent | _within(name, column)
        good &= allowed.all(axis=1) if name in EACH else allowed
        if name in EACH:
            good &= absent[:, 0] | ~twin | (column[:, 0] == column[:, 1])
            absent = absent[:, 0]
        if name == "confidence":
            good &= absent | ~unbounded
        elif name != "slowdown":
            good &= absent | ~null
    return good


def _within(name: str, column: Floats) -> Bools:
    """Return which numbers are in the range of a field."""
    least, most = _ranges()[name]
    return np.asarray((column >= least) & (column <= most))


@cache
def _ranges() -> Mapping[str, tuple[float, float]]:
    """Return the range of each figure, as the record has it."""
    of_field = SlowdownEntry.model_json_schema()["properties"]
    found = {}
    for name in FIGURES:
        number = of_field[name]["anyOf"][0]
        number = number.get("items", number)
        least = number.get(
            "minimum", math.nextafter(number.get("exclusiveMinimum", -math.inf), math.inf)
        )
        most = number.get(
            "maximum", math.nextafter(number.get("exclusiveMaximum", math.inf), -math.inf)
        )
        found[name] = least, most
    return found


_MOST_PARTS: Final = 32
_NO_SHARES: Final = (None, None)
_ODD: Final = object()
_NAME: Final = TypeAdapter(Name)
_COLUMN_OF: Final = {field: column for column, field in FIELDS.items()}
_PAIR_FIELDS: Final = frozenset(FIELDS.values())
_ABSENT: Final = {"mode": MODES[0]}
_CODES: Final[Mapping[str, Mapping[Any, int]]] = {
    "source": {None: -1, **{word: k for k, word in enumerate(SOURCES)}},
    "mode": {word: k for k, word in enumerate(MODES)},
}
_SHARE_CODES: Final = {share_of(code): code for code in range(CODES)}

_SPEED: Final = 0.95
"""A median below this indicates speeds."""

_PERCENTAGE: Final = 20.0
"""A median above this indicates percentages."""

_LEAST_BY_NOISE: Final = 0.9
"""If no slowdown is above 1, one below this is not measurement noise."""

_RULE: Final = "must be iteration time together / alone"


def require_slowdowns(slowdowns: ArrayLike, path: str, source: str) -> None:
    """Refuse numbers that cannot be slowdowns: half of all jobs do not run faster together.

    One job of a pair may starve (measured with MPS without caps: 50 times slower), and the other
    then runs as if alone; so the lower median is compared with the limit of percentages.

    Raises
    ------
    InputError
        When their median indicates speeds or percentages, or none is above 1 and some are below
        0.9.
    """
    values = np.asarray(slowdowns, dtype=np.float64).ravel()
    if not len(values):
        return
    halves = (len(values) - 1) // 2, len(values) // 2
    low, high = np.partition(values, halves)[[*halves]].tolist()
    if (middle := (low + high) / 2) < _SPEED:
        odd = f"half are at most {middle:.4g}, as speeds are"
    elif low > _PERCENTAGE:
        odd = f"half are at least {low:.4g}, as percentages are"
    elif values.max() <= 1 and (least := float(values.min())) < _LEAST_BY_NOISE:
        odd = f"none is above 1 and the least is {least:.4g}, as speeds are"
    else:
        return
    raise InputError(f"{_RULE}; {odd}", path, source)


def require_entries(known: Slowdowns, source: str) -> None:
    """Refuse implausible slowdowns of an instance from a file, like those of a table of pairs.

    Raises
    ------
    InputError
        As for ``require_slowdowns``, or when all jobs of an entry have percentages.
    """
    may = known.may_share
    values = known.slowdown if may.all() else known.slowdown[may]
    of_sets = [s for entry in known.sets.values() for s in entry.slowdown or ()]
    values = np.append(values, of_sets) if of_sets else values
    require_slowdowns(values, "slowdowns", source)
    for k in _beyond(known, lambda slowdowns: slowdowns.min(axis=-1) > _PERCENTAGE):
        got = listed(map("{:g}".format, known[k].slowdown or ()))
        raise InputError(f"{_RULE}; {got} are percentages", f"slowdowns[{k}].slowdown", source)


def faster_together(known: Slowdowns) -> Iterator[str]:
    """Yield a line for each entry in which all jobs run clearly faster together than alone.

    This is allowed, since caches are shared and measurements are noisy, but likely a mistake.
    """
    for k in _beyond(known, lambda slowdowns: slowdowns.max(axis=-1) < _SPEED):
        got = listed(map("{:g}".format, known[k].slowdown or ()))
        names = " + ".join(known[k].workloads)
        yield f"slowdowns[{k}]: {names} run faster together than alone, by {got}: speeds?"


def _beyond(
    known: Slowdowns, holds: Callable[[NDArray[np.float64]], NDArray[np.bool_] | np.bool_]
) -> list[int]:
    """Return the positions of the entries of whose slowdowns something holds."""
    pairs = known.row[holds(known.slowdown)].tolist()
    sets = (
        k for k, entry in known.sets.items() if entry.slowdown and holds(np.array(entry.slowdown))
    )
    return sorted([*pairs, *sets])
