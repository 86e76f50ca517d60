"""The fit for one GPU model: a form, its bound, and the range where it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.predictors.features import WORKLOAD, Features
from dovetail.predictors.fitted.evidence import Evidence
from dovetail.predictors.forms import Form
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import (
    CAPS,
    UNCAPPED,
    BoolArray,
    FloatArray,
    IntArray,
    Split,
)

_NOT_MEASURED = "measured pairs"


class Bound(Protocol):
    """A source of upper confidence bounds of predictions."""

    def upper(
        self,
        slowdown: FloatArray,
        standing: IntArray,
        confidence: float,
        workers: int = 1,
        error: FloatArray | None = None,
    ) -> FloatArray:
        """Return the bound of each slowdown, for jobs with this number of workers.

        ``standing`` says how much of each pair was measured, see ``standing.STANDINGS``; ``error``
        is the standard error of the logarithm of each, if the model has one. NaN if the confidence
        is higher than the data support.
        """

    def at_new_split(self, confidence: float) -> float:
        """Return the bound of a split that was not measured, as a multiple of the prediction.

        NaN if too few splits were measured.
        """

    def largest_confidence(self, standing: int, workers: int = 1) -> float:
        """Return the highest confidence that the data support; 0 without data."""

    def arrays(self) -> Arrays:
        """Return its whole content as arrays of numbers."""


@dataclass(frozen=True)
class FittedForm:
    """One fitted model.

    Parameters
    ----------
    model : str
        The name it was fitted under.
    features : Features
        The features of a state that it uses.
    form : Form
        The fitted model.
    """

    model: str
    features: Features
    form: Form

    @property
    def partial(self) -> bool:
        """Whether it answers for incomplete states and for shares that were not measured."""
        return getattr(self.form, "partial", False)

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return what is missing for any pair of the workload to be predicted."""
        lacks = () if self.partial else self.features.lacks(name, workload)
        return tuple(_NOT_MEASURED if feature == WORKLOAD else feature for feature in lacks)

    def complete(self, states: FloatArray) -> BoolArray:
        """Return which states, shape (states, features), it has an answer for."""
        if self.partial:
            return np.ones(len(states), dtype=np.bool_)
        return self.features.complete(states)


