"""A dense network as arrays, run with NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import InputError
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import FloatArray, IntArray

Reals = NDArray[np.floating[Any]]

REACH: Final = 1.0
"""How far outside its training range a feature is still followed, in widths of that range."""

BLOCK: Final = 1024
"""Rows that go through the network at a time.

Every block has this size, the last one is padded: matrix products of other sizes may round
differently, and a row's answer would then depend on its position in a table.
"""

_LARGEST: Final = 1e30
_NAMES: Final = ("low", "high", "floor")


class Layer(NamedTuple):
    """A dense layer: ``inputs @ weights + bias``; weights (in, out), bias (out,)."""

    weights: Reals
    bias: Reals


Layers = tuple[Layer, ...]


class Ranges(NamedTuple):
    """The smallest and the largest value of each feature in training, each of shape (columns,)."""

    low: FloatArray
    high: FloatArray

    def of(self, columns: slice) -> Ranges:
        """Return the ranges of some of the columns."""
        return Ranges(self.low[columns], self.high[columns])

    def scaled(self, values: FloatArray) -> FloatArray:
        """Return the values scaled so that the range is [0, 1], clipped at ``REACH``."""
        width = self.high - self.low
        within = np.clip(values, self.low - REACH * width, self.high + REACH * width)
        return np.asarray((within - self.low) / np.where(width > 0, width, np.inf))


@dataclass(frozen=True)
class Network:
    """Dense layers with ReLU between them and one linear output, the slowdown.

    Features are scaled to [0, 1] by their range in training. Values outside the range by more than
    its width are clipped, so a finite input gets a finite slowdown; a feature that was constant in
    training has no influence. It computes in the precision of its weights.

    Parameters
    ----------
    ranges : Ranges
        Ranges of the own and then the co-runner's features, shape (2 * features,) each.
    layers : tuple of Layer
        From the input to the output, at least one; the last has one output.
    floor : float
        The lowest slowdown in training; no prediction is below it.
    """

    kind: ClassVar[str] = "network"

    ranges: Ranges
    layers: Layers
    floor: float

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of each row; see ``Form.predict``.

        The first layer's output for a row is the sum of its outputs for the two states, which are
        computed once per state.
        """
        half = states.shape[1]
        near = self._first(states, slice(half)) + self.layers[0].bias
        far = self._first(states, slice(half, None))
        slowdown = np.empty(len(own))
        for rows in _blocks(len(own)):
            first = near[_filled(own[rows])] + far[_filled(other[rows])]
            slowdown[rows] = self._slowdown(first, 1)[: len(own[rows])]
        return slowdown

    def of_table(self, table: FloatArray) -> FloatArray:
        """Return the slowdown of each row of a table, shape (rows, 2 * features)."""
        scaled = self._typed(self.ranges.scaled(table))
        slowdown = np.empty(len(table))
        for rows in _blocks(len(table)):
            slowdown[rows] = self._slowdown(_filled(scaled[rows]), 0)[: len(scaled[rows])]
        return slowdown

    def hidden(self, table: FloatArray, depth: int) -> FloatArray:
        """Return the output of the first ``depth`` layers for a table, shape (rows, outputs)."""
        values: Reals = self.ranges.scaled(table)
        for weights, bias in self.layers[:depth]:
            values = _relu(values @ weights + bias)
        return values.astype(np.float64)

    def in_single_precision(self) -> Self:
        """Return the network with 32-bit weights: faster, and slightly less precise."""
        layers = tuple(Layer(*(part.astype(np.float32) for part in la)) for la in self.layers)
        return replace(self, layers=layers)

    def arrays(self) -> Arrays:
        """Return ranges, floor, and weights and bias of each layer by number."""
        found: dict[str, NDArray[np.generic]] = {
            "low": self.ranges.low,
            "high": self.ranges.high,
            "floor": np.array(self.floor),
        }
        for k, layer in enumerate(self.layers):
            found[f"weights_{k}"], found[f"bias_{k}"] = layer
        return found

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the network for states with this number of features.

        Raises
        ------
        InputError
            When an array is missing, unknown, of another shape or type, or not finite, or the
            weights are so large that a slowdown could overflow.
        """
        depth = _depth(arrays)
        found = {name: _reals(arrays, name) for name in _wanted(depth)}
        low, high = (
            _shaped(found, name, (2 * features,)).astype(np.float64) for name in ("low", "high")
        )
        if np.any(low > high):
            raise InputError("must be <= high", "low")
        widths = [2 * features, *(found[f"bias_{k}"].size for k in range(depth - 1)), 1]
        layers = tuple(
            Layer(_shaped(found, f"weights_{k}", ends), _shaped(found, f"bias_{k}", ends[1:]))
            for k, ends in enumerate(pairwise(widths))
        )
        _refuse_overflow(layers)
        return cls(Ranges(low, high), layers, float(_shaped(found, "floor", ())))

    def _first(self, states: FloatArray, columns: slice) -> Reals:
        """Return the output of the first layer's weights of one side for each state."""
        scaled = self._typed(self.ranges.of(columns).scaled(states))
        weights = self.layers[0].weights[columns]
        made = np.empty((len(states), weights.shape[1]), dtype=weights.dtype)
        for rows in _blocks(len(states)):
            made[rows] = (_filled(scaled[rows]) @ weights)[: len(scaled[rows])]
        return made

    def _typed(self, values: FloatArray) -> Reals:
        return values.astype(self.layers[0].weights.dtype)

    def _slowdown(self, values: Reals, depth: int) -> FloatArray:
        """Return slowdowns from the output of layer ``depth``, before its ReLU."""
        for k, (weights, bias) in enumerate(self.layers[depth:]):
            values = (_relu(values) if depth + k else values) @ weights + bias
        return np.maximum(values[:, 0].astype(np.float64), self.floor)


