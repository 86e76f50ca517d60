"""Totals of a pair (throughput sum, power) from trees on sums of the two states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from dovetail.papers.forms.forest import Forest
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import FloatArray, IntArray

_BLOCK: Final = 100_000


@dataclass(frozen=True, eq=False)
class Totals:
    """A forest on ``pair_table``: symmetric in the two states, bit for bit.

    Parameters
    ----------
    forest : Forest
        A forest on the columns of ``pair_table``.
    """

    kind: ClassVar[str] = "totals"

    forest: Forest

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the total of each pair of states, in blocks of bounded memory."""
        total = np.empty(len(own))
        for begin in range(0, len(own), _BLOCK):
            some = slice(begin, begin + _BLOCK)
            total[some] = self.forest.evaluate(pair_table(states, own[some], other[some]))
        return total

    def arrays(self) -> Arrays:
        """Return the whole form as arrays."""
        return self.forest.arrays()

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form for states with this number of features.

        Raises
        ------
        InputError
            When the arrays are no valid forest for such states.
        """
        return cls(Forest.from_arrays(arrays, features))


def pair_table(states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
    """Return the sums of the two states of each row, independent of their order.

    Parameters
    ----------
    states : ndarray of float, shape (states, features)
        The features of each state; the last one is its share, a fraction.
    own, other : ndarray of int, shape (rows,)
        Positions in ``states``.

    Returns
    -------
    ndarray of float, shape (rows, 2 * features)
        The sums of the features, then their sums weighted by the shares.
    """
    weighted = states * states[:, -1:]
    return np.hstack([states[own] + states[other], weighted[own] + weighted[other]])
