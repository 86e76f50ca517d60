"""A Gaussian process on pairs of states, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, NamedTuple, Self

import numpy as np

from dovetail.predictors.analytic import PCIE_3_X16_BYTES_S, Demand, States, contended
from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.forms.kernels import FEATURES as LAW_FEATURES
from dovetail.predictors.forms.kernels import described, law_of_states
from dovetail.predictors.kernels import PROFILE, RANGES, Law, ranges, roofline
from dovetail.predictors.predictor import UNCAPPED, FloatArray, IntArray

FEATURES: Final = (
    *PROFILE,
    "log_throughput",
    "pcie_rx_bytes_s",
    "log_alone",
    "share",
    "log_batch",
    "family",
    "workload",
)
"""The features of a state, in order; all but the share may be unknown (NaN)."""

(THROUGHPUT, PCIE, ALONE, SHARE, BATCH, FAMILY, WORKLOAD) = range(len(PROFILE), len(FEATURES))
ACTIVE, UTIL, DRAM, MEM_UTIL, OCCUPANCY, LAUNCHES, KERNEL = (
    FEATURES.index(name)
    for name in (
        *("sm_active", "gpu_util", "dram_active", "mem_util"),
        *("sm_occupancy", "kernels_s", "kernel_mean_s"),
    )
)
DESCRIBED: Final = (ACTIVE, UTIL, DRAM, MEM_UTIL, OCCUPANCY, THROUGHPUT)
"""The columns that compare two workloads by profile."""

INSTEAD: Final = ((ACTIVE, UTIL), (DRAM, MEM_UTIL))
"""Columns of which one is compared: the one known for more states, the first in a tie."""

_OF_LAW: Final = [FEATURES.index(name) for name in LAW_FEATURES]

KERNELS: Final = 5
"""The kernels 1, f, b, w, p: constant, family, batch size within a family, workload, profile."""

TERMS: Final = (
    *((0, b) for b in range(KERNELS)),
    *((a, 0) for a in range(1, KERNELS)),
    *((a, a) for a in range(1, KERNELS)),
    *((1, 2), (2, 1), (1, 4), (4, 1), (2, 3), (3, 2), (3, 4), (4, 3)),
)
"""The products of kernels, of the own state and of the co-runner, that have a weight."""

_PROFILES: Final = 2.0
_SHARES: Final = 0.3
_SHARED: Final = 0.3
"""Length scales in standard deviations and fractions of the SMs; the common part."""

SLOPE_VARIANCE: Final = 0.25
"""Prior variance of the slope of the contention model around 1."""

_FLOOR: Final = 0.1
"""The least excess of a slowdown, as a part of the shift."""

_BLOCK: Final = 65_536
_DENSE: Final = 0.2
"""Filled fraction of a grid of states from which it is computed as one matrix product."""

_LARGEST: Final = 1e15
_LARGEST_LOG: Final = float(np.log(_LARGEST))
"""Slowdowns are at most 1e15 (formats)."""

_LOW_RANK: Final = ("stack", "named", "completed")
_NAMES: Final = (
    *("mean", "limits", "weights", "slope", "noise", "exponent"),
    *("shift", "batches", "law", "scale", "trained", "dual"),
    *_LOW_RANK,
)
_SHAPES: Final[dict[str, tuple[int | None, ...]]] = {
    "mean": (1,),
    "limits": (2,),
    "weights": (KERNELS, KERNELS),
    "slope": (1,),
    "noise": (1,),
    "exponent": (1,),
    "shift": (1,),
    "batches": (1,),
    "law": (len(RANGES),),
    "scale": (2, len(DESCRIBED)),
}


@dataclass(frozen=True)
class Hierarchy:
    """Mean and standard error of a Gaussian process on the logarithm of the slowdown.

    A slowdown is that of the job alone at its share, from its solo curve, times what the co-runner
    costs. The latter, as the logarithm of its excess over 1 plus ``shift`` (``warped``), is that of
    the ``contention`` model times ``slope`` (nothing if the metrics are unknown), plus a process
    with the covariance::

        s(own, own') s(other, other') sum over a, b of weight_ab a(own, own') b(other, other')

    over the kernels 1, f, b, w and p of ``kernels``, where s compares shares. A product of kernels
    that know workloads by name describes measured pairs only. So if both states are known by name,
    the value is ``(1 - stack)`` times that of the process plus ``stack`` times that of effects and
    low-rank factors (``estimators._factors``). The mean for a row is
    ``sum_ab weight_ab a(own, T) D b(other, T)'``, where T are the trained states and D gathers the
    dual of each trained row by its two states. An unknown feature makes a state dissimilar to all
    others in that feature only, so the answer moves from the prior over family and workload to the
    measured pair as more is known.

    Attributes
    ----------
    mean, slope, noise, exponent : ndarray of float, shape (1,)
        Mean of the process; the weight of the contention model; the variance of the logarithm of a
        single measurement; and the exponent of a solo curve of which nothing is known:
        ``alone = share ** -exponent``.
    shift, batches : ndarray of float, shape (1,)
        See ``warped``; and the length scale of the batch size, in doublings.
    law : ndarray of float, shape (4,)
        The numbers of ``predictors.kernels.Law``, in its order.
    limits : ndarray of float, shape (2,)
        Lowest and highest difference of a measurement from the contention model, warped; that of
        no prediction is outside.
    weights : ndarray of float, shape (5, 5)
        ``weight_ab``; rows are of the own state, columns of the co-runner.
    scale : ndarray of float, shape (2, 6)
        Center and scale of the columns ``DESCRIBED``; a scale of 0 leaves a column out.
    trained : ndarray of float, shape (T, 18)
        Measured states, as in ``FEATURES``.
    dual : ndarray of float, shape (T, T)
        D.
    stack : ndarray of float, shape (1,)
        The weight of the effects and factors, in [0, 1].
    named : ndarray of float, shape (K, 2)
        Their states: the code of the workload, and its share.
    completed : ndarray of float, shape (K, K)
        Their prediction for each pair of states, the warped logarithm of the slowdown over that of
        the job alone; NaN for measured pairs, which the process predicts better.
    """

    kind: ClassVar[str] = "hierarchy"
    partial: ClassVar[bool] = True

    mean: FloatArray
    limits: FloatArray
    weights: FloatArray
    slope: FloatArray
    noise: FloatArray
    exponent: FloatArray
    shift: FloatArray
    batches: FloatArray
    law: FloatArray
    scale: FloatArray
    trained: FloatArray
    dual: FloatArray
    stack: FloatArray = field(default_factory=lambda: np.zeros(1))
    named: FloatArray = field(default_factory=lambda: np.empty((0, 2)))
    completed: FloatArray = field(default_factory=lambda: np.empty((0, 0)))

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other; see ``Form.predict``."""
        alone = log_alone(states, self.exponent[0])
        place = self.places(states)
        found = self.process(states, own, other)
        for rows in _blocks(len(own)):
            together = self._stacked(found[rows], place, own[rows], other[rows])
            found[rows] = unwarped(together, self.shift[0]) + alone[own[rows]]
        return np.exp(np.clip(found, -_LARGEST_LOG, _LARGEST_LOG))

    def process(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the mean of the process, ``warped``; shapes are those of ``predict``."""
        alike = self.alike(states)
        left = np.einsum("ab,ast,tu->sbu", self.weights, alike, self.dual, optimize=True)
        right = np.moveaxis(alike, 0, 1)
        wide = KERNELS * len(self.trained)
        left, right = left.reshape(-1, wide), right.reshape(-1, wide)
        _, share = np.unique(states[:, SHARE], return_inverse=True)
        found = np.empty(len(own))
        for rows in _blocks(len(own)):
            said = self.contention(states, own[rows], other[rows])
            left_over = _products(left, right, own[rows], other[rows], share) + self.mean[0]
            left_over += (self.slope[0] - 1) * said
            found[rows] = said + np.clip(left_over, *self.limits)
        return found

    def alike(self, states: FloatArray) -> FloatArray:
        """Return ``kernels`` between states and the trained ones."""
        return kernels(states, self.trained, self.scale, self.batches[0])

    def contention(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the mean function, which is 0 without contention."""
        said = contention(states, own, other, ContentionParameters(self.law, self.exponent[0]))
        return warped(said, self.shift[0]) - warped(np.zeros(1), self.shift[0])

    def places(self, states: FloatArray) -> IntArray:
        """Return the position of each state in ``named``, or -1 if it is not known by name."""
        code = np.where(np.isnan(states[:, WORKLOAD]), -1.0, states[:, WORKLOAD])
        alike = (code[:, np.newaxis] == self.named[:, 0]) & (states[:, [SHARE]] == self.named[:, 1])
        return np.where(alike.any(axis=1), alike.argmax(axis=1) if len(self.named) else 0, -1)

    def without_low_rank(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return ``completed`` after these pairs were measured as well."""
        place = self.places(states)
        known = (place[own] >= 0) & (place[other] >= 0)
        left = self.completed.copy()
        left[place[own[known]], place[other[known]]] = np.nan
        return left

    def _stacked(
        self, process: FloatArray, place: IntArray, own: IntArray, other: IntArray
    ) -> FloatArray:
        """Return the values of the process and of the factors, stacked."""
        if not self.stack[0] or not len(self.named):
            return process
        mine, theirs = place[own], place[other]
        factors = np.where((mine < 0) | (theirs < 0), np.nan, self.completed[mine, theirs])
        mixed = (1 - self.stack[0]) * process + self.stack[0] * factors
        return np.where(np.isnan(factors), process, mixed)

    def standard_error(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the standard error of the logarithm of a single new measurement.

        The variance of each side is the part of its prior that the trained states do not explain,
        as if the other side were known; for their interaction, the part that neither explains.
        Shapes are those of ``predict``.
        """
        mine, theirs = self._left(states)
        one, many = self.weights[0, 0], self.weights[1:, 1:].sum()
        variance = (self.weights[1:, 0].sum() + one) * mine[own]
        variance += self.weights[0, 1:].sum() * theirs[other]
        variance += many * (1 - (1 - mine[own]) * (1 - theirs[other]))
        if self.shift[0] != 1:
            error = np.sqrt(variance)
            variance = spread(self.process(states, own, other), error, self.shift[0]) ** 2
        unknown = np.isnan(states[:, ALONE]) * np.log(states[:, SHARE])
        return np.asarray(np.sqrt(variance + self.noise[0] + (_CURVE * unknown[own]) ** 2))

    def arrays(self) -> Arrays:
        """Return the attributes by name, without factors of weight 0."""
        left_out = () if self.stack[0] else _LOW_RANK
        return {name: getattr(self, name) for name in _NAMES if name not in left_out}

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        rule = (
            f"must be {len(FEATURES)}, got {features}: a model of an earlier version is fitted anew"
        )
        require(features == len(FEATURES), "features", rule)
        require("trained" in arrays, "trained", "is required")
        trained = np.asarray(arrays["trained"], dtype=np.float64)
        fits = trained.ndim == 2 and trained.shape[0] > 0 and trained.shape[1] == features
        require(fits, "trained", "must be states")
        require(not np.isinf(trained).any(), "trained", "must not be infinite")
        share = trained[:, SHARE]
        require(bool(((share > 0) & (share <= 1)).all()), "trained", "shares must be in (0, 1]")
        read = {name: finite(arrays, name, shape) for name, shape in _SHAPES.items()}
        dual = finite(arrays, "dual", (len(trained), len(trained)))
        form = cls(trained=trained, dual=dual, **read, **_low_rank(arrays))
        for name in ("weights", "noise", "scale"):
            values = getattr(form, name)[1 if name == "scale" else 0 :]
            require(bool((values >= 0).all()), name, "must be >= 0")
        for name in _NAMES:
            largest = bool((np.abs(np.nan_to_num(getattr(form, name))) <= _LARGEST).all())
            require(largest, name, f"must be within {_LARGEST:g}")
        require(bool(0 < form.shift[0] <= 1), "shift", "must be > 0 and <= 1")
        require(bool(form.batches[0] > 0), "batches", "must be > 0")
        for number, (name, (least, most)) in zip(form.law.tolist(), RANGES.items(), strict=True):
            rule = f"{name} must be from {least:g} to {most:g}"
            require(least <= number <= most, "law", rule)
        require(bool(0 <= form.stack[0] <= 1), "stack", "must be from 0 to 1")
        return form

    def _left(self, states: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the unexplained part of each state's prior variance, as own and as other."""
        alike = self.alike(states)
        parts = []
        for weight, inverse in zip(*self._sides, strict=True):
            kernel = np.tensordot(weight, alike, 1)
            explained = np.einsum("st,tu,su->s", kernel, inverse, kernel, optimize=True)
            parts.append(np.clip(1 - explained, 0.0, 1.0))
        return parts[0], parts[1]

    @cached_property
    def _sides(self) -> tuple[list[FloatArray], list[FloatArray]]:
        """The weights of the kernels on either side, with sum 1, and inverse covariances.

        A side's kernels are those of its own effects, and its part in the joint effects.
        """
        alike = self.alike(self.trained)
        noise = self.noise[0] + self.weights[1:, 1:].sum()
        weights, inverses = [], []
        for axis, effects in ((1, self.weights[:, 0]), (0, self.weights[0])):
            weight = effects.copy()
            weight[1:] += self.weights[1:, 1:].sum(axis=axis)
            total = max(float(weight.sum()), 1e-12)
            rows = np.maximum((self.dual != 0).sum(axis=axis), 1e-3)
            covariance = np.tensordot(weight / total, alike, 1)
            covariance[np.diag_indices_from(covariance)] += noise / total / rows + 1e-9
            weights.append(weight / total)
            inverses.append(np.linalg.inv(covariance))
        return weights, inverses


def _low_rank(arrays: Arrays) -> dict[str, FloatArray]:
    """Read effects and factors, which files of the first format lack."""
    if not set(_LOW_RANK) & set(arrays):
        return {}
    stack = finite(arrays, "stack", (1,))
    named = finite(arrays, "named", (None, 2))
    require("completed" in arrays, "completed", "is required")
    completed = np.asarray(arrays["completed"], dtype=np.float64)
    fits = completed.shape == (len(named), len(named)) and not np.isinf(completed).any()
    require(fits, "completed", "must be the pairs of named")
    return {"stack": stack, "named": named, "completed": completed}


_CURVE: Final = 0.5
"""Standard deviation of the exponent of an unknown solo curve."""


def kernels(first: FloatArray, second: FloatArray, scale: FloatArray, batches: float) -> FloatArray:
    """Return the kernels 1, f, b, w and p between states, each times that of their shares.

    f is 1 within a family; b falls with the distance of the batch sizes within a family; w is 1
    for the same workload; p falls with the distance of the profiles, and is w if neither profile
    is known.

    Parameters
    ----------
    first, second : ndarray of float, shape (n, 18) and (m, 18)
        States.
    scale : ndarray of float, shape (2, 6)
    batches : float
        See ``Hierarchy``.

    Returns
    -------
    ndarray of float, shape (5, n, m)
    """
    share = _near(first[:, [SHARE]], second[:, [SHARE]], _SHARES)
    family = first[:, FAMILY, np.newaxis] == second[:, FAMILY]
    workload = first[:, WORKLOAD, np.newaxis] == second[:, WORKLOAD]
    sizes = [np.nan_to_num(states[:, [BATCH]]) for states in (first, second)]
    used = scale[1] > 0
    one, other = (
        (states[:, DESCRIBED][:, used] - scale[0, used]) / scale[1, used]
        for states in (first, second)
    )
    profiled = [~np.isnan(states).any(axis=1) & used.any() for states in (one, other)]
    both = profiled[0][:, np.newaxis] & profiled[1]
    neither = ~profiled[0][:, np.newaxis] & ~profiled[1]
    near = _near(np.nan_to_num(one), np.nan_to_num(other), _PROFILES)
    profile = np.where(both, near, neither & workload)
    found = np.stack(
        [
            np.ones(share.shape),
            family,
            family * _near(sizes[0], sizes[1], batches),
            workload,
            profile,
        ]
    )
    return np.asarray(found * (_SHARED + (1 - _SHARED) * share))


def log_alone(states: FloatArray, exponent: float) -> FloatArray:
    """Return the logarithm of the slowdown of each state alone, by its solo curve.

    Without a curve it is a roofline if the state's activity is known, and ``share ** -exponent``
    otherwise.
    """
    found, share = states[:, ALONE].copy(), states[:, SHARE]
    left = np.isnan(found)
    found[left] = -exponent * np.log(share[left])
    lined = np.flatnonzero(left & described(states[:, _OF_LAW]))
    if len(lined):
        demand = ranges(states[lined, : len(PROFILE)]).likely
        found[lined] = np.log(roofline(demand, _caps(share[lined])))
    return found


class ContentionParameters(NamedTuple):
    """The numbers of the contention model.

    Attributes
    ----------
    law : ndarray of float
        The numbers of the law of MPS.
    exponent : float
        See ``Hierarchy``.
    """

    law: FloatArray
    exponent: float


def contention(
    states: FloatArray, own: IntArray, other: IntArray, numbers: ContentionParameters
) -> FloatArray:
    """Return the logarithm of what the co-runner costs the job alone at its share; 0 if unknown.

    It is that of the law of MPS (``predictors.kernels``) for jobs with caps, and for those without
    if the kernels of one of them are known; otherwise that of the analytic model.
    """
    queued = np.asarray(~np.isnan(states[:, [LAUNCHES, KERNEL]]).all(axis=1))
    capped = states[:, SHARE] < 1
    by_law = np.asarray(queued[own] | queued[other] | (capped[own] & capped[other]))
    found = np.zeros(len(own))
    rows = np.flatnonzero(by_law)
    if len(rows):
        law = Law(**dict(zip(RANGES, numbers.law.tolist(), strict=True)))
        slowdown = law_of_states(law, states[:, _OF_LAW], own[rows], other[rows])
        alone = log_alone(states, numbers.exponent)[own[rows]]
        found[rows] = np.nan_to_num(np.log(slowdown) - alone)
    rows = np.flatnonzero(~by_law)
    if len(rows):
        found[rows] = _analytic(states, own[rows], other[rows])
    return found


def _analytic(states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
    active = np.where(np.isnan(states[:, ACTIVE]), states[:, UTIL], states[:, ACTIVE])
    dram = np.where(np.isnan(states[:, DRAM]), states[:, MEM_UTIL], states[:, DRAM])
    if np.isnan(active + dram).all():
        return np.zeros(len(own))
    demand = Demand.of(active, dram, np.nan_to_num(states[:, PCIE]), PCIE_3_X16_BYTES_S)
    found = contended(States(demand, np.ones(len(states)), _caps(states[:, SHARE])), own, other)
    return np.log(np.maximum(np.nan_to_num(found, nan=1.0), 1.0))


def _caps(share: FloatArray) -> IntArray:
    return np.where(share == 1.0, UNCAPPED, np.rint(100 * share)).astype(np.int64)


def warped(logarithm: FloatArray, shift: float) -> FloatArray:
    """Return the logarithm of the excess of a slowdown plus the shift.

    What a workload suffers is a number of its own (the kernels that it launches) times a number of
    its co-runner (how long each waits for one of its kernels): with a small shift, this product is
    a sum. With a shift of 1, the value is the logarithm of the slowdown.
    """
    if shift == 1:
        return logarithm
    return np.asarray(np.log(np.maximum(np.expm1(logarithm), (_FLOOR - 1) * shift) + shift))


def unwarped(value: FloatArray, shift: float) -> FloatArray:
    """Return the logarithm of a slowdown, see ``warped``."""
    return value if shift == 1 else np.asarray(np.log(np.exp(value) + 1 - shift))


def spread(value: FloatArray, error: FloatArray, shift: float) -> FloatArray:
    """Return the standard error of ``unwarped``: upwards, where it is larger than downwards."""
    return unwarped(value + error, shift) - unwarped(value, shift)


def steepness(value: FloatArray, shift: float) -> FloatArray:
    """Return the derivative of ``unwarped``."""
    excess = np.exp(value)
    return np.asarray(excess / (excess + 1 - shift))


def _near(first: FloatArray, second: FloatArray, length: float) -> FloatArray:
    squared = (first**2).sum(axis=1)[:, np.newaxis] + (second**2).sum(axis=1)
    squared = squared - 2 * first @ second.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0) / length**2))


class _RowsOfShare(NamedTuple):
    rows: IntArray
    own: IntArray
    other: IntArray


def _products(
    left: FloatArray, right: FloatArray, own: IntArray, other: IntArray, share: IntArray
) -> FloatArray:
    """Return ``left[own] . right[other]`` row by row, as matrix products if these are faster."""
    found = np.empty(len(own))
    for group in _by_shares(own, other, share):
        firsts, first = np.unique(group.own, return_inverse=True)
        seconds, second = np.unique(group.other, return_inverse=True)
        if len(group.rows) >= _DENSE * len(firsts) * len(seconds):
            found[group.rows] = (left[firsts] @ right[seconds].T)[first, second]
        else:
            found[group.rows] = np.einsum("ij,ij->i", left[group.own], right[group.other])
    return found


def _by_shares(own: IntArray, other: IntArray, share: IntArray) -> Iterator[_RowsOfShare]:
    """Yield the rows of every two shares: tables of splits are then full grids."""
    code = share[own] * (share.max(initial=0) + 1) + share[other]
    for one in np.unique(code):
        rows = np.flatnonzero(code == one)
        yield _RowsOfShare(rows, own[rows], other[rows])


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))
