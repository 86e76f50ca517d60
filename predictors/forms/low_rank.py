"""A completed matrix of pairs, one cell for each ordered pair of known states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

_LARGEST_LOG: Final = float(np.log(1e15))
"""Slowdowns are at most this (formats)."""


@dataclass(frozen=True)
class LowRank:
    """Slowdowns by what the two states are called, whatever is known of them otherwise.

    The first feature of a state is its workload, as a number; the rest (its share) is its
    *condition*. A workload that is not known, NaN among them, is answered for as an average one
    under the same condition. There is no answer (NaN) where two conditions were never measured
    beside each other: nothing is carried from one split of the SMs to another.

    Attributes
    ----------
    known : ndarray of float, shape (states, features)
        The states that were measured.
    conditions : ndarray of float, shape (conditions, features - 1)
        Their conditions.
    together : ndarray of bool, shape (conditions, conditions)
        Which conditions were measured beside each other, the own one first.
    log_slowdown, variance : ndarray of float, shape (states + conditions, states + conditions)
        Mean and variance of the natural logarithm of the own state's slowdown (row) beside the
        other (column); an average workload under each condition comes after the known states.
    """

    kind: ClassVar[str] = "low_rank"

    known: FloatArray
    conditions: FloatArray
    together: BoolArray
    log_slowdown: FloatArray
    variance: FloatArray

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state beside the other; see ``Form.predict``."""
        return self._looked_up(np.exp(self.log_slowdown), states, own, other)

    def standard_error(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the standard error of a single new measurement, in slowdown, for each row.

        To first order: the slowdown times the standard deviation of its logarithm. Shapes are
        those of ``predict``.
        """
        error = np.exp(self.log_slowdown) * np.sqrt(self.variance)
        return self._looked_up(error, states, own, other)

    def arrays(self) -> Arrays:
        """Return the attributes by name."""
        return {
            "known": self.known,
            "conditions": self.conditions,
            "together": self.together,
            "log_slowdown": self.log_slowdown,
            "variance": self.variance,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        known = finite(arrays, "known", (None, features))
        conditions = finite(arrays, "conditions", (None, features - 1))
        count = len(conditions)
        cells = len(known) + count
        log_slowdown = finite(arrays, "log_slowdown", (cells, cells))
        variance = finite(arrays, "variance", (cells, cells))
        together = finite(arrays, "together", (count, count))
        require(_distinct(known), "known", "must not repeat a state")
        require(_distinct(conditions), "conditions", "must not repeat a condition")
        require(bool(np.isin(together, (0, 1)).all()), "together", "must be 0 or 1")
        require(bool((variance >= 0).all()), "variance", "must be >= 0")
        largest = bool((np.abs(log_slowdown) <= _LARGEST_LOG).all())
        require(largest, "log_slowdown", "must be the logarithm of a slowdown")
        return cls(known, conditions, together != 0, log_slowdown, variance)

    def _looked_up(
        self, table: FloatArray, states: FloatArray, own: IntArray, other: IntArray
    ) -> FloatArray:
        cell, condition = self._places(states)
        answered = (condition[own] >= 0) & (condition[other] >= 0)
        answered &= self.together[condition[own], condition[other]]
        return np.where(answered, table[cell[own], cell[other]], np.nan)

    def _places(self, states: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the row of each state in the tables, and its condition; -1 where none."""
        condition_of = _positions(self.conditions)
        state_of = _positions(self.known)
        condition = [condition_of.get(tuple(state[1:]), -1) for state in states.tolist()]
        average = (len(self.known) + k for k in condition)
        cell = [
            state_of.get(tuple(state), unknown)
            for state, unknown in zip(states.tolist(), average, strict=True)
        ]
        return np.array(cell, dtype=np.int64), np.array(condition, dtype=np.int64)


def _positions(rows: FloatArray) -> Mapping[tuple[float, ...], int]:
    return {tuple(row): k for k, row in enumerate(rows.tolist())}


def _distinct(rows: FloatArray) -> bool:
    return len(_positions(rows)) == len(rows)
