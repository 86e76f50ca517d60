"""The pairing problem of a round: which jobs may share, and the values of plans.

Few pairs of jobs are stored as a list, many as tables of their workloads, from which values are
computed where they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.instances.plan import Stopped
from dovetail.solver.pairing.result import Matching
from dovetail.solver.pairing.splits import SplitValues
from dovetail.solver.types import Limits, Maximum

Floats = NDArray[np.floating[Any]]

_SMALL: Final = 500**2
"""Cells of a matrix that is filled in negligible time."""

_FEW: Final = 20
"""A larger matrix is sparse if fewer than one in this many of its cells is a pair."""


_BITS, _LEAST = 29, 1e-250
"""Bits of the largest rounded value, and the least magnitude that is rounded to so many."""


@dataclass(frozen=True, eq=False)
class WorkloadPairs:
    """The pairs of workloads that may share, in tables; values are ``SplitValues``.

    Attributes
    ----------
    values : SplitValues
        The pairs, with any values.
    surplus, most : (n,) float
        A pair is left out if the surplus of both jobs exceeds ``most`` of the first.
    """

    values: SplitValues
    surplus: Floats
    most: Floats

    @classmethod
    def of(cls, values: SplitValues) -> WorkloadPairs:
        """Return all pairs of a table."""
        n = len(values)
        return cls(values, np.zeros(n), np.zeros(n))

    def among(self, jobs: Bools) -> WorkloadPairs:
        """Return the pairs with both jobs in ``jobs``."""
        return replace(self, surplus=np.where(jobs, self.surplus, np.inf))

    def within(self, surplus: Floats, most: Floats) -> WorkloadPairs:
        """Return the pairs of those of ``among`` with a sum of ``surplus`` up to ``most``."""
        return replace(self, surplus=np.where(self.surplus < np.inf, surplus, np.inf), most=most)

    @cached_property
    def partnered(self) -> Bools:
        """Which jobs have one of the pairs; of thousands of jobs, which might."""
        values = self.summed(np.zeros(len(self.values)), None)
        return np.asarray(values.highest(1.0) > -np.inf)

    def summed(self, bonus: Floats, value: SplitValues | None) -> SplitValues:
        """Return values, or 0, and the bonus of both jobs in the form for ``match_pairs``."""
        values = self.values.weighed(0.0, 0.0) if value is None else value
        return values.limited(*(of.astype(np.float64) for of in (bonus, self.surplus, self.most)))

    def largest(self, value: SplitValues) -> float:
        """Return an upper bound on the magnitude of all values."""
        return value.largest if self.partnered.any() else 0.0

    def highest(self, value: SplitValues) -> Floats:
        """Return at least the highest value of each job's pairs, -inf for none."""
        limited = self.summed(np.zeros(len(self.values)), value)
        scale = 2.0 ** (_BITS - math.ceil(math.log2(max(limited.largest, _LEAST))))
        return limited.highest(scale) / scale

    def at(self, first: Ints, second: Ints) -> tuple[Ints, Ints]:
        """Return the index of the values of pairs."""
        return first, second


