"""The pairing problem of a round: which jobs may share, and the values of plans.

Few pairs of jobs are stored as a list, many as a matrix. Values of pairs, and masks that select
pairs, are arrays of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.solver.pairing.splits import SplitValues

Floats = NDArray[np.floating[Any]]

_SMALL: Final = 500**2
"""Cells of a matrix that is filled in negligible time."""

_FEW: Final = 20
"""A larger matrix is sparse if fewer than one in this many of its cells is a pair."""


@dataclass(frozen=True)
class PairMatrix:
    """Pairs in a matrix.

    Attributes
    ----------
    values : float array or SplitValues
        The values; the matrix of ``SplitValues`` is created only for two stages.
    """

    values: Floats | SplitValues

    @cached_property
    def may_share(self) -> Bools:
        """Which jobs may share, symmetric; False on the diagonal."""
        return np.asarray(~np.isnan(np.asarray(self.values)))

    def among(self, jobs: Bools) -> Bools:
        """Return the mask of the pairs with both jobs in ``jobs``."""
        return np.asarray(self.may_share & jobs & jobs[:, None])

    def partnered(self, which: Bools) -> Bools:
        """Return which jobs have one of the pairs."""
        return np.asarray(which.any(axis=1))

    def of_first(self, of_job: Floats) -> Floats:
        """Return the value of the first job of each pair."""
        return of_job[:, None]

    def sums(self, of_job: Floats) -> Floats:
        """Return the sum over both jobs of each pair."""
        return np.add.outer(of_job, of_job)

    def least(self, value: Floats, which: Bools) -> Floats:
        """Return the least value of each job's pairs, inf for none."""
        return np.asarray(value.min(axis=1, where=which, initial=np.inf))

    def at(self, first: Ints, second: Ints) -> tuple[Ints, Ints]:
        """Return the index of the values of pairs."""
        return first, second

    def matrix(
        self, value: Floats | SplitValues, which: Bools | None = None
    ) -> Floats | SplitValues:
        """Return the values in the form for ``match_pairs``; ``value`` may be overwritten."""
        if which is not None:
            assert isinstance(value, np.ndarray)
            value[~which] = np.nan
        return value


@dataclass(frozen=True)
class PairList:
    """Pairs in a list.

    Attributes
    ----------
    jobs : int
        The number of jobs.
    first, second : (p,) int
        The jobs of each pair, ``first < second``, ordered by first and then second.
    """

    jobs: int
    first: Ints
    second: Ints

    def among(self, jobs: Bools) -> Bools:
        """Return the mask of the pairs with both jobs in ``jobs``."""
        return np.asarray(jobs[self.first] & jobs[self.second])

    def partnered(self, which: Bools) -> Bools:
        """Return which jobs have one of the pairs."""
        found = np.zeros(self.jobs, dtype=bool)
        found[self.first[which]] = found[self.second[which]] = True
        return found

    def of_first(self, of_job: Floats) -> Floats:
        """Return the value of the first job of each pair."""
        return of_job[self.first]

    def sums(self, of_job: Floats) -> Floats:
        """Return the sum over both jobs of each pair."""
        return np.asarray(of_job[self.first] + of_job[self.second])

    def least(self, value: Floats, which: Bools) -> Floats:
        """Return the least value of each job's pairs, inf for none."""
        found = np.full(self.jobs, np.inf)
        np.minimum.at(found, self.first[which], value[which])
        np.minimum.at(found, self.second[which], value[which])
        return found

    def at(self, first: Ints, second: Ints) -> Ints:
        """Return the index of the values of pairs."""
        listed = self.first * self.jobs + self.second
        return np.searchsorted(listed, first * self.jobs + second)

    def matrix(self, value: Floats, which: Bools | None = None) -> Any:  # noqa: ANN401
        """Return the values in the form for ``match_pairs``."""
        chosen = slice(None) if which is None else which
        first, second, value = self.first[chosen], self.second[chosen], value[chosen]
        shape = self.jobs, self.jobs
        if self.jobs**2 > max(_SMALL, _FEW * len(value)):
            ends = np.append(first, second), np.append(second, first)
            return sp.csr_array((np.append(value, value), ends), shape=shape)
        full = np.full(shape, np.nan)
        full[first, second] = full[second, first] = value
        return full


PairSet: TypeAlias = PairMatrix | PairList


@dataclass(frozen=True)
class PairingProblem:
    """The plans of a round as matchings, with a linear value function.

    Attributes
    ----------
    pairs : PairList or PairMatrix
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
            "pair_value": self.pairs.matrix(self.pair),
            "single_value": self.alone,
            "gpus": self.gpus,
            "size": self.size,
            "required": self.required,
        }
