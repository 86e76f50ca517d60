"""Tree ensembles as arrays, and a kernel that exploits that a row is two states.

A row of the table is the job's own state followed by its co-runner's, and a condition in a tree
tests one of the two. So each state, once as own and once as other, determines which leaves remain
reachable by its half of the conditions: one bit per leaf, as in QuickScorer (Lucchese et al.,
SIGIR 2015), which has such a bitvector for every condition. The leaf that a row reaches is the
only bit set in (own mask AND other mask). n workloads at k caps have n * k states but n^2 * k
rows; the trees are evaluated for the states, and a row costs one AND, one multiplication and one
look-up for every 64 leaves, at any depth.

A de Bruijn multiplication turns the bit into a position in the table of leaves, which is stored in
the order of these positions. Trees of more than 64 leaves have several words; in the end all but
one are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import InputError
from dovetail.papers.forms._kernels import Conditions, Singles, add_pairs, add_walks, place
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

MOST_LEAVES: Final = 4096
"""The most leaves of one tree; the masks of a state have one bit for each."""

_MASK_BYTES: Final = 16 * 2**20
_WORD: Final = 64

_Number = TypeVar("_Number", bound=np.generic)


class Tree(NamedTuple):
    """One tree in the layout of the libraries: children by node, -1 at a leaf; the root is node 0.

    A row goes left if the value, as float32, is at most the float32 ``threshold``, or if it is NaN
    and ``missing_left`` is set. ``value`` is the output of a leaf.
    """

    left: IntArray
    right: IntArray
    feature: IntArray
    threshold: Singles
    missing_left: BoolArray
    value: FloatArray


@dataclass(frozen=True, eq=False)
class Forest:
    """A sum over trees; see the module for how pairs are predicted.

    The nodes of a tree are in preorder: the left child of a node is the next one, and the right
    child follows the end of the left child's subtree.

    Parameters
    ----------
    features : int
        Features of one state.
    start : ndarray of int, shape (trees + 1,)
        The start of the nodes of each tree.
    end : ndarray of int, shape (nodes,)
        The end of the subtree of each node; the next node at a leaf.
    feature : ndarray of int, shape (nodes,)
        Own features come first, then the co-runner's; without meaning at a leaf.
    threshold : ndarray of float32, shape (nodes,)
        Values up to it go left; infinite if only NaN goes the other way; without meaning at a
        leaf.
    missing_left : ndarray of bool, shape (nodes,)
        Whether NaN goes left.
    value : ndarray of float, shape (nodes,)
        The output of a leaf; without meaning elsewhere.
    base : ndarray of float, shape ()
        A constant added to the sum of the leaves.
    """

    kind: ClassVar[str] = "forest"

    features: int
    start: IntArray
    end: IntArray
    feature: IntArray
    threshold: Singles
    missing_left: BoolArray
    value: FloatArray
    base: FloatArray

    @classmethod
    def of_trees(cls, trees: Iterable[Tree], base: float, features: int) -> Self:
        """Return the form of some trees.

        Raises
        ------
        InputError
            When a tree has more than ``MOST_LEAVES`` leaves.
        """
        ordered = [(tree, *_preorder(tree)) for tree in trees]
        start = _edges(np.array([len(order) for _, order, _ in ordered]))
        ends = [end + begin for (_, _, end), begin in zip(ordered, start[:-1], strict=True)]
        arrays: Arrays = {
            "start": start,
            "end": np.concatenate(ends),
            "feature": np.concatenate([tree.feature[order] for tree, order, _ in ordered]),
            "threshold": np.concatenate([tree.threshold[order] for tree, order, _ in ordered]),
            "missing_left": np.concatenate([t.missing_left[order] for t, order, _ in ordered]),
            "value": np.concatenate([tree.value[order] for tree, order, _ in ordered]),
            "base": np.array(base, dtype=np.float64),
        }
        return cls.from_arrays(arrays, features)

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown of the own state with the other, for each row.

        Memory in addition to the answer is bounded: trees are evaluated in groups whose masks fit
        into 16 MiB (at least one tree).
        """
        _check_columns(states, self.features)
        own, other = (_positions(side, len(states)) for side in (own, other))
        singles, total = _singles(states), np.full(len(own), float(self.base))
        for words in self._groups(len(states)):
            mine, theirs = (_between(half, words) for half in self._halves)
            add_pairs((mine, singles, own), (theirs, singles, other), self._leaves[words], total)
        return total

    def evaluate(self, table: FloatArray) -> FloatArray:
        """Return the sum for each row of a table, shape (rows, 2 * features).

        This is for rows that do not consist of few states: it walks down every tree.
        """
        _check_columns(table, 2 * self.features)
        feature = np.where(self._is_leaf, -1, self.feature)
        nodes = (feature, self.threshold, self.missing_left, self._right, self.value)
        total = np.full(len(table), float(self.base))
        add_walks(self.start[:-1], nodes, _singles(table), total)
        return total

    def arrays(self) -> Arrays:
        """Return the whole form as arrays."""
        return {
            "start": self.start,
            "end": self.end,
            "feature": self.feature,
            "threshold": self.threshold,
            "missing_left": self.missing_left,
            "value": self.value,
            "base": self.base,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form for states with this number of features.

        Raises
        ------
        InputError
            When the arrays are no valid forest for such states.
        """
        if features < 1:
            raise InputError(f"must have at least one feature, got {features}", "features")
        start = _array(arrays, "start", np.int64, None)
        if len(start) < 2 or start[0] != 0 or np.any(start[1:] <= start[:-1]):
            raise InputError("must begin with 0 and increase", "start")
        nodes = (int(start[-1]),)
        form = cls(
            features=features,
            start=start,
            end=_array(arrays, "end", np.int64, nodes),
            feature=_array(arrays, "feature", np.int64, nodes),
            threshold=_array(arrays, "threshold", np.float32, nodes),
            missing_left=_array(arrays, "missing_left", np.bool_, nodes),
            value=_array(arrays, "value", np.float64, nodes),
            base=_array(arrays, "base", np.float64, ()),
        )
        form._check()
        return form

    def _check(self) -> None:
        """Refuse arrays that are no forest; by induction from the roots, trees are in preorder."""
        if np.any(self.end <= np.arange(len(self.end))) or np.any(self.end > len(self.end)):
            raise InputError("a subtree must end after its node and within the forest", "end")
        if np.any(self.end[self.start[:-1]] != self.start[1:]):
            raise InputError("the subtree of a root must be its tree", "end")
        inner = np.flatnonzero(~self._is_leaf)
        right, end = self.end[inner + 1], self.end[inner]
        if np.any(right >= end) or np.any(self.end[np.minimum(right, end - 1)] != end):
            raise InputError("two subtrees must fill that of their parent", "end")
        for name in ("value", "base"):
            if not np.isfinite(getattr(self, name)).all():
                raise InputError("must be finite", name)
        if np.any(self.feature[inner] < 0) or np.any(self.feature[inner] >= 2 * self.features):
            raise InputError(f"must be from 0 to {2 * self.features - 1}", "feature")
        most = int(np.diff(self._before[self.start]).max())
        if most > MOST_LEAVES:
            raise InputError(f"a tree may have {MOST_LEAVES} leaves, got {most}", "end")

    @cached_property
    def _is_leaf(self) -> BoolArray:
        return np.asarray(self.end == np.arange(1, len(self.end) + 1))

    @cached_property
    def _right(self) -> IntArray:
        """The right child of each node, the node itself at a leaf."""
        right = np.arange(len(self.end))
        inner = np.flatnonzero(~self._is_leaf)
        right[inner] = self.end[inner + 1]
        return right

    @cached_property
    def _before(self) -> IntArray:
        """The number of leaves before each node, and of all leaves."""
        return _edges(self._is_leaf)

    @cached_property
    def _first_word(self) -> IntArray:
        """The first word of each tree, and the number of words; shape (trees + 1,)."""
        words = -(-np.diff(self._before[self.start]) // _WORD)
        return _edges(words)

    @cached_property
    def _place_of_leaf(self) -> IntArray:
        """Word and bit of each leaf, as 64 * word + bit."""
        tree = np.repeat(np.arange(len(self.start) - 1), np.diff(self._before[self.start]))
        within = np.arange(len(tree)) - self._before[self.start][tree]
        return self._first_word[tree] * _WORD + within

    @cached_property
    def _leaves(self) -> FloatArray:
        word, bit = np.divmod(self._place_of_leaf, _WORD)
        leaves = np.zeros((self._first_word[-1], _WORD))
        leaves[word, place(np.uint64(1) << bit.astype(np.uint64))] = self.value[self._is_leaf]
        return leaves

    @cached_property
    def _halves(self) -> tuple[Conditions, Conditions]:
        """The conditions on the own state and on the other."""
        inner = np.flatnonzero(~self._is_leaf)
        on_own = self.feature[inner] < self.features
        return self._conditions(inner[on_own], 0), self._conditions(inner[~on_own], self.features)

    def _conditions(self, nodes: IntArray, first_feature: int) -> Conditions:
        """Return the conditions of some nodes, cut into words.

        Every word has an extra one at its front that always holds: the bits of its leaves.
        """
        leaf, before = self._place_of_leaf, self._before
        low, high = leaf[before[nodes]], leaf[before[self.end[nodes]] - 1]
        middle = before[self._right[nodes]]
        piece, word = _spread(low // _WORD, high // _WORD)
        node = nodes[piece]
        in_left = _bits(low[piece], leaf[middle - 1][piece] + 1, word)
        in_right = _bits(leaf[middle][piece], high[piece] + 1, word)
        words = np.arange(len(self._leaves))
        used = np.bincount(leaf // _WORD, minlength=len(words))
        every = _bits(words * _WORD, words * _WORD + used, words)
        order = np.argsort(np.concatenate([words, word]), kind="stable")
        none, infinite = np.zeros_like(words), np.full(len(words), np.inf, dtype=np.float32)
        goes_right = ~self.missing_left[node]
        return Conditions(
            first=_edges(1 + np.bincount(word, minlength=len(words))),
            feature=np.concatenate([none, self.feature[node] - first_feature])[order],
            threshold=np.concatenate([infinite, self.threshold[node]])[order],
            missing_right=np.concatenate([none.astype(np.bool_), goes_right])[order],
            left=np.concatenate([every, ~in_right])[order],
            right=np.concatenate([every, ~in_left])[order],
        )

    def _groups(self, states: int) -> Iterator[slice]:
        """Yield words of whole trees whose masks of all states fit into the allowed memory."""
        most = max(1, _MASK_BYTES // (2 * 8 * max(1, states)))
        first = 0
        words = self._first_word
        while first < len(words) - 1:
            last = int(np.searchsorted(words, words[first] + most, side="right")) - 1
            last = max(first + 1, last)
            yield slice(int(words[first]), int(words[last]))
            first = last


def _preorder(tree: Tree) -> tuple[IntArray, IntArray]:
    """Return the nodes of a tree in preorder, and the end of each subtree in this order."""
    left, right = tree.left.tolist(), tree.right.tolist()
    order, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        if left[node] >= 0:
            waiting += (right[node], left[node])
    size = [1] * len(left)
    for node in reversed(order):
        if left[node] >= 0:
            size[node] += size[left[node]] + size[right[node]]
    return np.array(order), np.arange(len(order)) + np.array(size)[order]


def _check_columns(table: FloatArray, columns: int) -> None:
    """Raise if compiled code, which checks nothing, would read outside the table."""
    if table.ndim != 2 or table.shape[1] != columns:
        raise ValueError(f"must have {columns} columns, got shape {table.shape}")


def _positions(rows: IntArray, states: int) -> IntArray:
    """Return checked positions in ``states``, in the layout for compiled code."""
    if len(rows) and not (rows.min() >= 0 and rows.max() < states):
        raise IndexError(f"must be positions in {states} states")
    return np.ascontiguousarray(rows, dtype=np.int64)


def _singles(values: FloatArray) -> Singles:
    """Round like the libraries; values that are too large become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _spread(first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Return (k, every number from first[k] to last[k]) for all k."""
    count = last - first + 1
    which = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, first[which] + within


def _bits(begin: IntArray, end: IntArray, word: IntArray) -> NDArray[np.uint64]:
    """Return the bits of a word that lie in [begin, end), numbered over all words."""
    low, high = (np.clip(edge - word * _WORD, 0, _WORD) for edge in (begin, end))
    return _below(high) & ~_below(low)


def _below(count: IntArray) -> NDArray[np.uint64]:
    """Return words whose lowest ``count`` bits, 0 to 64, are set."""
    shift = np.minimum(_WORD - count, _WORD - 1).astype(np.uint64)
    return np.where(count == 0, np.uint64(0), ~np.uint64(0) >> shift)


def _edges(counts: IntArray | BoolArray) -> IntArray:
    """Return the start of each run, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _between(conditions: Conditions, words: slice) -> Conditions:
    first = conditions.first[words.start : words.stop + 1]
    some = slice(first[0], first[-1])
    return Conditions(
        first - first[0],
        conditions.feature[some],
        conditions.threshold[some],
        conditions.missing_right[some],
        conditions.left[some],
        conditions.right[some],
    )


def _array(
    arrays: Arrays, name: str, dtype: type[_Number], shape: tuple[int, ...] | None
) -> NDArray[_Number]:
    """Return an array after checking its type and shape; None means any vector."""
    if name not in arrays:
        raise InputError("this array is required", name)
    found = arrays[name]
    if found.dtype != dtype:
        raise InputError(f"must hold {np.dtype(dtype)}, got {found.dtype}", name)
    if shape is None and found.ndim != 1:
        raise InputError(f"must have one dimension, got {found.ndim}", name)
    if shape is not None and found.shape != shape:
        raise InputError(f"must have shape {shape}, got {found.shape}", name)
    if np.isnan(found).any():
        raise InputError("must not be NaN", name)
    return np.array(found, dtype=dtype)
