"""A good plan to begin with, before an integer program is solved."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.pair_graph import PairGraph
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import score
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.exact_pairs import best_pairs, graph_pairing
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.types import Limits

Ints = NDArray[np.int64]


_AT_LEAST = 100
"""Jobs that greedy goes through even where the time is up, so that a plan starts some."""


def start_counts(problem: Problem, limits: Limits) -> Ints:
    """Return the better of greedy's choice of groups and the best one in pairs of equals."""
    greedy = greedy_counts(problem, limits, at_least=_AT_LEAST)
    if limits.passed:
        return greedy
    try:
        paired = paired_counts(problem, limits)
    except UnsupportedError:
        return greedy
    return max(greedy, paired, key=lambda counts: _worth(problem, counts))


def paired_counts(problem: Problem, limits: Limits) -> Ints:
    """Return the best choice of groups in pairs of equals.

    Gangs that may share some of their GPUs may also share as wholes; that restriction is a
    matching where GPUs are interchangeable, and its optimum is a plan of the round.

    Raises
    ------
    UnsupportedError
        Where GPUs are not interchangeable.
    """
    graph = PairGraph(problem.groups, problem.values, restricted=True)
    return best_pairs(problem, partial(graph_pairing, problem, graph), limits).counts


def _worth(problem: Problem, counts: Ints) -> tuple[float, float]:
    """Return what counts first and second of a choice of groups."""
    reached = score(problem.groups, problem.values, counts)
    value = reached.value(problem.values)
    return (reached.weight, value) if problem.values.two_stage else (value, 0.0)
