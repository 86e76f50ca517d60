"""Conversion of the libraries' trees to the form of a forest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.papers.forms._kernels import Singles
from dovetail.papers.forms.forest import Forest, Tree
from dovetail.predictors.predictor import FloatArray

Library = Any
"""Objects of libraries without types."""


def forest_of_sklearn(ensemble: Library) -> Forest:
    """Return the form of a fitted scikit-learn forest on own and co-runner's features.

    scikit-learn rounds a row to float32 and compares it with the threshold in float64, ``<=``:
    this equals a comparison with the next float32 at or below the threshold. Leaves hold their
    part of the average.
    """
    return Forest.of_trees(_sklearn_trees(ensemble), 0.0, ensemble.n_features_in_ // 2)


def forest_of_xgboost(booster: Library, features: int, base: float) -> Forest:
    """Return the form of ``base`` plus an XGBoost model, for the number of features of a state.

    XGBoost rounds a row to float32 and compares ``<``: this equals ``<=`` with the float32 below
    the threshold. Its leaves already include the learning rate.
    """
    learner = json.loads(bytes(booster.save_raw("json")).decode())["learner"]
    base += float(learner["learner_model_param"]["base_score"].strip("[]"))
    trees = learner["gradient_booster"]["model"]["trees"]
    return Forest.of_trees(map(_xgboost_tree, trees), base, features)


def _sklearn_trees(ensemble: Library) -> Iterator[Tree]:
    for fitted in ensemble.estimators_:
        tree = fitted.tree_
        inner = tree.children_left >= 0
        yield Tree(
            left=tree.children_left.astype(np.int64),
            right=tree.children_right.astype(np.int64),
            feature=np.where(inner, tree.feature, 0).astype(np.int64),
            threshold=_at_or_below(np.where(inner, tree.threshold, 0.0)),
            missing_left=tree.missing_go_to_left.astype(np.bool_),
            value=tree.value[:, 0, 0] / len(ensemble.estimators_),
        )


def _xgboost_tree(tree: Mapping[str, Sequence[float]]) -> Tree:
    left, right = (np.array(tree[f"{side}_children"], dtype=np.int64) for side in ("left", "right"))
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    inner = left >= 0
    below = np.nextafter(condition, np.float32(-np.inf))
    return Tree(
        left=left,
        right=right,
        feature=np.where(inner, np.array(tree["split_indices"], dtype=np.int64), 0),
        threshold=np.where(inner, below, np.float32(0)),
        missing_left=np.array(tree["default_left"], dtype=np.bool_),
        value=condition.astype(np.float64),
    )


def _at_or_below(values: FloatArray) -> Singles:
    """Return the largest float32 not above each value."""
    nearest = values.astype(np.float32)
    return np.where(nearest > values, np.nextafter(nearest, np.float32(-np.inf)), nearest)
