"""Collects the rows of a program, block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from dovetail.formulations._rows import joined_floats, joined_ints

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class RowBuilder:
    """Collects rows block by block; columns are absolute."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._row: list[Ints] = []
        self._column: list[Ints] = []
        self._value: list[Floats] = []
        self._lower: list[Floats] = []
        self._upper: list[Floats] = []

    def add(
        self, entries: list[tuple[Ints, Ints, Floats | float]], lower: Floats, upper: Floats
    ) -> None:
        """Add ``len(lower)`` rows; each entry is (row within the block, column, value)."""
        for row, column, value in entries:
            self._row.append(row + self._count)
            self._column.append(column)
            self._value.append(np.broadcast_to(np.asarray(value, dtype=np.float64), row.shape))
        self._lower.append(np.asarray(lower, dtype=np.float64))
        self._upper.append(np.asarray(upper, dtype=np.float64))
        self._count += len(lower)

    def arrays(self) -> tuple[csr_array, Floats, Floats]:
        """Return the matrix, and the lower and upper bounds of its rows."""
        place = (joined_ints(self._row), joined_ints(self._column))
        shape = (self._count, self._size)
        rows = coo_array((joined_floats(self._value), place), shape=shape)
        return (
            csr_array(rows),
            joined_floats(self._lower),
            joined_floats(self._upper),
        )
