"""Which rows a model is fitted on and which it is tested on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dovetail.predictors.estimators.registry import ModelSpec, PairEstimator
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut
from dovetail.predictors.predictor import BoolArray, IntArray

_VARIANT_FOLDS = 5


class Fold(NamedTuple):
    """Two disjoint sets of rows, as masks of shape (rows,)."""

    train: BoolArray
    test: BoolArray


def random_folds(rows: DirectedRows, count: int = 5, seed: int = 0) -> Iterator[Fold]:
    """Yield folds that split the unordered pairs of workloads at random.

    All rows of two workloads stay together. Both workloads are seen in training in other pairs, so
    this tests predictions *between known workloads*, not of new ones.
    """
    pairs, of_row = np.unique(rows.workload_pair, return_inverse=True)
    part = np.empty(len(pairs), dtype=np.int64)
    part[np.random.default_rng(seed).permutation(len(pairs))] = np.arange(len(pairs)) % count
    for k in range(count):
        test = np.asarray(part[of_row] == k)
        yield Fold(~test, test)


def family_folds(rows: DirectedRows) -> Iterator[Fold]:
    """Yield a fold for each family: tested on the pairs that have it, fitted on all others.

    The rows of a pair from two families are tested twice.
    """
    numbers = {family: k for k, family in enumerate(dict.fromkeys(rows.families))}
    group = np.array([numbers[family] for family in rows.families])
    yield from group_folds(group[rows.own_workload], group[rows.other_workload])


def workload_folds(rows: DirectedRows) -> Iterator[Fold]:
    """Yield a fold for each workload, like ``family_folds`` for families.

    Other workloads of its family may be seen in training.
    """
    yield from group_folds(rows.own_workload, rows.other_workload)


def variant_folds(rows: DirectedRows) -> Iterator[Fold]:
    """Yield up to five folds that each hide about a fifth of the workloads but no whole family.

    The only workload of a family is never hidden.
    """
    families = np.unique(np.array(rows.families), return_inverse=True)[1]
    alone = (np.bincount(families) == 1)[families]
    part = np.full(len(families), -1)
    variants = np.argsort(families, kind="stable")
    variants = variants[~alone[variants]]
    part[variants] = np.arange(len(variants)) % _VARIANT_FOLDS
    own, other = part[rows.own_workload], part[rows.other_workload]
    for k in range(_VARIANT_FOLDS):
        test = np.asarray((own == k) | (other == k))
        if test.any() and not test.all():
            yield Fold(~test, test)


def split_folds(rows: DirectedRows) -> Iterator[Fold]:
    """Yield a fold for each split of the SMs; a split and its mirror are the same."""
    yield from group_folds(rows.split, rows.split)


def group_folds(own: IntArray, other: IntArray) -> Iterator[Fold]:
    """Yield a fold for each group: tested on the rows that have it on either side.

    Parameters
    ----------
    own, other : ndarray of int, shape (rows,)
        The group of the own and of the co-runner's workload.
    """
    for one in np.unique(np.concatenate([own, other])):
        test = np.asarray((own == one) | (other == one))
        if test.any() and not test.all():
            yield Fold(~test, test)


def held_out(model: ModelSpec, rows: DirectedRows, folds: Iterable[Fold], seed: int = 0) -> HeldOut:
    """Fit a fresh model on each fold's training rows and predict its test rows."""
    row, fold, slowdown, error = [], [], [], []
    for k, (train, test) in enumerate(folds):
        tested, table = np.flatnonzero(test), rows.take(test).table
        estimator = fitted(model, rows.take(train), seed)
        standard_error = getattr(estimator, "standard_error", None)
        row.append(tested)
        fold.append(np.full(len(tested), k))
        slowdown.append(estimator.predict(table))
        error.append(standard_error(table) if standard_error else np.full(len(tested), np.nan))
    numbers, answers = map(np.concatenate, (row, fold)), map(np.concatenate, (slowdown, error))
    return HeldOut(*numbers, *answers)


def fitted(model: ModelSpec, rows: DirectedRows, seed: int = 0) -> PairEstimator:
    """Return a fresh model fitted on all of the rows."""
    made = model.build(seed)
    return model.fit(made, rows) if model.fit else made.fit(rows.table, rows.slowdown)
