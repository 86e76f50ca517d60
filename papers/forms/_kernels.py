"""The loops of ``forest``, compiled by numba if it is installed and worthwhile.

Each loop exists twice: as a function that numba compiles, and in NumPy. Both add the same numbers
in the same order, so their results are bit-identical.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

Bits = NDArray[np.uint64]
Singles = NDArray[np.float32]

DE_BRUIJN: Final = np.uint64(0x03F79D71B4CB0A89)
"""Multiplied by a power of two, its upper six bits are different for each of the 64."""

_UPPER_SIX: Final = np.uint64(58)
_BLOCK: Final = 8192
_WORTH_LOADING: Final = 30_000_000
"""Steps of a loop that take NumPy as long as importing numba."""

_WORTH_CALLING: Final = 1_000_000
"""Steps of a loop from which the compiled one is used if numba is already imported."""


class Conditions(NamedTuple):
    """Conditions on one state, each for one word of 64 leaves; sorted by word.

    Attributes
    ----------
    first : ndarray of int, shape (words + 1,)
        The start of the conditions of each word; every word has one or more.
    feature : ndarray of int, shape (conditions,)
        The column of the state.
    threshold : ndarray of float32, shape (conditions,)
        A state with a value up to this goes left.
    missing_right : ndarray of bool, shape (conditions,)
        Whether a state without a value goes right.
    left, right : ndarray of uint64, shape (conditions,)
        The leaves that stay reachable for a state that goes left, or right.
    """

    first: IntArray
    feature: IntArray
    threshold: Singles
    missing_right: BoolArray
    left: Bits
    right: Bits


def add_pairs(
    own: tuple[Conditions, Singles, IntArray],
    other: tuple[Conditions, Singles, IntArray],
    leaves: FloatArray,
    total: FloatArray,
) -> None:
    """Add the leaves that rows of two states reach.

    Parameters
    ----------
    own, other : tuple
        The conditions on one half of a row; states, shape (states, features); and the state
        of each row.
    leaves : ndarray of float, shape (words, 64)
        Value of each leaf, at the position that ``place`` gives its bit.
    total : ndarray of float, shape (rows,)
        What is added to.
    """
    rows, mine, theirs = len(total), own[2], other[2]
    steps = rows * len(leaves) + sum(len(half[1]) * len(half[0].feature) for half in (own, other))
    compiles = _compiles(steps)
    masks = _masks_compiled if compiles else _masks_numpy
    exits = _compiled("_exits") if compiles else _exits_numpy
    a, b = (masks(half[0], half[1]) for half in (own, other))
    _in_blocks(rows, lambda r: exits(a, b, leaves, mine[r], theirs[r], total[r]))


def place(bits: Bits) -> IntArray:
    """Return a number in 0..63 for words with one bit set, different for each bit."""
    return ((bits * DE_BRUIJN) >> _UPPER_SIX).astype(np.int64)


def add_walks(
    start: IntArray,
    nodes: tuple[IntArray, Singles, BoolArray, IntArray, FloatArray],
    table: Singles,
    total: FloatArray,
) -> None:
    """Add the leaves that rows of a table reach, walking down every tree.

    Parameters
    ----------
    start : ndarray of int, shape (trees,)
        The root of each tree.
    nodes : tuple
        Feature, threshold, whether missing values go left, right child and value of each node; the
        left child is the next node; the feature is -1 at a leaf.
    table : ndarray of float32, shape (rows, features)
        The rows.
    total : ndarray of float, shape (rows,)
        What is added to.
    """
    depth = np.log2(1 + len(nodes[0]) / len(start))
    walk = _compiled("_walks") if _compiles(len(table) * len(start) * depth) else _walks_numpy
    _in_blocks(len(total), lambda r: walk(start, *nodes, table[r], total[r]))


def _masks(
    first: IntArray,
    feature: IntArray,
    threshold: Singles,
    missing_right: BoolArray,
    left: Bits,
    right: Bits,
    states: Singles,
    masks: Bits,
) -> None:
    for state in range(masks.shape[0]):
        for word in range(masks.shape[1]):
            reachable = ~np.uint64(0)
            for k in range(first[word], first[word + 1]):
                value = states[state, feature[k]]
                goes_right = (value > threshold[k]) | (missing_right[k] & (value != value))
                reachable &= right[k] if goes_right else left[k]
            masks[state, word] = reachable


def _exits(
    own_masks: Bits,
    other_masks: Bits,
    leaves: FloatArray,
    own: IntArray,
    other: IntArray,
    total: FloatArray,
) -> None:
    for row in range(total.shape[0]):
        a, b, added = own[row], other[row], total[row]
        for word in range(leaves.shape[0]):
            leaf = own_masks[a, word] & other_masks[b, word]
            if leaf:
                added += leaves[word, (leaf * DE_BRUIJN) >> _UPPER_SIX]
        total[row] = added


def _walks(
    start: IntArray,
    feature: IntArray,
    threshold: Singles,
    missing_left: BoolArray,
    right: IntArray,
    value: FloatArray,
    table: Singles,
    total: FloatArray,
) -> None:
    for root in start:
        for row in range(total.shape[0]):
            node = root
            while feature[node] >= 0:
                x = table[row, feature[node]]
                goes_left = (x <= threshold[node]) | (missing_left[node] & (x != x))
                node = node + 1 if goes_left else right[node]
            total[row] += value[node]


def _masks_numpy(conditions: Conditions, states: Singles) -> Bits:
    """Return masks of shape (words, states)."""
    masks = np.empty((len(conditions.first) - 1, len(states)), dtype=np.uint64)
    left, right = conditions.left[:, np.newaxis], conditions.right[:, np.newaxis]
    block = max(1, 2_000_000 // len(conditions.feature))
    for begin in range(0, len(states), block):
        some = slice(begin, begin + block)
        values = states.T[conditions.feature, some]
        goes_right = values > conditions.threshold[:, np.newaxis]
        goes_right |= np.isnan(values) & conditions.missing_right[:, np.newaxis]
        reachable = np.where(goes_right, right, left)
        masks[:, some] = np.bitwise_and.reduceat(reachable, conditions.first[:-1], axis=0)
    return masks


def _exits_numpy(
    own_masks: Bits,
    other_masks: Bits,
    leaves: FloatArray,
    own: IntArray,
    other: IntArray,
    total: FloatArray,
) -> None:
    for mine, theirs, values in zip(own_masks, other_masks, leaves, strict=True):
        leaf = mine[own] & theirs[other]
        total += np.where(leaf != 0, values[place(leaf)], 0.0)


def _walks_numpy(
    start: IntArray,
    feature: IntArray,
    threshold: Singles,
    missing_left: BoolArray,
    right: IntArray,
    value: FloatArray,
    table: Singles,
    total: FloatArray,
) -> None:
    for root in start:
        node = np.full(len(total), root)
        walking = np.flatnonzero(feature[node] >= 0)
        while len(walking):
            at = node[walking]
            x = table[walking, feature[at]]
            goes_left = (x <= threshold[at]) | (missing_left[at] & np.isnan(x))
            node[walking] = np.where(goes_left, at + 1, right[at])
            walking = walking[feature[node[walking]] >= 0]
        total += value[node]


def _masks_compiled(conditions: Conditions, states: Singles) -> Bits:
    """Return masks of shape (states, words)."""
    masks = _compiled("_masks")
    filled = np.empty((len(states), len(conditions.first) - 1), dtype=np.uint64)
    _in_blocks(len(filled), lambda r: masks(*conditions, states[r], filled[r]), block=256)
    return filled


def _in_blocks(count: int, call: Callable[[slice], object], block: int = _BLOCK) -> None:
    """Call for blocks of ``count`` items, on all cores if there are several blocks."""
    slices = [slice(begin, begin + block) for begin in range(0, count, block)]
    each = map(call, slices) if len(slices) < 2 else _pool().map(call, slices)
    for _ in each:
        pass


@cache
def _pool() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores, thread_name_prefix="dovetail-forest")


@cache
def _installed() -> bool:
    return find_spec("numba") is not None


def _compiles(steps: float) -> bool:
    """Return whether compiled code is faster for this number of steps."""
    return _installed() and steps >= (_WORTH_CALLING if "numba" in sys.modules else _WORTH_LOADING)


@cache
def _compiled(name: str) -> Any:  # noqa: ANN401 - numba has no types
    numba, function = import_module("numba"), globals()[name]
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder for the machine code: compile in every process
        return numba.njit(nogil=True)(function)