@dataclass(frozen=True)
class ModelFit:
    """The fit for one GPU model.

    Parameters
    ----------
    member : FittedForm
        The model.
    measured : tuple of str
        The workloads that were measured in pairs.
    splits : tuple of Split
        The pairs of caps at which pairs were measured; see ``answered``.
    limits : tuple of float
        The lowest and the highest measured slowdown; no prediction lies outside, except from a
        form that is ``partial``, which instead keeps the ratio to the slowdown of the job alone
        within the measured range.
    bound : Bound, optional
        The source of upper bounds; without it there are none.
    power : FittedForm, optional
        A model of the power of the GPU with both jobs on it, in W.
    pairs : tuple of (int, int)
        The workloads that were measured together, as positions in ``measured``.
    families : tuple of str
        The family of each workload in ``measured``; by default each is its own family.
    evidence : Evidence, optional
        The training data: measured pairs are looked up, not predicted.

    Raises
    ------
    InputError
        When these do not fit together.
    """

    member: FittedForm
    measured: tuple[str, ...]
    splits: tuple[Split, ...]
    limits: tuple[float, float]
    bound: Bound | None = None
    power: FittedForm | None = None
    pairs: tuple[tuple[int, int], ...] = ()
    families: tuple[str, ...] = ()
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        lowest, highest = self.limits
        if len(self.families) not in (0, len(self.measured)):
            raise InputError("must have one for each of measured", "families")
        if any(not 0 <= end < len(self.measured) for pair in self.pairs for end in pair):
            raise InputError("must be positions in measured", "pairs")
        if not 0 < lowest <= highest < np.inf:
            raise InputError(f"must be 0 < lowest <= highest, got {lowest}, {highest}", "limits")

    def described(self, workloads: Mapping[str, Workload]) -> dict[str, Workload]:
        """Return the workloads, with missing figures filled in from the training data."""
        if self.evidence is None:
            return dict(workloads)
        return {name: self.evidence.described(name, one) for name, one in workloads.items()}

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return what is missing for any pair of the workload to be predicted."""
        return self.member.lacks(name, self.described({name: workload})[name])

    def novelty(self, workloads: Mapping[str, Workload]) -> IntArray:
        """Return how new each workload is, see ``standing.novelty``.

        A workload without a family is a family of its own.
        """
        known = dict(zip(self.measured, self.families or self.measured, strict=True))
        own = (w.family or known.get(name, name) for name, w in workloads.items())
        seen = set(known.values())
        pairs = zip(workloads, own, strict=True)
        each = (0 if name in known else 1 if family in seen else 2 for name, family in pairs)
        return np.fromiter(each, np.int64, len(workloads))

    def together(self, names: Sequence[str]) -> BoolArray:
        """Return which of these workloads were measured together, shape (names, names)."""
        known = {name: k for k, name in enumerate(self.measured)}
        place = np.array([known.get(name, len(known)) for name in names], dtype=np.int64)
        found = np.zeros((len(known) + 1,) * 2, dtype=np.bool_)
        for first, second in self.pairs:
            found[first, second] = found[second, first] = True
        return np.asarray(found[np.ix_(place, place)])

    @property
    def answered(self) -> BoolArray:
        """Which caps of the two jobs are answered, shape (101, 101), by cap.

        Those ``near`` the measured ones or, for a model that is ``partial``, all of a measured
        kind. MPS without caps is a queue of kernels, which caps separate: pairs of one kind say
        nothing about another.
        """
        return self.measured_kinds if self.member.partial else self.near

    def bounded(self, confidence: float) -> BoolArray:
        """Return which caps of the two jobs have bounds, shape (101, 101), by cap."""
        if not self.member.partial:
            return self.near
        if self.bound is None or np.isnan(self.bound.at_new_split(confidence)):
            return self.measured_splits
        return self.answered

    @cached_property
    def measured_splits(self) -> BoolArray:
        """Which caps of the two jobs were measured, shape (101, 101), by cap."""
        found = np.zeros((CAPS, CAPS), dtype=np.bool_)
        for first, second in self.splits:
            found[first, second] = found[second, first] = True
        return found

    @cached_property
    def measured_kinds(self) -> BoolArray:
        """Which caps of the two jobs are of a measured kind (no cap, one, two), (101, 101)."""
        found = np.zeros((CAPS, CAPS), dtype=np.bool_)
        for _, of_kind in self._kinds:
            found |= of_kind
        return found

    @cached_property
    def near(self) -> BoolArray:
        """Which caps of the two jobs are near measured ones, shape (101, 101), by cap.

        Those of a measured kind for which each cap and their sum lie within the measured range of
        this kind.
        """
        first, second = np.indices((CAPS, CAPS))
        inside = np.zeros((CAPS, CAPS), dtype=np.bool_)
        for seen, found in self._kinds:
            for grid, values in (
                (first, seen[:, 0]),
                (second, seen[:, 1]),
                (first + second, seen.sum(axis=1)),
            ):
                found = found & (grid >= values.min()) & (grid <= values.max())
            inside |= found
        return inside

    @property
    def _kinds(self) -> Iterator[tuple[IntArray, BoolArray]]:
        """The splits of each measured kind in either order, and all caps of that kind."""
        seen = np.array(self.splits, dtype=np.int64).reshape(-1, 2)
        seen = np.vstack([seen, seen[:, ::-1]])
        capped = np.indices((CAPS, CAPS)) != UNCAPPED
        for kind in np.unique(seen != UNCAPPED, axis=0):
            of_kind = ((seen != UNCAPPED) == kind).all(axis=1)
            yield seen[of_kind], (capped[0] == kind[0]) & (capped[1] == kind[1])
