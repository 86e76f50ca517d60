"""A Gaussian process on pairs of states, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import FloatArray, IntArray

_BLOCK = 65_536
_CODES = 2
_NAMES = ("mean", "weights", "center", "scale", "trained", "dual")
_LARGEST = 1e15
_LEAST_SCALE = 1e-9
_LARGEST_LOG = float(np.log(_LARGEST))
"""Slowdowns are at most 1e15 (formats)."""


@dataclass(frozen=True)
class Kernel:
    """The mean of a Gaussian process whose covariance is made of kernels on the two states.

    Two states are alike by what describes them, ``f(s, t) = exp(-|s - t|^2 / 2)`` on scaled
    features, and by who they are, ``i(s, t)``: half for the same workload, half for the same
    family. The covariance of the logarithms of two slowdowns is::

        sum over a, b in (1, f, i) of weight_ab * a(own, own') * b(other, other')

    so the mean for a row is ``sum_ab weight_ab a(own, T) D b(other, T)'``, where T are the
    states of the training data and D gathers the dual of every training row by its two states.
    Everything on one state is computed once per state; a row costs one scalar product.

    Attributes
    ----------
    mean : ndarray of float, shape (1,)
        Mean of the logarithm of the slowdown.
    weights : ndarray of float, shape (3, 3)
        ``weight_ab``; rows and columns stand for 1, f and i.
    center, scale : ndarray of float, shape (described,)
        How features are scaled.
    trained : ndarray of float, shape (T, described + 2 * coded)
        States of the training data, scaled, with family and workload as their last columns
        if there are codes.
    dual : ndarray of float, shape (T, T)
        D.
    """

    kind: ClassVar[str] = "kernel"

    mean: FloatArray
    weights: FloatArray
    center: FloatArray
    scale: FloatArray
    trained: FloatArray
    dual: FloatArray

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state beside the other; see ``Form.predict``."""
        described, identity = self._alike(self._scaled(states))
        constant, by_described, by_identity = self._contracted(described, identity)
        left = np.hstack([by_described, by_identity])
        right = np.hstack([described, identity])
        result = np.empty(len(own))
        for rows in _blocks(len(own)):
            mine, theirs = own[rows], other[rows]
            product = np.einsum("ij,ij->i", left[mine], right[theirs])
            logarithm = self.mean[0] + constant[mine] + product
            result[rows] = np.exp(np.clip(logarithm, -_LARGEST_LOG, _LARGEST_LOG))
        return result

    def arrays(self) -> Arrays:
        """Return the attributes by name."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        center = finite(arrays, "center", (None,))
        described, columns = len(center), features - len(center)
        require(columns in (0, _CODES), "center", f"must describe {features} features")
        require("trained" in arrays, "trained", "is required")
        trained = np.asarray(arrays["trained"], dtype=np.float64)
        require(trained.ndim == 2 and trained.shape[1:] == (features,), "trained", "must be states")
        # Codes of training states may be unknown; nothing else may.
        require(bool(np.isfinite(trained[:, :described]).all()), "trained", "must be finite")
        form = cls(
            mean=finite(arrays, "mean", (1,)),
            weights=finite(arrays, "weights", (3, 3)),
            center=center,
            scale=finite(arrays, "scale", (described,)),
            trained=trained,
            dual=finite(arrays, "dual", (len(trained), len(trained))),
        )
        require(bool((form.scale >= _LEAST_SCALE).all()), "scale", f"must be >= {_LEAST_SCALE}")
        for name in _NAMES:
            largest = bool((np.abs(np.nan_to_num(getattr(form, name))) <= _LARGEST).all())
            require(largest, name, f"must be within {_LARGEST:g}")
        return form

    def _scaled(self, states: FloatArray) -> FloatArray:
        scaled = states.copy()
        described = len(self.center)
        scaled[:, :described] = (states[:, :described] - self.center) / self.scale
        return scaled

    def _alike(self, scaled: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return f and i of states beside the training states, each of shape (states, T)."""
        return alike(scaled, self.trained, len(self.center))

    def _contracted(
        self, described: FloatArray, identity: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what each own state gives to b = 1, f and i."""
        everywhere, by_f, by_i = self._duals(described, identity)
        one, f, i = self.weights.T
        constant = (one[0] * everywhere + one[1] * by_f + one[2] * by_i).sum(axis=1)
        of_f = f[0] * everywhere + f[1] * by_f + f[2] * by_i
        of_i = i[0] * everywhere + i[1] * by_f + i[2] * by_i
        return constant, of_f, of_i

    def _duals(
        self, described: FloatArray, identity: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self._total, described @ self.dual, identity @ self.dual

    @cached_property
    def _total(self) -> FloatArray:
        return np.asarray(self.dual.sum(axis=0, keepdims=True))


def alike(first: FloatArray, second: FloatArray, described: int) -> tuple[FloatArray, FloatArray]:
    """Return the kernels f and i between two lists of scaled states.

    Parameters
    ----------
    first, second : ndarray of float, shape (n, columns) and (m, columns)
        Scaled states; columns after the described ones are codes, NaN where unknown.
    described : int
        How many columns describe the state.

    Returns
    -------
    tuple of ndarray of float, each of shape (n, m)
        Alike by description, and by family and workload.
    """
    a, b = first[:, :described], second[:, :described]
    squared = (a**2).sum(axis=1)[:, np.newaxis] + (b**2).sum(axis=1) - 2 * a @ b.T
    by_features = np.exp(-0.5 * np.maximum(squared, 0.0))
    codes = range(described, first.shape[1])
    same = [first[:, c, np.newaxis] == second[np.newaxis, :, c] for c in codes]
    by_identity = np.mean(same, axis=0) if same else np.zeros_like(by_features)
    return by_features, by_identity


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))
