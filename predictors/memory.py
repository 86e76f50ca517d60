"""How much GPU memory a job may need, from profiles.

A profile gives the high-water mark of one run. The next run of the same workload may need more:
frameworks choose algorithms by timing them and cache freed memory. The marks of a workload are
modelled as draws from a normal distribution. The prior on its spread is worth five runs with a
spread of a tenth of their mean (``SPREAD``, ``WORTH``: an assumption, checked below). With the
conjugate prior on the variance the next mark of a workload with n marks x and mean m then follows
Student's t distribution::

    freedom = WORTH + n - 1
    s^2     = (WORTH * (SPREAD * m)^2 + sum of (x - m)^2) / freedom
    next    = m + s * sqrt(1 + 1/n) * t(freedom)

One mark alone gives a margin of 28 % at a confidence of 0.95, and 48 % at 0.99.

Two processes need the sum of their memory, as if both peaked at the same time. Co-scheML (2021,
sections 2 and 5.2) avoids pairs that run out of memory by profiling and monitoring both; it does
not say how it decides.

Checked on the 1,388 pairs of Lucid (RTX 3090; one mark of each configuration alone, one of each
pair together) by ``tests/predictors/test_memory.py``: at 0.8, 0.9, 0.95 and 0.99 the sum of the
two bounds, as ``with_memory`` uses it, holds for more than these fractions of the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance

SPREAD: Final = 0.1
"""The prior spread of the marks of one workload, relative to their mean."""

WORTH: Final = 5
"""How many runs the prior is worth."""


class NextMark(NamedTuple):
    """The memory that one more run may need: ``mean_mib + scale_mib * t(freedom)``.

    Attributes
    ----------
    mean_mib, scale_mib : float
        Centre and scale of the distribution.
    freedom : float
        Degrees of freedom of Student's t.
    largest_mib : float
        The largest mark so far.
    """

    mean_mib: float
    scale_mib: float
    freedom: float
    largest_mib: float

    def upper(self, confidence: float) -> float:
        """Return the memory not exceeded with this probability, at least the largest mark so far.

        Raises
        ------
        InputError
            When the confidence is not in (0, 1).
        """
        if not 0 < confidence < 1:
            raise InputError(f"must be > 0 and < 1, got {confidence}", "confidence")
        quantile = float(stdtrit(self.freedom, confidence))
        return max(self.largest_mib, self.mean_mib + self.scale_mib * quantile)


def next_mark(profiles: Iterable[SoloProfile]) -> NextMark:
    """Return the memory that one more run of a workload may need, from profiles of earlier runs.

    Parameters
    ----------
    profiles : iterable of SoloProfile
        Runs of one workload at one batch size; those without ``memory_mib`` are skipped.

    Raises
    ------
    InputError
        When no profile has a mark.
    """
    marks = np.array([p.memory_mib for p in profiles if p.memory_mib is not None])
    if not len(marks):
        raise InputError("must have a profile with memory_mib", "profiles")
    mean, freedom = float(marks.mean()), WORTH + len(marks) - 1
    squares = WORTH * (SPREAD * mean) ** 2 + float(((marks - mean) ** 2).sum())
    scale = math.sqrt(squares / freedom * (1 + 1 / len(marks)))
    return NextMark(mean, scale, freedom, float(marks.max()))


def with_memory(
    instance: Instance, data: DataSet, gpu_model: str, confidence: float = 0.95
) -> Instance:
    """Return the instance with ``memory_mib`` of its workloads from measured marks.

    Each is the upper bound of the next mark, in whole MiB, for the most demanding of several batch
    sizes and numbers of workers. Workloads without a mark stay as they are. A pair that fits into
    the memory of a GPU by these numbers then runs out of it with a probability below 2 * (1 -
    confidence).

    Parameters
    ----------
    instance : Instance
        The problem.
    data : DataSet
        Its profiles are used, including old ones.
    gpu_model : str
        Take the profiles of this GPU model.
    confidence : float
        The probability with which one job stays within its memory, in (0, 1).

    Raises
    ------
    InputError
        When the confidence is not in (0, 1).
    """
    needs: dict[str, float] = {}
    for (name, _, _), profiles in _runs(data, gpu_model).items():
        needs[name] = max(needs.get(name, 0.0), math.ceil(next_mark(profiles).upper(confidence)))
    workloads = {
        name: workload.replace(memory_mib=needs[name], memory_percent=None)
        if name in needs
        else workload
        for name, workload in instance.workloads.items()
    }
    return instance.replace(workloads=workloads)


def _runs(data: DataSet, gpu_model: str) -> dict[tuple[str, int, int | None], list[SoloProfile]]:
    """Return the profiles with a mark by workload, workers and batch size; caps change nothing."""
    runs: dict[tuple[str, int, int | None], list[SoloProfile]] = {}
    for profile in data.profiles:
        if profile.gpu_model == gpu_model and profile.memory_mib is not None:
            key = profile.workload, profile.workers, profile.batch_size
            runs.setdefault(key, []).append(profile)
    return runs
