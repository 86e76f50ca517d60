"""A predictor that was fitted on measurements: a form and a bound for each GPU model.

The libraries that fit the forms are not needed here: a fitted predictor is arrays of numbers, and
NumPy runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.about import About
from dovetail.predictors.fitted.evidence import MeasuredCells, codes
from dovetail.predictors.fitted.fits import Bound, FittedForm, ModelFit
from dovetail.predictors.fitted.standing import STANDINGS, standings
from dovetail.predictors.forms.hierarchy import Hierarchy
from dovetail.predictors.predictor import (
    CAPS,
    BoolArray,
    FloatArray,
    IntArray,
    Prediction,
    Split,
)

_BLOCK_ROWS = 2**20
"""Rows that a form gets at a time; not too few, as a form first works on states."""


class SplitSlowdowns(NamedTuple):
    """Slowdowns of every two workloads, in the shape for ``dovetail.solver.best_splits``.

    Attributes
    ----------
    slowdown : ndarray of float32, shape (n, n, splits)
        ``slowdown[a, b, p]`` of workload a with b at split p; NaN if there is no answer.
    upper : ndarray of float32 of this shape, or None
        Upper confidence bounds; None from a fit that has none.
    """

    slowdown: NDArray[np.float32]
    upper: NDArray[np.float32] | None


@dataclass(frozen=True)
class TrainedPredictor:
    """A predictor fitted on measurements, one fit for each GPU model.

    Parameters
    ----------
    fits : mapping of str to ModelFit
        The fits by GPU model.
    confidence : float
        The confidence of ``upper``, in (0, 1).
    about : About, optional
        Its training data and its errors.
    workers : mapping of str to int
        The GPUs that jobs of a workload take, if more than one: the rate of a gang is set by the
        worst of its co-runners, so its bound is higher.
    mode : {"mps", "time_sliced"}
        The sharing mode of all its measurements; it has no answer for another.
    measured_only : bool
        Answer only for workloads that were measured together, and at measured splits.

    Raises
    ------
    InputError
        When there is no fit, or the confidence is out of range.
    """

    fits: Mapping[str, ModelFit]
    confidence: float = 0.9
    about: About = field(default_factory=About)
    workers: Mapping[str, int] = field(default_factory=dict)
    mode: SharingMode = "mps"
    measured_only: bool = False

    def __post_init__(self) -> None:
        if not self.fits:
            raise InputError("must have a fit for one GPU model or more", "fits")
        if not 0 < self.confidence < 1:
            raise InputError(f"must be > 0 and < 1, got {self.confidence}", "confidence")

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The GPU models that it was fitted for."""
        return tuple(self.fits)

    @property
    def bounded(self) -> bool:
        """Whether any fit has upper bounds."""
        return any(fit.bound is not None for fit in self.fits.values())

    def standing_in(self, stand_ins: Mapping[str, str]) -> TrainedPredictor:
        """Return a predictor that uses the fit of one GPU model for another.

        Measurements on one model become predictions for the other, and bounds are dropped: on
        public data, bounds of 90 % held for 62 to 73 % of the jobs on another GPU model.

        Parameters
        ----------
        stand_ins : mapping of str to str
            From a GPU model that it was not fitted for to one that it was.

        Raises
        ------
        InputError
            When it was not fitted for one of the stand-ins.
        """
        taken = {
            model: replace(self.fit(fitted), bound=None, evidence=None)
            for model, fitted in stand_ins.items()
        }
        return replace(self, fits={**self.fits, **taken})

    def fit(self, gpu_model: str | None) -> ModelFit:
        """Return the fit for a GPU model; None means the only one.

        Raises
        ------
        InputError
            When there is no fit for it.
        """
        if gpu_model is None and len(self.fits) == 1:
            return next(iter(self.fits.values()))
        if gpu_model is None or gpu_model not in self.fits:
            got = "none" if gpu_model is None else repr(gpu_model)
            rule = f"must be one that the model was fitted for ({listed(self.fits)}), got {got}"
            raise InputError(rule, "gpu_model")
        return self.fits[gpu_model]

    def require_mode(self, mode: SharingMode) -> None:
        """Refuse another sharing mode than that of the measurements it was fitted on.

        Raises
        ------
        InputError
            When it was fitted on another mode.
        """
        if mode != self.mode:
            rule = f"the model was fitted on pairs measured under {self.mode}, not {mode}"
            raise InputError(rule, "mode")

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return what is missing to predict any pair of the workload with any fit.

        These are features, or ``measured pairs`` if only measurements of the workload with others
        would help.
        """
        return min((fit.lacks(name, workload) for fit in self.fits.values()), key=len)

    def supported(
        self, workloads: Mapping[str, Workload], gpu_model: str | None = None
    ) -> Mapping[str, float]:
        """Return the largest confidence of ``upper`` for each kind of job these workloads make.

        Parameters
        ----------
        workloads : mapping of str to Workload
            Workloads by name, any two of which may share a GPU.
        gpu_model : str, optional
            As in ``predict``.

        Returns
        -------
        mapping of str to float
            From the standing of a job's pair and its workers, in words; empty for a fit without
            bounds.
        """
        fit = self.fit(gpu_model)
        if fit.bound is None:
            return {}
        new = fit.novelty(workloads)
        met = standings(new[:, np.newaxis], np.unique([0, *new]))
        found = {}
        for name, kinds in zip(workloads, met, strict=True):
            workers = self.workers.get(name, 1)
            for kind in kinds.tolist():
                words = f"{STANDINGS[kind]} ({workers} worker{'s' * (workers > 1)})"
                found[words] = fit.bound.largest_confidence(kind, workers)
        if len(self._cells(fit, list(workloads)).code):
            found["measured pairs"] = 1.0
        return found

    def predict(
        self,
        workloads: Mapping[str, Workload],
        pairs: IntArray,
        shares: IntArray,
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> Prediction:
        """Predict every row; see ``Predictor.predict`` for the shapes.

        Measured rows have the measured slowdowns (NaN if the two failed to run together) and a
        bound of their noise, see ``repeats.repeats_of``. Other rows are NaN at caps outside of the
        measured range, or if their workloads lack a feature. ``upper`` is also NaN if the data do
        not support the confidence, see ``supported``.

        Raises
        ------
        InputError
            When there is no fit for the GPU model, or it was fitted on another mode.
        """
        self.require_mode(mode)
        fit = self.fit(gpu_model)
        workloads = fit.described(workloads)
        which, caps, ends = _states_of(pairs, shares, len(workloads))
        states = self._states(fit, workloads, which, caps)
        # Each unordered pair once: equal rows get equal numbers, independent of the other rows.
        keys = ends.min(axis=1) * len(which) + ends.max(axis=1)
        distinct, row = np.unique(keys, return_inverse=True)
        pair = np.stack(np.divmod(distinct, len(which)), axis=1) if len(keys) else ends
        flipped = ends[:, 0] > ends[:, 1]

        def of_rows(values: FloatArray) -> FloatArray:
            found = values[row]
            found[flipped] = found[flipped, ::-1]
            return found

        slowdown = np.stack([states.slowdown(pair[:, k], pair[:, 1 - k]) for k in (0, 1)], axis=1)
        sides = [(slowdown[:, k], pair[:, k], pair[:, 1 - k]) for k in (0, 1)]
        errors = [states.error(*ends) for _, *ends in sides]
        upper = None
        if fit.bound is not None:
            each = zip(sides, errors, strict=True)
            upper = of_rows(np.stack([states.upper(*side, error) for side, error in each], axis=1))
        power = states.power_w(pair[:, 0], pair[:, 1])
        found = Prediction(
            of_rows(slowdown),
            upper,
            None if power is None else power[row],
            of_rows(np.stack(errors, axis=1)) if fit.member.partial else None,
        )
        return self._with_measured(found, fit, list(workloads), pairs, shares)

    def predict_table(
        self,
        workloads: Mapping[str, Workload],
        splits: Sequence[Split],
        gpu_model: str | None = None,
        mode: SharingMode = "mps",
    ) -> SplitSlowdowns:
        """Predict every two workloads at every split, as arrays.

        In addition to the answer (4 or 8 bytes a cell) it needs memory for about a million rows.

        Parameters
        ----------
        workloads : mapping of str to Workload
            Workloads by name; a workload for which ``lacks`` finds something missing gets NaN.
        splits : sequence of Split
            The caps of the job and of its co-runner.
        gpu_model, mode : str, optional
            As in ``predict``.

        Raises
        ------
        InputError
            When there is no fit for the GPU model, or it was fitted on another mode.
        """
        self.require_mode(mode)
        fit, count = self.fit(gpu_model), len(workloads)
        workloads = fit.described(workloads)
        caps, at = np.unique(np.array(splits, dtype=np.int64), return_inverse=True)
        which = np.repeat(np.arange(count), len(caps))
        states = self._states(fit, workloads, which, np.tile(caps, count))
        own_at, other_at = at.reshape(-1, 2).T
        first = np.arange(count)[:, np.newaxis] * len(caps)
        mine, theirs = first + own_at, first + other_at
        shape = (count, count, len(splits))
        slowdown = np.full(shape, np.nan, dtype=np.float32)
        upper = None if fit.bound is None else np.full(shape, np.nan, dtype=np.float32)
        rows = max(1, _BLOCK_ROWS // max(1, theirs.size))
        for block in (slice(k, k + rows) for k in range(0, count, rows)):
            own, other = (a.ravel() for a in np.broadcast_arrays(mine[block, np.newaxis], theirs))
            found = states.slowdown(own, other)
            slowdown[block] = found.reshape(-1, *theirs.shape)
            if upper is not None:
                bound = states.upper(found, own, other, states.error(own, other))
                upper[block] = bound.reshape(-1, *theirs.shape)
        cells = self._cells(fit, list(workloads))
        pair = np.indices((count, count))
        for p, split in enumerate(splits if len(cells.code) else ()):
            at, which = cells.found(codes(pair[0], split[0], pair[1], split[1], count))
            slowdown[..., p].flat[at] = cells.slowdown[which]
            if upper is not None:
                upper[..., p].flat[at] = cells.upper[which]
        return SplitSlowdowns(slowdown, upper)

    def _cells(self, fit: ModelFit, names: Sequence[str]) -> MeasuredCells:
        """Return the measurements of every two workloads."""
        if fit.evidence is None:
            return MeasuredCells(np.empty(0, np.int64), np.empty(0), np.empty(0))
        return fit.evidence.cells(names, self.workers, self.confidence)

    def _with_measured(
        self,
        predicted: Prediction,
        fit: ModelFit,
        names: Sequence[str],
        pairs: IntArray,
        shares: IntArray,
    ) -> Prediction:
        """Return a prediction with measured rows replaced by their measurements."""
        cells = self._cells(fit, names)
        if not len(cells.code):
            return predicted
        slowdown, upper = predicted.slowdown, predicted.upper
        measured = np.zeros(len(pairs), dtype=np.bool_)
        for k in (0, 1):
            own, other = pairs[:, k], pairs[:, 1 - k]
            code = codes(own, shares[:, k], other, shares[:, 1 - k], len(names))
            rows, which = cells.found(code)
            slowdown[rows, k] = cells.slowdown[which]
            if upper is not None:
                upper[rows, k] = cells.upper[which]
            measured[rows] = True
        if self.measured_only:
            slowdown[~measured] = np.nan
        return predicted._replace(measured=measured)

    def _states(
        self, fit: ModelFit, workloads: Mapping[str, Workload], which: IntArray, caps: IntArray
    ) -> _WorkloadsAtCaps:
        names = list(workloads)
        workers = np.array([self.workers.get(name, 1) for name in names], dtype=np.int64)
        seen = {
            member.features: member.features.states(workloads, which, caps)
            for member in filter(None, [fit.member, fit.power])
        }
        together = fit.together(names) if self.measured_only else None
        ends = which, together
        new = fit.novelty(workloads)[which]
        return _WorkloadsAtCaps(fit, self.confidence, seen, new, workers[which], caps, *ends)


@dataclass(frozen=True)
class _WorkloadsAtCaps:
    """The features of workloads at caps, and the fit's predictions for two of them."""

    fit: ModelFit
    confidence: float
    seen: Mapping[Features, FloatArray]
    novelty: IntArray
    workers: IntArray
    caps: IntArray
    workload: IntArray
    together: BoolArray | None

    def slowdown(self, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of each row, block by block; NaN if there is no answer."""
        found = np.empty(len(own))
        for block in _blocks(len(own)):
            found[block] = self._answers(own[block], other[block])
        return found

    def error(self, own: IntArray, other: IntArray) -> FloatArray:
        """Return the standard errors of the logarithms of slowdowns; NaN from a model without."""
        member = self.fit.member
        found = np.full(len(own), np.nan)
        if not isinstance(member.form, Hierarchy):
            return found
        states = self.seen[member.features]
        for block in _blocks(len(own)):
            found[block] = member.form.standard_error(states, own[block], other[block])
        return found

    def upper(
        self, slowdown: FloatArray, own: IntArray, other: IntArray, error: FloatArray
    ) -> FloatArray:
        """Return the upper bounds of slowdowns, each for the size of its own gang."""
        bound = self.fit.bound
        found = np.full(len(own), np.nan)
        if bound is None:
            return found
        for block in _blocks(len(own)):
            rows = slowdown[block], own[block], other[block], error[block]
            found[block] = self._bounds(bound, *rows)
        return found

    def power_w(self, own: IntArray, other: IntArray) -> FloatArray | None:
        """Return the power of the GPU, the mean of both orders; None from a fit without power."""
        power = self.fit.power
        if power is None:
            return None
        found = np.empty(len(own))
        for block in _blocks(len(own)):
            a, b = own[block], other[block]
            rows = self._answerable(power, a, b)
            values = np.full(len(a), np.nan)
            both = self._of(power, a[rows], b[rows]) + self._of(power, b[rows], a[rows])
            values[rows] = both / 2
            values[~(values > 0)] = np.nan
            found[block] = values
        return found

    def _answers(self, own: IntArray, other: IntArray) -> FloatArray:
        member = self.fit.member
        found = np.full(len(own), np.nan)
        rows = np.flatnonzero(self._answerable(member, own, other))
        whole = len(rows) == len(own)
        mine, theirs = (own, other) if whole else (own[rows], other[rows])
        found[slice(None) if whole else rows] = self._of(member, mine, theirs)
        return found if member.partial else np.clip(found, *self.fit.limits)

    def _bounds(
        self,
        bound: Bound,
        slowdown: FloatArray,
        own: IntArray,
        other: IntArray,
        error: FloatArray,
    ) -> FloatArray:
        found = np.full(len(own), np.nan)
        known = ~np.isnan(slowdown)
        standing = standings(self.novelty[own], self.novelty[other])
        workers = self.workers[own]
        for size in self._gang_sizes:
            rows = known & (workers == size)
            if rows.any():
                value = bound.upper(
                    slowdown[rows], standing[rows], self.confidence, size, error[rows]
                )
                found[rows] = np.maximum(value, slowdown[rows])
        if self.fit.member.partial:
            new = ~self.fit.measured_splits[self.caps[own], self.caps[other]]
            wider = bound.at_new_split(self.confidence) * slowdown[new]
            found[new] = np.maximum(found[new], wider)
        return found

    @cached_property
    def _gang_sizes(self) -> list[int]:
        sizes: list[int] = np.unique(self.workers).tolist()
        return sizes

    def _answerable(self, member: FittedForm, own: IntArray, other: IntArray) -> BoolArray:
        complete = member.complete(self.seen[member.features])
        inside = self.fit.answered[self.caps[own], self.caps[other]]
        if self.together is not None:
            inside = self.fit.measured_splits[self.caps[own], self.caps[other]]
            inside &= self.together[self.workload[own], self.workload[other]]
        return np.asarray(complete[own] & complete[other] & inside)

    def _of(self, member: FittedForm, own: IntArray, other: IntArray) -> FloatArray:
        # Numbers from a file may be arbitrarily large; predictions beyond the limits are NaN or
        # clipped.
        with np.errstate(over="ignore", invalid="ignore"):
            return member.form.predict(self.seen[member.features], own, other)


def _states_of(
    pairs: IntArray, shares: IntArray, workloads: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the workload and the cap of each state, and the two states of each row."""
    codes = pairs * CAPS + shares
    occurs = np.zeros(workloads * CAPS, dtype=np.bool_)
    occurs[codes] = True
    which, caps = np.divmod(np.flatnonzero(occurs), CAPS)
    return which, caps, (np.cumsum(occurs) - 1)[codes]


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(k, min(k + _BLOCK_ROWS, rows)) for k in range(0, rows, _BLOCK_ROWS))
