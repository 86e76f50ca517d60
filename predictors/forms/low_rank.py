"""A completed matrix of pairs, one cell for each ordered pair of known states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from dovetail.instances.errors import InputError
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
        known = _finite(arrays, "known", (None, features))
        conditions = _finite(arrays, "conditions", (None, features - 1))
        count = len(conditions)
        cells = len(known) + count
        log_slowdown = _finite(arrays, "log_slowdown", (cells, cells))
        variance = _finite(arrays, "variance", (cells, cells))
        together = _finite(arrays, "together", (count, count))
        _require(_distinct(known), "known", "must not repeat a state")
        _require(_distinct(conditions), "conditions", "must not repeat a condition")
        _require(bool(np.isin(together, (0, 1)).all()), "together", "must be 0 or 1")
        _require(bool((variance >= 0).all()), "variance", "must be >= 0")
        largest = bool((np.abs(log_slowdown) <= _LARGEST_LOG).all())
        _require(largest, "log_slowdown", "must be the logarithm of a slowdown")
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


def _finite(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> FloatArray:
    """Return the array as floats if it has the shape, None being any length but 0."""
    _require(name in arrays, name, "is required")
    found = np.asarray(arrays[name])
    _require(found.dtype.kind in "fiub", name, f"must hold numbers, got {found.dtype}")
    wanted = tuple("n" if length is None else length for length in shape)
    fits = found.ndim == len(shape) and all(
        have == want if want is not None else have > 0
        for have, want in zip(found.shape, shape, strict=True)
    )
    _require(fits, name, f"must have shape {wanted}, got {found.shape}")
    _require(bool(np.isfinite(found).all()), name, "must be finite")
    return found.astype(np.float64)


def _require(condition: bool, name: str, rule: str) -> None:
    if not condition:
        raise InputError(rule, name)
