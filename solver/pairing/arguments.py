"""The checked arguments of ``match_pairs``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dovetail.instances.errors import ArgumentError
from dovetail.solver.pairing.dense import DensePairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LEAST_VALUE, _MOST_VALUE = 1e-250, 1e250
"""The range of the largest value in which it can be scaled and sums of values are finite."""

LARGEST_SIZE = 2**40
"""Maximum number of GPUs of one job: sums of prices times GPUs stay within 63 bits."""


class PairValues(ABC):
    """The values of all pairs of jobs, computed on demand.

    Attributes
    ----------
    shape : (int, int)
        Shape of the represented matrix, which ``numpy.asarray`` creates; NaN where two jobs may not
        share.
    """

    shape: tuple[int, int]

    @property
    @abstractmethod
    def largest(self) -> float:
        """An upper bound on the magnitude of all values."""

    @abstractmethod
    def by_kinds(self, jobs: Ints, scale: float) -> DensePairs | None:
        """Return the values among these jobs without a matrix, or None if one is small."""

    @abstractmethod
    def rounded(self, jobs: Ints, scale: float) -> tuple[NDArray[np.int32], Ints]:
        """Return the values among these jobs in units of 1 / scale, and how many each may join.

        They are rounded up; ``dense.FORBIDDEN`` where two jobs may not share.
        """

    @abstractmethod
    def __getitem__(self, pairs: tuple[Ints, Ints]) -> Floats:
        """Return the values of some pairs."""

    @abstractmethod
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Floats:
        """Return the matrix."""


@dataclass(frozen=True)
class PairingArguments:
    """The checked arguments of ``match_pairs``.

    Attributes
    ----------
    pair_value : (n, n) float, scipy.sparse csr array, or PairValues
        In a sparse array every pair is stored at most once, in order.
    single_value : (n,) float
        -inf if a job may not run alone.
    size : (n,) int
    required : (n,) bool
    gpus : int
        The limit; the sum of all sizes if there is none.
    """

    pair_value: Any
    single_value: Floats
    size: Ints
    required: Bools
    gpus: int

    def __len__(self) -> int:
        return len(self.single_value)

    @property
    def is_sparse(self) -> bool:
        """Whether the pairs are given as a sparse array."""
        return bool(sp.issparse(self.pair_value))

    @property
    def gpus_per_unit(self) -> int:
        """The greatest common divisor of all sizes."""
        return int(np.gcd.reduce(self.size)) or 1

    def entries(self) -> tuple[Ints, Ints, Floats]:
        """Return the stored pairs of a sparse problem, in order of rows and columns."""
        pairs = self.pair_value
        first = np.repeat(np.arange(len(self)), np.diff(pairs.indptr))
        return first, pairs.indices.astype(np.int64), pairs.data

    def value_of(self, first: Ints, second: Ints) -> Floats:
        """Return the given values of some pairs; NaN if a sparse array has none."""
        if not self.is_sparse:
            return np.asarray(self.pair_value[first, second], dtype=np.float64)
        rows, columns, value = self.entries()
        stored, asked = rows * len(self) + columns, first * len(self) + second
        at = np.searchsorted(stored, asked)
        return np.where(np.append(stored, -1)[at] == asked, np.append(value, np.nan)[at], np.nan)


def checked(
    pair_value: Any,  # noqa: ANN401 - dense or any kind of sparse array
    single_value: ArrayLike | None,
    gpus: float | None,
    size: ArrayLike | None,
    required: ArrayLike | None,
) -> PairingArguments:
    """Check the arguments and fill in the defaults.

    Raises
    ------
    ArgumentError
        If an argument breaks its rule.
    """
    pairs = _pair_values(pair_value)
    n = pairs.shape[0]
    sizes = whole_sizes(size, n)
    must = np.zeros(n, dtype=bool) if required is None else np.asarray(required)
    if must.shape != (n,) or must.dtype != np.bool_:
        raise ArgumentError(
            f"required must be a boolean array of shape ({n},), got {must.dtype} {must.shape}"
        )
    limit = int(sizes.sum())
    if gpus is not None:
        if not (0 <= gpus < math.inf and gpus == int(gpus)):
            raise ArgumentError(f"gpus must be a whole number >= 0 or None, got {gpus!r}")
        limit = min(limit, int(gpus))
    return PairingArguments(pairs, _single_values(single_value, n), sizes, must, limit)


def _pair_values(pair_value: Any) -> Any:  # noqa: ANN401
    pairs: Any = pair_value
    if sp.issparse(pair_value):
        pairs = sp.csr_array(pairs, dtype=np.float64, copy=True)
        pairs.sum_duplicates()
    elif not isinstance(pair_value, PairValues):
        pairs = np.ascontiguousarray(pairs)
        if pairs.dtype.kind not in "biuf":
            raise ArgumentError(f"pair_value must be numbers, got {pairs.dtype}")
        if pairs.dtype not in (np.float32, np.float64):
            pairs = pairs.astype(np.float64)
    if len(pairs.shape) != 2 or pairs.shape[0] != pairs.shape[1]:
        raise ArgumentError(f"pair_value must be a square matrix, got shape {pairs.shape}")
    return pairs


def _single_values(single_value: ArrayLike | None, n: int) -> Floats:
    if single_value is None:
        return np.full(n, -np.inf)
    single = np.asarray(single_value, dtype=np.float64)
    if single.shape != (n,):
        raise ArgumentError(f"single_value must have shape ({n},), got {single.shape}")
    if (single == np.inf).any():
        at = int(np.argmax(single == np.inf))
        raise ArgumentError(f"single_value must be less than inf, got inf at {at}")
    return np.where(np.isnan(single), -np.inf, single)


def whole_sizes(size: ArrayLike | None, n: int) -> Ints:
    """Return the GPUs that each of n jobs takes, 1 by default.

    Raises
    ------
    ArgumentError
        If one is not a whole number from 1 to ``LARGEST_SIZE``.
    """
    if size is None:
        return np.ones(n, dtype=np.int64)
    given = np.asarray(size)
    if given.shape != (n,):
        raise ArgumentError(f"size must have shape ({n},), got {given.shape}")
    wrong = ~((given >= 1) & (given <= LARGEST_SIZE))
    wrong[~wrong] = given[~wrong] % 1 != 0
    if wrong.any():
        at = int(np.argmax(wrong))
        rule = f"must be whole numbers from 1 to {LARGEST_SIZE}"
        raise ArgumentError(f"size {rule}, got {given[at]} at {at}")
    whole: Ints = given.astype(np.int64)
    return whole


def require_in_range(largest: float) -> None:
    """Check the largest magnitude of a value.

    Raises
    ------
    ArgumentError
        If it is neither 0 nor of a magnitude that can be scaled.
    """
    if largest and not _LEAST_VALUE <= largest <= _MOST_VALUE:
        rule = f"the largest value must be 0 or from {_LEAST_VALUE} to {_MOST_VALUE} in magnitude"
        raise ArgumentError(f"{rule}, got {largest}")
