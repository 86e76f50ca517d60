"""Synthetic workloads whose true slowdowns are known, and predictions that are off by design."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.predictors.fitted.folds import family_folds, random_folds, variant_folds
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut


class Population(NamedTuple):
    rows: DirectedRows
    known: HeldOut
    new: HeldOut


def population(seed, families=20, each=3, noise=0.06, bias=0.06):
    """Draw slowdowns around 1.2; predictions have an error of their own for every row.

    Where a family is hidden, its rows and those of its co-runners have two errors in common;
    where workloads are hidden without their families, those of each workload have.
    """
    draw = np.random.default_rng(seed)
    count = families * each
    rows = rows_of(1.2 + 0.1 * draw.standard_normal((count, count)), each)
    row, fold = tested(random_folds(rows))
    known = held(row, fold, rows.slowdown[row] + noise * draw.standard_normal(len(row)))
    row, fold = tested(family_folds(rows))
    of_own, of_other = bias * draw.standard_normal((2, families))
    shared = np.where(rows.own[row] // each == fold, of_own[fold], of_other[fold])
    error = shared + noise * draw.standard_normal(len(row))
    family = held(row, fold, rows.slowdown[row] + error)
    row, fold = tested(variant_folds(rows))
    of_own, of_other = bias * draw.standard_normal((2, count))
    error = of_own[rows.own[row]] + of_other[rows.other[row]]
    error += noise * draw.standard_normal(len(row))
    variant = held(row, fold, rows.slowdown[row] + error)
    return Population(rows, known, family.joined(variant))


def of_matrices(truth, prediction):
    """Return workloads of a family each, with predictions for known ones only."""
    rows = rows_of(truth, 1)
    row, fold = tested(random_folds(rows))
    known = held(row, fold, prediction[rows.own, rows.other][row])
    return Population(rows, known, known.take(slice(0)))


def held(row, fold, slowdown):
    """Return predictions of a model that gives no standard errors."""
    return HeldOut(row, fold, slowdown, np.full(len(row), np.nan))


def rows_of(slowdown, each):
    """Return every pair of workloads; row i, column j is the slowdown of i with j."""
    count = len(slowdown)
    first, second = np.triu_indices(count)
    own, other = np.r_[first, second], np.r_[second, first]
    return DirectedRows(
        states=np.zeros((count, 1)),
        workload=np.arange(count),
        own=own,
        other=other,
        pair=np.tile(np.arange(len(first)), 2),
        slowdown=slowdown[own, other],
        names=tuple(f"w{k}" for k in range(count)),
        families=tuple(f"f{k // each}" for k in range(count)),
    )


def tested(folds):
    tests = [np.flatnonzero(fold.test) for fold in folds]
    return np.concatenate([np.empty(0, int), *tests]), np.repeat(
        np.arange(len(tests)), [len(test) for test in tests]
    )
