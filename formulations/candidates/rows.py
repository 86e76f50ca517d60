"""Candidate groups of one size in rows, and the rule book (``rules``) on them.

The rules are those on memory, mechanisms of sharing, hosts and accepted slowdowns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from dovetail.formulations.arrays import (
    MOST_RANK,
    Bools,
    Floats,
    Ints,
    across,
    packed,
    products,
    ranges,
    ways,
)
from dovetail.formulations.rounds import Round
from dovetail.formulations.rules import MEMORY_TOLERANCE_MIB, most_bound
from dovetail.formulations.slowdowns import Colocations
from dovetail.formulations.values import JobValues, Rows

MEMBERS_AT_ONCE = 2_000_000
"""Members of the rows built at one time: arrays of about 16 MB each."""

ROWS_IN_TIME = 200_000
"""Rows between two checks of the clock, counting all ways to seat the same jobs: about 10 ms."""


@dataclass(frozen=True)
class CandidateRows(Colocations):
    """Colocations on classes of GPUs, with the jobs that may take their places, one per row.

    Attributes
    ----------
    index : (s,) int
        The position of each candidate among all.
    gpu_class : (s,) int
        The class of the GPU.
    first, count : (s, size) int
        For each place, the range of the pool whose variants may take it.
    twin : (s, size) bool
        Places that are interchangeable with the place before them.
    """

    index: Ints
    gpu_class: Ints
    first: Ints
    count: Ints
    twin: Bools

    @classmethod
    def on(
        cls, gpu_class: Ints, first: Ints, count: Ints, known: Colocations, held: int
    ) -> CandidateRows:
        """Return the candidates of colocations whose first ``held`` jobs already run there."""
        own = [np.arange(len(known)), gpu_class, first, count, known.twins(held)]
        columns = [*known.columns, *own]
        return cls(*columns)

    @cached_property
    def rows(self) -> Floats:
        """The number of ways to take the places of each, before any rule, (s,).

        Jobs that take twin places are a multiset.
        """
        return ways(self.count, self.twin)

    def families(self, promise: Floats | None = None) -> Ints:
        """Return an order in which candidates of the same jobs on the same GPUs are adjacent.

        Parameters
        ----------
        promise : (s,) float, optional
            Families with the most promising candidate come first.
        """
        names, family = np.unique(self.family, return_inverse=True)
        if promise is not None:
            best = np.full(len(names), -np.inf)
            np.maximum.at(best, family, promise)
            rank = np.empty(len(names), dtype=np.int64)
            rank[np.argsort(-best, kind="stable")] = np.arange(len(names))
            family = rank[family]
        return np.argsort(family, kind="stable")

    @property
    def family(self) -> Ints:
        """A number for each, equal exactly if the same jobs are seated on the same GPUs."""
        return packed(np.column_stack([self.gpu_class, self.first]))

    def alike(self) -> Ints:
        """Return the first, second, ... candidate of the same jobs on the same GPUs.

        There is a row for each rank and a column for each family, -1 if it has no more, (k, f).
        """
        _, family = np.unique(self.family, return_inverse=True)
        order = np.argsort(family, kind="stable")
        size = np.bincount(family)
        nth = np.full((int(size.max(initial=0)), len(size)), -1, dtype=np.int64)
        nth[ranges(0, size), family[order]] = order
        return nth

    def numbered(self) -> CandidateRows:
        """Return the candidates with their index numbered from 0 again."""
        return replace(self, index=np.arange(len(self.gpu_class)))

    def together(self, nth: Ints) -> Self:
        """Return one candidate per family, with twins only where all its candidates have them.

        Parameters
        ----------
        nth : (k, f) int
            The candidates of each family, see ``alike``.
        """
        twin = np.ones((nth.shape[1], self.twin.shape[1]), dtype=bool)
        for each in nth:
            twin &= self.twin[each] | (each < 0)[:, None]
        return replace(self.take(nth[0]), twin=twin)

    def product(self, begin: int = 0, end: float = np.inf) -> tuple[Ints, Ints]:
        """Return the ways to take the places: the candidate of each row, and its pool places.

        Parameters
        ----------
        begin, end : int
            The range of the ways of each candidate; all by default.
        """
        candidate, places = products(self.count, self.twin, begin, end)
        places += self.first[candidate]
        return candidate, places


class Piece(NamedTuple):
    """Whole families of ``candidates``, and the range of the ways of each."""

    candidates: CandidateRows
    begin: int
    end: float

    @property
    def rows(self) -> float:
        """The number of rows, before any rule."""
        return float((np.minimum(self.candidates.rows, self.end) - self.begin).sum())


def in_chunks(candidates: CandidateRows, rows_at_once: int | None = None) -> Iterator[Piece]:
    """Yield candidates in pieces of whole families, so that arrays of their rows stay small.

    A family with more ways than that comes in several pieces. Families with more than ``MOST_RANK``
    are skipped.
    """
    if not len(candidates.gpu_class):
        return
    most = rows_at_once or max(1, MEMBERS_AT_ONCE // candidates.count.shape[1])
    key = candidates.family
    first = np.flatnonzero(np.diff(key, prepend=-1))
    size = np.diff(first, append=len(key))
    number = np.maximum.reduceat(candidates.rows, first)
    total, begin = 0.0, 0
    for k, work in enumerate((number * size).tolist()):
        if begin < k and total + work > most:
            yield Piece(candidates.take(slice(first[begin], first[k])), 0, np.inf)
            total, begin = 0.0, k
        total += work
        if total > most:
            begin, total = k + 1, 0.0
            one = candidates.take(slice(first[k], first[k] + size[k]))
            step = max(1, most // int(size[k]))
            if number[k] <= MOST_RANK:
                yield from (Piece(one, low, low + step) for low in range(0, int(number[k]), step))
    if begin < len(first):
        yield Piece(candidates.take(slice(first[begin], len(key))), 0, np.inf)


class RowRules:
    """The variants of the jobs of a round as columns, and the rules on rows of them.

    Parameters
    ----------
    compiled : Round
        The round.
    values : JobValues
        The objective.
    """

    def __init__(self, compiled: Round, values: JobValues) -> None:
        self.round = compiled
        self.values = values
        self.variants = compiled.variants
        jobs = compiled.jobs
        self.job = self.variants.job
        self.slowdown_factor = self.variants.slowdown_factor
        self.stretched = bool((self.slowdown_factor != 1).any())
        self.accepted = most_bound(jobs.gsla)[self.job]
        self.latency = jobs.latency[self.job]
        self.workers = jobs.workers[self.job]
        self.pending = ~jobs.running[self.job]
        self.first_of_job = compiled.first_variant
        self._offered_mib = compiled.classes.memory_mib
        self._host = _slowdown_on_hosts(compiled)

    def need_mib(self, gpu_class: Ints, variant: Ints) -> Floats:
        """Return the memory of the variants (n, size) on a GPU of each class (n,), in MiB."""
        need = self.variants.need_mib(variant, self._offered_mib[gpu_class])
        return np.asarray(across(np.add, need))

    def fits(self, gpu_class: Ints, variant: Ints) -> Bools:
        """Return whether the variants (n, size) may be together on a GPU of each class (n,).

        They fit in its memory, and several share it as each of them needs.
        """
        room = self._offered_mib[gpu_class] + MEMORY_TOLERANCE_MIB
        fits = self.need_mib(gpu_class, variant) <= room
        if variant.shape[1] > 1 and self.round.bound_to_mode:
            fits &= across(np.logical_and, self.may_share(gpu_class[:, None], variant))
        return np.asarray(fits)

    def may_share(self, gpu_class: Ints, variant: Ints) -> Bools:
        """Return which variants may share a GPU of a class in the way that jobs share it."""
        kind = self.round.classes.kind[gpu_class]
        return np.asarray(self.round.may_share[kind, self.job[variant]])

    def bound(
        self, candidates: CandidateRows, place: int, candidate: Ints, variant: Ints
    ) -> Floats:
        """Return the slowdown bound of the job in one place that its gSLA limits, for each row.

        Parameters
        ----------
        candidates : CandidateRows
            The candidates.
        place : int
            The place.
        candidate, variant : (n,) int
            The candidate of each row, and the job variant in that place.
        """
        bound = candidates.upper[:, place].take(candidate)
        if self.latency.any():
            tail = candidates.tail[:, place].take(candidate)
            bound = np.where(self.latency.take(variant), tail, bound)
        if self._host is not None:
            node, job = self._node(candidates.gpu_class[candidate]), self.job[variant]
            bound = bound * self._host[node, job]
        return bound * self.slowdown_factor.take(variant) if self.stretched else bound

    def rows(self, candidates: CandidateRows, candidate: Ints, variant: Ints) -> Rows:
        """Return the groups with these variants in the places of the candidates, (n, size)."""
        gpu_class = candidates.gpu_class[candidate]
        slowdown = candidates.slowdown[candidate] * self.slowdown_factor[variant]
        job = self.job[variant]
        if self._host is not None:
            # A measured slowdown already contains the effect of the host.
            measured = ~np.isnan(self.round.jobs.slowdown[job])
            factor = self._host[self._node(gpu_class)[:, None], job]
            slowdown = slowdown * np.where(measured, 1.0, factor)
        share, power_w = candidates.share[candidate], candidates.power_w[candidate]
        return Rows(gpu_class, job, variant, share, slowdown, power_w)

    def _node(self, gpu_class: Ints) -> Ints:
        """Return the tight node of each class, -1 for none."""
        hosts = self.round.hosts
        assert hosts is not None
        return np.asarray(hosts.class_node[gpu_class])


def _slowdown_on_hosts(compiled: Round) -> Floats | None:
    """Return how much each job is slowed on each node and on none (the last row).

    Jobs that start beside others stay within the capacity left, and are not slowed.
    """
    if compiled.hosts is None:
        return None
    running = np.where(compiled.jobs.running, compiled.hosts.slowdown, 1.0)
    return np.vstack([running, np.ones(len(compiled))])


def enough(job: Ints, copies: Ints) -> Bools:
    """Return which rows name no job more often than there are jobs of its kind."""
    keep = np.ones(len(job), dtype=bool)
    for k in range(1, job.shape[1]):
        before = np.zeros(len(job), dtype=np.int64)
        for column in job.T[:k]:
            before += column == job[:, k]
        keep &= before < copies[job[:, k]]
    return keep


def in_order(variant: Ints, twin: Bools) -> Bools:
    """Return in which rows the variants in twin places are in the order of their index."""
    keep = np.ones(len(variant), dtype=bool)
    for k in range(1, variant.shape[1]):
        keep &= ~twin[:, k] | (variant[:, k - 1] <= variant[:, k])
    return keep
