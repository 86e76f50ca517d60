"""A Gaussian process on what describes the two workloads and on who they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.utils.validation import check_is_fitted

from dovetail.predictors.estimators._coded import CODES, CodedRegressor
from dovetail.predictors.estimators.registry import ModelSpec
from dovetail.predictors.forms.kernel import Kernel, alike
from dovetail.predictors.predictor import FloatArray, IntArray

_LENGTHS: Final = (1.0, 2.0, 3.0, 5.0, 8.0)
_IDENTITIES: Final = (0.03, 0.1, 0.25, 0.5, 1.0)
_NOISES: Final = (0.005, 0.02, 0.05, 0.15)


class _Choice(NamedTuple):
    """Positions in the lists above."""

    length: int
    identity: int
    noise: int


class KernelRegressor(CodedRegressor):
    """Gaussian process regression of the log slowdown, with effects of the workloads themselves.

    What two workloads do to each other is in part foretold by their profiles and in part
    their own. A model of profiles alone takes the one for the other: it bends until it fits
    the workloads of the training data, and misses new ones. Here the covariance has terms of
    the profiles and terms of the identity of workload and family (``forms.kernel``), as in a
    mixed model with random effects, so only what holds across workloads is laid to the
    profiles. For known workloads the identity terms complete the matrix of pairs.

    Length scale, weight of the identity and noise are those with the least error on left-out
    families (rows of a family on either side are left out together), computed for all families
    from one inverse: C. E. Rasmussen and C. K. I. Williams, *Gaussian Processes for Machine
    Learning*, MIT Press 2006, section 5.4.2, in its form for groups of rows.

    Parameters
    ----------
    coded : bool
        Whether the last two columns of each half are codes of family and workload.
    most_rows : int
        Rows that are fitted; of more, a random part.
    searched_rows : int
        Rows on which the three numbers are chosen.
    random_state : int
        Seed of both draws.
    """

    form_: Kernel

    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        coded: bool = False,
        most_rows: int = 4000,
        searched_rows: int = 600,
        random_state: int = 0,
    ) -> None:
        self.coded = coded
        self.most_rows = most_rows
        self.searched_rows = searched_rows
        self.random_state = random_state

    def fit(self, X: FloatArray, y: FloatArray) -> Self:  # noqa: N803
        """Choose the three numbers and solve for the dual of every row."""
        X, y = self._fitted_on(X, y, least=2)  # noqa: N806
        random = np.random.default_rng(self.random_state)
        problem = _Problem(*_some(X, y, self.most_rows, random), coded=self.coded)
        part = _Problem(*_some(X, y, self.searched_rows, random), coded=self.coded)
        self.form_ = problem.solved(_best(part))
        return self

    def predict(self, X: FloatArray) -> FloatArray:  # noqa: N803
        """Return the slowdown of each row."""
        X = self._asked(X)  # noqa: N806
        rows = np.arange(len(X))
        return self.form_.predict(_stacked(X), rows, rows + len(X))

    def to_form(self) -> Kernel:
        """Return what was fitted as arrays."""
        check_is_fitted(self)
        return self.form_


class _Problem:
    """Rows to be fitted, their distinct states, and the families that are left out in turn."""

    def __init__(self, X: FloatArray, y: FloatArray, coded: bool) -> None:  # noqa: N803
        stacked = _stacked(X)
        self._states, place = np.unique(stacked, axis=0, return_inverse=True, equal_nan=True)
        self._own, self._other = place[: len(X)], place[len(X) :]
        self._described = self._states.shape[1] - (CODES if coded else 0)
        profile = self._states[:, : self._described]
        self._center = profile.mean(axis=0)
        spread = profile.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        self._log = np.log(np.maximum(y, np.finfo(float).tiny))

    def error(self, choice: _Choice) -> float:
        """Return the mean absolute error of slowdowns whose family is left out.

        Infinite where no family can be: every row has the only one, or the only two.
        """
        covariance, _ = self._covariance(choice)
        inverse = np.linalg.inv(covariance)
        centred = self._log - self._log.mean()
        solved = inverse @ centred
        found = [
            np.abs(np.exp(self._log[group] - residual) - np.exp(self._log[group]))
            for group in self._groups()
            for residual in [np.linalg.solve(inverse[np.ix_(group, group)], solved[group])]
        ]
        return float(np.concatenate(found).mean()) if found else np.inf

    def solved(self, choice: _Choice) -> Kernel:
        """Return the process fitted to all rows."""
        covariance, scaled = self._covariance(choice)
        mean = self._log.mean()
        dual = cho_solve(cho_factor(covariance), self._log - mean)
        gathered = np.zeros((len(scaled), len(scaled)))
        np.add.at(gathered, (self._own, self._other), dual)
        return Kernel(
            mean=np.array([mean]),
            weights=_weights(choice),
            center=self._center,
            scale=self._spread * _LENGTHS[choice.length],
            trained=scaled,
            dual=gathered,
        )

    def _covariance(self, choice: _Choice) -> tuple[FloatArray, FloatArray]:
        scaled = self._states.copy()
        profile = scaled[:, : self._described] - self._center
        scaled[:, : self._described] = profile / (self._spread * _LENGTHS[choice.length])
        described, identity = alike(scaled, scaled, self._described)
        kernels = np.stack([np.ones_like(described), described, identity])
        total = np.zeros((len(self._own), len(self._own)))
        for of_own, of_other in zip(
            kernels, np.tensordot(_weights(choice), kernels, 1), strict=True
        ):
            total += _between(of_own, self._own) * _between(of_other, self._other)
        total[np.diag_indices_from(total)] += _NOISES[choice.noise]
        return total, scaled

    def _groups(self) -> Iterator[IntArray]:
        """Yield the rows that have one family, or one state where there are no codes."""
        coded = self._states.shape[1] > self._described
        family = self._states[:, self._described] if coded else np.arange(len(self._states))
        own, other = family[self._own], family[self._other]
        for one in np.unique(family)[:_MOST_GROUPS]:
            group = np.flatnonzero((own == one) | (other == one))
            if 0 < len(group) < len(own):
                yield group


_MOST_GROUPS = 40


def _best(problem: _Problem) -> _Choice:
    """Improve one number at a time until none helps."""
    best = _Choice(2, 2, 1)
    error = problem.error(best)
    tried = {best}
    while True:
        near = [choice for choice in _near(best) if choice not in tried]
        tried.update(near)
        found = min(((problem.error(choice), choice) for choice in near), default=(error, best))
        if not found[0] < error:
            return best
        error, best = found


def _near(choice: _Choice) -> Iterator[_Choice]:
    for name, values in (("length", _LENGTHS), ("identity", _IDENTITIES), ("noise", _NOISES)):
        for step in (-1, 1):
            moved = getattr(choice, name) + step
            if 0 <= moved < len(values):
                yield choice._replace(**{name: moved})


def _weights(choice: _Choice) -> FloatArray:
    """Return the weights of (1, f, i) x (1, f, i); the mean stands for 1 x 1."""
    identity = _IDENTITIES[choice.identity]
    crossed = identity / 2
    return np.array([[0.0, 1.0, identity], [1.0, 1.0, crossed], [identity, crossed, identity]])


def _between(kernel: FloatArray, ends: IntArray) -> FloatArray:
    return np.take(kernel[ends], ends, axis=1)


def _some(
    X: FloatArray,  # noqa: N803
    y: FloatArray,
    most: int,
    random: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    if len(X) <= most:
        return X, y
    kept = np.sort(random.choice(len(X), most, replace=False))
    return X[kept], y[kept]


def _stacked(X: FloatArray) -> FloatArray:  # noqa: N803
    """Return all own halves above all co-runners' halves."""
    return np.vstack(np.hsplit(X, 2))


def _build(seed: int) -> KernelRegressor:
    return KernelRegressor(coded=True, random_state=seed)


SPEC = ModelSpec(
    features=(
        "sm_active|gpu_util",
        "dram_active|mem_util",
        "sm_occupancy",
        "pcie_rx_bytes_s",
        "share",
        "family",
        "workload",
    ),
    build=_build,
    least=4,
)
