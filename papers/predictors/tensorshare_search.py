"""A search over the structures of TensorShare's network (section 3.2, "Model structure")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from dovetail.instances.errors import InputError
from dovetail.instances.plugins import require_package
from dovetail.papers.predictors.tensorshare import TABLE_4, TensorShareRegressor
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import optuna

MOST_LAYERS: Final = 19
MOST_PER_DEPTH: Final = 100
"""The paper considers networks of 1 to 19 layers, and at most 100 of each depth."""

_WIDTH_POWERS: Final = (4, 10)
_BATCH_POWERS: Final = (5, 8)
_LEARNING_RATES: Final = {"adam": (1e-4, 1e-2), "sgd": (1e-3, 1e-1)}
_ALPHAS: Final = (1e-7, 1e-2)

_MOST_WEIGHTS: Final = 1_000_000
"""The most weights between hidden layers, nearly ten times Table 4's; more take minutes to fit."""

_TABLE_4_TRIAL: Final = {
    "layers": len(TABLE_4),
    **{f"width_{k}": width.bit_length() - 1 for k, width in enumerate(TABLE_4)},
    "batch": 7,
    "solver": "adam",
    "learning_rate_adam": 0.001,
    "alpha": _ALPHAS[0],
}

_PARTS: Final = 3
_FEWEST_ROWS: Final = 2

Labels = NDArray[np.generic]


class StructureTrial(NamedTuple):
    """One tried structure.

    Attributes
    ----------
    hidden_layer_sizes, batch_size, learning_rate_init, solver, alpha
        As in ``TensorShareRegressor``.
    smape : float
        Its error on held-out families of workloads, as a fraction.
    """

    hidden_layer_sizes: tuple[int, ...]
    batch_size: int
    learning_rate_init: float
    solver: str
    alpha: float
    smape: float


class Search(NamedTuple):
    """The result of a search.

    Attributes
    ----------
    best : TensorShareRegressor
        The structure with the smallest error, not fitted; the paper's Table 4 if the time was too
        short to try any.
    trials : tuple of StructureTrial
        Every completely tried structure, in order.
    """

    best: TensorShareRegressor
    trials: tuple[StructureTrial, ...]


