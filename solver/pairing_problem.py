"""What ``match_pairs`` is asked in a round: which jobs may share, and what plans are worth.

Pairs of jobs are a list where they are few and a matrix where many. Values of pairs, and masks
that choose some of them, are arrays of the form that the pairs have.
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
from dovetail.formulations.groups import Groups
from dovetail.solver.pairing.splits import SplitValues

Floats = NDArray[np.floating[Any]]

_SMALL: Final = 500**2
"""Cells of a matrix that takes no time to fill."""

_FEW: Final = 20
"""A larger matrix is sparse where pairs are fewer than one in so many of its cells."""


@dataclass(frozen=True)
class PairMatrix:
    """Pairs in a matrix.

    Attributes
    ----------
    values : float array or SplitValues
        Whose matrix is made only where plans are sought in two stages.
    """

    values: Floats | SplitValues

    @cached_property
    def may_share(self) -> Bools:
        """Which jobs may share, symmetric; False on the diagonal."""
        return np.asarray(~np.isnan(np.asarray(self.values)))

    def among(self, jobs: Bools) -> Bools:
        """Return the mask of the pairs both of whose jobs are named."""
        return np.asarray(self.may_share & jobs & jobs[:, None])

    def partnered(self, which: Bools) -> Bools:
        """Return which jobs have one of the pairs."""
        return np.asarray(which.any(axis=1))

    def of_first(self, of_job: Floats) -> Floats:
        """Return what the first job of each pair has."""
        return of_job[:, None]

    def sums(self, of_job: Floats) -> Floats:
        """Return the sum over both jobs of each pair."""
        return np.add.outer(of_job, of_job)

    def least(self, value: Floats, which: Bools) -> Floats:
        """Return the least value of each job's pairs, inf for none."""
        return np.asarray(value.min(axis=1, where=which, initial=np.inf))

    def at(self, first: Ints, second: Ints) -> tuple[Ints, Ints]:
        """Return where the values of pairs are."""
        return first, second

    def matrix(
        self, value: Floats | SplitValues, which: Bools | None = None
    ) -> Floats | SplitValues:
        """Return the values as ``match_pairs`` takes them; ``value`` may be overwritten."""
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
        The jobs of each pair, ``first < second``, in the order of first and then second.
    """

    jobs: int
    first: Ints
    second: Ints

    def among(self, jobs: Bools) -> Bools:
        """Return the mask of the pairs both of whose jobs are named."""
        return np.asarray(jobs[self.first] & jobs[self.second])

    def partnered(self, which: Bools) -> Bools:
        """Return which jobs have one of the pairs."""
        found = np.zeros(self.jobs, dtype=bool)
        found[self.first[which]] = found[self.second[which]] = True
        return found

    def of_first(self, of_job: Floats) -> Floats:
        """Return what the first job of each pair has."""
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
        """Return where the values of pairs are."""
        listed = self.first * self.jobs + self.second
        return np.searchsorted(listed, first * self.jobs + second)

    def matrix(self, value: Floats, which: Bools | None = None) -> Any:  # noqa: ANN401
        """Return the values as ``match_pairs`` takes them."""
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
    """The plans of a round as matchings, and what they are worth in a linear function.

    Attributes
    ----------
    pairs : PairList or PairMatrix
        The jobs that may share.
    pair : float array or SplitValues
        The value of each pair, of the form that the pairs have.
    alone : (jobs,) float
        The value of each job alone; NaN where it may not be.
    constant : float
        The value of what is not to be decided.
    size : (jobs,) int
        GPUs that each job takes.
    gpus : int
        GPUs that they may take together.
    required : (jobs,) bool
        Jobs that must be placed.
    taken : callable
        Returns how often a matching takes each group, and the groups unless they are all those
        of the problem. Where it came too late for the running jobs, nothing else starts.
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
        """What ``match_pairs`` is asked for the largest value."""
        return {
            "pair_value": self.pairs.matrix(self.pair),
            "single_value": self.alone,
            "gpus": self.gpus,
            "size": self.size,
            "required": self.required,
        }
