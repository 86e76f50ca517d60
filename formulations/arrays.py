"""The types of the arrays in formulations and solvers, and reductions of narrow ones."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def across(combine: np.ufunc, table: NDArray[Any]) -> NDArray[Any]:
    """Return ``combine.reduce(table, axis=1)`` of a table with few columns, column by column.

    NumPy reduces short rows one by one, which takes ten times as long.
    """
    return np.asarray(reduce(combine, table.T))