def search(
    X: FloatArray,  # noqa: N803
    y: FloatArray,
    families: Labels,
    *,
    seconds: float | None = None,
    trials: int | None = None,
    seed: int = 0,
    most_layers: int = MOST_LAYERS,
    base: TensorShareRegressor | None = None,
    pairs: IntArray | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Search:
    """Return the best structure found within a time or a number of trials.

    The paper's search (by AutoKeras) is Bayesian, over the number of layers and their settings. So
    is this one, by the tree-structured Parzen estimator of Optuna: 1 to 19 hidden layers, the
    outputs of each, batch, learning rate, optimiser and L2 penalty (instead of the paper's dropout
    and batch normalisation, which it finally turned off). Table 4 is tried first. A structure is
    judged by SMAPE, the paper's measure, but on held-out families of workloads: the families are
    split into three parts, and a structure is fitted without the pairs of each part. Every fit
    stops after 50 passes without improvement, as in the paper. Structures of more than a million
    weights are skipped.

    Bounded only by trials, it is deterministic. A trial that runs out of time is discarded.

    Parameters
    ----------
    X : ndarray of float, shape (rows, 2 * features)
        Own and co-runner's features.
    y : ndarray of float, shape (rows,)
        Slowdowns.
    families : ndarray, shape (rows, 2)
        The family of the own and of the co-runner's workload of each row.
    seconds : float, optional
        Time limit.
    trials : int, optional
        The most structures to request; by default 100 for each number of layers, as in the paper.
    seed : int
        Seed of the search, the parts and the fits.
    most_layers : int
        The most hidden layers.
    base : TensorShareRegressor, optional
        Settings that are not searched, such as ``max_iter``.
    pairs : ndarray of int, shape (rows,), optional
        As in ``TensorShareRegressor.fit``.
    progress : callable, optional
        Called after each trial with the number of requested structures and the lowest SMAPE,
        infinite if none was finished.

    Raises
    ------
    InputError
        When a bound is out of range, or there are too few families to split.
    UnsupportedError
        When Optuna is not installed.
    """
    require_package("optuna", "train", "searching for a structure")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _refuse_bounds(seconds, trials, most_layers)
    deadline = np.inf if seconds is None else monotonic() + seconds
    judge = _Judge(
        np.asarray(X, dtype=np.float64),
        np.asarray(y, dtype=np.float64),
        np.arange(len(y)) if pairs is None else pairs,
        tuple(_parts(families, seed)),
        lambda: monotonic() < deadline,
    )
    base = base or TensorShareRegressor(random_state=seed)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    if most_layers >= len(TABLE_4):
        study.enqueue_trial(_TABLE_4_TRIAL)
    tried: list[StructureTrial] = []
    for count in range(1, 1 + (trials or MOST_PER_DEPTH * most_layers)):
        asked = study.ask()
        structure = _suggested(asked, base, most_layers)
        smape = judge.smape(structure) if _wanted(structure, tried) else None
        if smape is None:
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(asked, smape)
            tried.append(_trial(structure, smape))
        if progress is not None:
            progress(count, min((trial.smape for trial in tried), default=np.inf))
        if not judge.going_on():
            break
    return Search(_best(base, tried), tuple(tried))


def _refuse_bounds(seconds: float | None, trials: int | None, most_layers: int) -> None:
    if seconds is not None and not 0 < seconds < np.inf:
        raise InputError(f"must be > 0 and finite, got {seconds}", "seconds")
    if trials is not None and trials < 1:
        raise InputError(f"must be >= 1, got {trials}", "trials")
    if not 1 <= most_layers <= MOST_LAYERS:
        raise InputError(f"must be between 1 and {MOST_LAYERS}, got {most_layers}", "most_layers")


class _FamilyFold(NamedTuple):
    train: BoolArray
    test: BoolArray


def _parts(families: Labels, seed: int) -> Iterator[_FamilyFold]:
    """Yield rows without the families of a part, and the rows with one of them."""
    names, code = np.unique(families, return_inverse=True)
    part = np.random.default_rng(seed).permutation(len(names)) % _PARTS
    of_row = part[code.reshape(families.shape)]
    found = [
        _FamilyFold(~test, test) for test in (np.any(of_row == k, axis=1) for k in range(_PARTS))
    ]
    usable = [fold for fold in found if fold.train.sum() >= _FEWEST_ROWS and fold.test.any()]
    if not usable:
        raise InputError("must have pairs without and pairs with some of the families", "families")
    yield from usable


class _Judge(NamedTuple):
    table: FloatArray
    slowdown: FloatArray
    pairs: IntArray
    parts: tuple[_FamilyFold, ...]
    going_on: Callable[[], bool]

    def smape(self, structure: TensorShareRegressor) -> float | None:
        """Return the error on held-out families, or None if the time runs out first."""
        errors = []
        for train, test in self.parts:
            fitted = clone(structure)
            rows = self.table[train], self.slowdown[train]
            fitted.fit_while(*rows, self.going_on, self.pairs[train])
            if not self.going_on():
                return None
            truth, found = self.slowdown[test], fitted.predict(self.table[test])
            errors.append(2 * np.abs(found - truth) / (found + truth))
        return float(np.concatenate(errors).mean())


def _suggested(
    asked: optuna.Trial, base: TensorShareRegressor, most_layers: int
) -> TensorShareRegressor:
    depth = asked.suggest_int("layers", 1, most_layers)
    solver = asked.suggest_categorical("solver", list(_LEARNING_RATES))
    rates = _LEARNING_RATES[solver]
    structure: TensorShareRegressor = clone(base).set_params(
        hidden_layer_sizes=tuple(
            2 ** asked.suggest_int(f"width_{k}", *_WIDTH_POWERS) for k in range(depth)
        ),
        batch_size=2 ** asked.suggest_int("batch", *_BATCH_POWERS),
        learning_rate_init=asked.suggest_float(f"learning_rate_{solver}", *rates, log=True),
        solver=solver,
        alpha=asked.suggest_float("alpha", *_ALPHAS, log=True),
    )
    return structure


def _wanted(structure: TensorShareRegressor, tried: Sequence[StructureTrial]) -> bool:
    """Return whether the structure is small enough, and its depth not yet tried often enough."""
    sizes = structure.hidden_layer_sizes
    same_depth = sum(len(trial.hidden_layer_sizes) == len(sizes) for trial in tried)
    return sum(a * b for a, b in pairwise(sizes)) <= _MOST_WEIGHTS and same_depth < MOST_PER_DEPTH


def _trial(structure: TensorShareRegressor, smape: float) -> StructureTrial:
    return StructureTrial(
        structure.hidden_layer_sizes,
        structure.batch_size,
        structure.learning_rate_init,
        structure.solver,
        structure.alpha,
        smape,
    )


def _best(base: TensorShareRegressor, tried: Sequence[StructureTrial]) -> TensorShareRegressor:
    found: TensorShareRegressor = clone(base)
    if not tried:
        return found
    settings = min(tried, key=lambda trial: trial.smape)._asdict()
    del settings["smape"]
    best: TensorShareRegressor = found.set_params(**settings)
    return best
