"""The law of MPS on states of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.kernels import ACTIVITY, PROFILE, RANGES, Law, ranges, slowdowns
from dovetail.predictors.predictor import UNCAPPED, BoolArray, FloatArray, IntArray

FEATURES: Final = (*PROFILE, "log_alone", "share")
"""The features of a state: the profile, the logarithm of the slowdown alone, and the share."""

_ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True)
class Kernels:
    """The model of ``dovetail.predictors.kernels`` on the states of ``FEATURES``.

    Attributes
    ----------
    law : Law
        The numbers of the law.
    """

    kind: ClassVar[str] = "kernels"
    partial: ClassVar[bool] = True

    law: Law

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other; see ``Form.predict``.

        NaN if no activity of one of them is known.
        """
        return law_of_states(self.law, states, own, other)

    def arrays(self) -> Arrays:
        """Return the numbers of the law, each of shape (1,)."""
        return {name: np.array([getattr(self.law, name)]) for name in RANGES}

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        require(features == len(FEATURES), "features", f"must be {len(FEATURES)}, got {features}")
        numbers = {name: float(finite(arrays, name, (1,))[0]) for name in RANGES}
        for name, (least, most) in RANGES.items():
            require(least <= numbers[name] <= most, name, f"must be from {least:g} to {most:g}")
        return cls(Law(**numbers))


def law_of_states(law: Law, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
    """Return the slowdowns of own states with others by the law.

    Parameters
    ----------
    law : Law
        The numbers of the law.
    states : ndarray of float, shape (states, 13)
        As in ``FEATURES``.
    own, other : ndarray of int, shape (rows,)
        The two states of each row.

    Returns
    -------
    ndarray of float, shape (rows,)
        NaN if no activity of one of them is known, or their caps do not fit together.
    """
    profile, log_alone, share = states[:, : len(PROFILE)], states[:, -2], states[:, -1]
    demand = ranges(profile).likely
    caps = np.where(share == 1.0, UNCAPPED, np.rint(100 * share)).astype(np.int64)
    curve = np.exp(log_alone)
    found = np.empty(len(own))
    for start in range(0, len(own), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        pair = np.stack([own[rows], other[rows]], axis=1)
        both = slowdowns(law, demand.at(pair), caps[pair], curve[pair])
        found[rows] = np.where(described(states)[pair].all(axis=1), both[:, 0], np.nan)
    return found


def described(states: FloatArray) -> BoolArray:
    """Return which states, as in ``FEATURES``, have a metric of activity."""
    columns = [FEATURES.index(name) for name in ACTIVITY]
    return np.asarray(~np.isnan(states[:, columns]).all(axis=1))