@dataclass(frozen=True, eq=False)
class PairList:
    """Pairs in a list; values are arrays of numbers.

    Attributes
    ----------
    jobs : int
        The number of jobs.
    first, second : (p,) int
        The jobs of each pair, ``first < second``, ordered by first and then second.
    which : (p,) bool, optional
        The pairs that are not left out; by default all.
    """

    jobs: int
    first: Ints
    second: Ints
    which: Bools | None = None

    def among(self, jobs: Bools) -> PairList:
        """Return the pairs with both jobs in ``jobs``."""
        return replace(self, which=np.asarray(jobs[self.first] & jobs[self.second]))

    def within(self, surplus: Floats, most: Floats) -> PairList:
        """Return the pairs of those of ``among`` with a sum of ``surplus`` up to ``most``."""
        low = self._sums(surplus) <= most[self.first]
        return replace(self, which=low if self.which is None else self.which & low)

    @property
    def partnered(self) -> Bools:
        """Which jobs have one of the pairs."""
        found = np.zeros(self.jobs, dtype=bool)
        found[self.first[self._chosen]] = found[self.second[self._chosen]] = True
        return found

    def summed(self, bonus: Floats, value: Floats | None) -> Any:  # noqa: ANN401
        """Return values, or 0, and the bonus of both jobs in the form for ``match_pairs``."""
        sums = self._sums(bonus)
        return self.matrix(sums if value is None else sums + value)

    def largest(self, value: Floats) -> float:
        """Return the largest magnitude of the values."""
        return float(np.abs(value[self._chosen]).max(initial=0.0))

    def highest(self, value: Floats) -> Floats:
        """Return the highest value of each job's pairs, -inf for none."""
        found = np.full(self.jobs, -np.inf)
        np.maximum.at(found, self.first[self._chosen], value[self._chosen])
        np.maximum.at(found, self.second[self._chosen], value[self._chosen])
        return found

    def at(self, first: Ints, second: Ints) -> Ints:
        """Return the index of the values of pairs."""
        listed = self.first * self.jobs + self.second
        return np.searchsorted(listed, first * self.jobs + second)

    def matrix(self, value: Floats) -> Any:  # noqa: ANN401
        """Return values in the form for ``match_pairs``."""
        chosen = self._chosen
        first, second, value = self.first[chosen], self.second[chosen], value[chosen]
        shape = self.jobs, self.jobs
        if self.jobs**2 > max(_SMALL, _FEW * len(value)):
            ends = np.append(first, second), np.append(second, first)
            return sp.csr_array((np.append(value, value), ends), shape=shape)
        full = np.full(shape, np.nan)
        full[first, second] = full[second, first] = value
        return full

    @property
    def _chosen(self) -> Bools | slice:
        return slice(None) if self.which is None else self.which

    def _sums(self, of_job: Floats) -> Floats:
        return np.asarray(of_job[self.first] + of_job[self.second])


PairSet: TypeAlias = WorkloadPairs | PairList


@dataclass(frozen=True)
class PairingProblem:
    """The plans of a round as matchings, with a linear value function.

    Attributes
    ----------
    pairs : PairList or WorkloadPairs
        The jobs that may share.
    pair : float array or SplitValues
        The value of each pair, in the form of ``pairs``.
    alone : (jobs,) float
        The value of each job alone; NaN if that is not allowed.
    constant : float
        The value of everything that is not decided.
    size : (jobs,) int
        Number of GPUs that each job takes.
    gpus : int
        Number of GPUs that the jobs may take together.
    required : (jobs,) bool
        Jobs that must be placed.
    taken : callable
        Returns how often a matching takes each group, and the groups unless they are all groups of
        the problem. If the matching does not cover the running jobs, no job starts.
    """

    pairs: PairSet
    pair: Any
    alone: Floats
    constant: float
    size: Ints
    gpus: int
    required: Bools
    taken: Callable[[Ints], tuple[Ints, Groups | None]]

    def value(self, mate: Ints) -> float:
        """Return the value of a matching."""
        jobs = np.arange(len(mate))
        first, alone = np.flatnonzero(mate > jobs), np.flatnonzero(mate == jobs)
        shared = self.pair[self.pairs.at(first, mate[first])]
        return math.fsum([*shared.tolist(), *self.alone[alone].tolist(), self.constant])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``match_pairs`` for the largest value."""
        return {
            "pair_value": self.pair
            if isinstance(self.pairs, WorkloadPairs)
            else self.pairs.matrix(self.pair),
            "single_value": self.alone,
            "gpus": self.gpus,
            "size": self.size,
            "required": self.required,
        }


def maximum(found: Matching, pairing: PairingProblem, bound: float, limits: Limits) -> Maximum:
    """Return a matching as a choice of groups, with this bound on the maximised value."""
    counts, groups = pairing.taken(found.mate)
    proven = found.status == "optimal" or not limits.budget.is_limited
    stopped: Stopped = "complete" if proven else "time_limit"
    return Maximum(counts=counts, bound=bound, stopped=stopped, groups=groups)