def _relu(values: Reals) -> Reals:
    """Return the values with negative ones replaced by 0."""
    return np.maximum(values, 0)


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK):
        yield slice(start, start + BLOCK)


def _filled(part: NDArray[Any]) -> NDArray[Any]:
    """Return the part padded with zeros to the size of a block."""
    if len(part) == BLOCK:
        return part
    filled = np.zeros((BLOCK, *part.shape[1:]), dtype=part.dtype)
    filled[: len(part)] = part
    return filled


def _depth(arrays: Arrays) -> int:
    """Return the number of layers; refuse unknown arrays."""
    depth = sum(name.startswith("weights_") for name in arrays)
    if depth == 0:
        raise InputError("this array is required", "weights_0")
    unknown = set(arrays) - set(_wanted(depth))
    if unknown:
        raise InputError("unknown array", min(unknown))
    return depth


def _wanted(depth: int) -> list[str]:
    return [*_NAMES, *(f"{part}_{k}" for k in range(depth) for part in ("weights", "bias"))]


def _reals(arrays: Arrays, name: str) -> Reals:
    if name not in arrays:
        raise InputError("this array is required", name)
    values = np.asarray(arrays[name])
    if values.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InputError(f"must be numbers of 32 or 64 bits, got {values.dtype}", name)
    # Not "> _LARGEST", which NaN passes.
    if not np.all(np.abs(values) <= _LARGEST):
        raise InputError(f"must be finite and at most {_LARGEST:g} in size", name)
    return cast(Reals, values)


def _shaped(arrays: dict[str, Reals], name: str, shape: tuple[int, ...]) -> Reals:
    values = arrays[name]
    if values.shape != shape or 0 in shape:
        raise InputError(f"must have shape {shape}, got {values.shape}", name)
    return values


def _refuse_overflow(layers: Layers) -> None:
    """Refuse layers whose output for scaled features could overflow."""
    dtype = layers[0].weights.dtype
    most = np.full(len(layers[0].weights), 1 + REACH)
    for k, (weights, bias) in enumerate(layers):
        if weights.dtype != dtype or bias.dtype != dtype:
            raise InputError(f"must be {dtype} as weights_0 is", f"weights_{k}, bias_{k}")
        most = most @ np.abs(weights.astype(np.float64)) + np.abs(bias)
        if not np.all(most <= _LARGEST):
            raise InputError("is so large that slowdowns could overflow", f"weights_{k}")
