"""Integer programs as arrays: what backends solve."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import coo_array, csr_array, vstack

from dovetail.formulations.arrays import Floats, Ints, joined_floats, joined_ints


@dataclass(frozen=True)
class IntegerProgram:
    """``maximise cost @ x`` over integer x with ``row_lower <= rows @ x <= row_upper``.

    Attributes
    ----------
    rows : (m, n) sparse float
        Coefficients.
    row_lower, row_upper : (m,) float
        Bounds of the rows; -inf and inf for none.
    lower, upper : (n,) int
        Bounds of the variables, all finite.
    cost : (n,) float
        The linear objective.
    """

    rows: csr_array
    row_lower: Floats
    row_upper: Floats
    lower: Ints
    upper: Ints
    cost: Floats

    @property
    def size(self) -> int:
        """The number of variables."""
        return len(self.cost)

    def holds(self, x: Ints) -> bool:
        """Return whether a solution satisfies all rows, without a tolerance."""
        activity = self.rows @ x
        return bool(((activity >= self.row_lower) & (activity <= self.row_upper)).all())

    def with_cost(self, cost: Floats) -> IntegerProgram:
        """Return the program with another objective."""
        return replace(self, cost=cost)

    def with_row(self, coefficients: Floats, at_least: float) -> IntegerProgram:
        """Return the program with the additional row ``coefficients @ x >= at_least``."""
        row = csr_array(coefficients[None, :])
        return replace(
            self,
            rows=csr_array(vstack([self.rows, row])),
            row_lower=np.append(self.row_lower, at_least),
            row_upper=np.append(self.row_upper, np.inf),
        )


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
