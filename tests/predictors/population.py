"""Synthetic workloads whose true slowdowns are known, and predictions that are off by design."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.predictors.folds import HeldOut, family_folds, random_folds
from dovetail.predictors.rows import Rows


class Population(NamedTuple):
    rows: Rows
    known: HeldOut
    new: HeldOut


def population(seed, families=20, each=3, noise=0.06, bias=0.06):
    """Draw slowdowns around 1.2; predictions have an error of their own for every row.

    Where a family is hidden, its rows and those of its co-runners have two errors in common.
    """
    draw = np.random.default_rng(seed)
    count = families * each
    first, second = np.triu_indices(count)
    own, other = np.r_[first, second], np.r_[second, first]
    slowdown = 1.2 + 0.1 * draw.standard_normal(len(own))
    rows = Rows(
        states=np.zeros((count, 1)),
        workload=np.arange(count),
        own=own,
        other=other,
        pair=np.tile(np.arange(len(first)), 2),
        slowdown=slowdown,
        names=tuple(f"w{k}" for k in range(count)),
        families=tuple(f"f{k // each}" for k in range(count)),
    )
    row, fold = tested(random_folds(rows))
    known = HeldOut(row, fold, slowdown[row] + noise * draw.standard_normal(len(row)))
    row, fold = tested(family_folds(rows))
    of_own, of_other = bias * draw.standard_normal((2, families))
    shared = np.where(own[row] // each == fold, of_own[fold], of_other[fold])
    new = HeldOut(row, fold, slowdown[row] + shared + noise * draw.standard_normal(len(row)))
    return Population(rows, known, new)


def tested(folds):
    tests = [np.flatnonzero(fold.test) for fold in folds]
    return np.concatenate(tests), np.repeat(np.arange(len(tests)), [len(test) for test in tests])
