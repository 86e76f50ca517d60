"""What the columns of slowdowns are: their names, types, defaults, and the fields of entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.slowdowns.entry import EACH, FIGURES, SlowdownEntry
from dovetail.instances.slowdowns.shares import NO_CAP

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
