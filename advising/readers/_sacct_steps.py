"""The use of GPUs that the steps of ``sacct`` tell.

``TRESUsageInMax`` of a step is the most that one of its tasks used at a sample, *over all GPUs of
the task*: ``gres/gpumem`` is memory, ``gres/gpuutil`` a percentage that exceeds 100 on several
GPUs. ``TRESUsageInTot`` is the sum of these maxima over the tasks and ``TRESUsageInAve`` their mean
over the tasks: none is a mean over time.

Source: Slurm's manuals of ``sacct`` and of generic resources, and the plugins ``gpu/nvml`` and
``jobacct_gather``, which add up the GPUs of a task.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.readers._frames import numbers
from dovetail.advising.readers._slurm import held_gpus
from dovetail.advising.readers._slurm_times import ends, moments

if TYPE_CHECKING:
    import pandas as pd

_AMOUNT: Final = re.compile(
    r"(?:^|,)gres/(gpumem|gpuutil)=([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)(?=,|$)"
)
_ONE_TASK: Final = (".batch", ".extern", ".interactive")
_UNITS: Final = {unit: 1024.0**k for k, unit in enumerate(("", "K", "M", "G", "T", "P"))}
_MIB: Final = 1024.0**2
_SHORTEST_S: Final = 0.5
"""Of a step, so that one that ended in the second of its start counts."""


class StepUse(NamedTuple):
    """What the steps of each job tell of its GPUs, NaN if nothing.

    Attributes
    ----------
    memory_max_mib, gpu_util_max : numpy.ndarray
        As in usage.
    summed : numpy.ndarray
        Whether the memory of a GPU is unknown because a task had several.
    """

    memory_max_mib: NDArray[np.float64]
    gpu_util_max: NDArray[np.float64]
    summed: NDArray[np.bool_]


def use_of_steps(
    frame: pd.DataFrame,
    job_of: NDArray[np.int64],
    gpus_of_jobs: NDArray[np.float64],
    source: str,
) -> StepUse:
    """Return the use of GPUs by jobs from the rows of their steps.

    Tasks of one GPU may have used their most at the same time, and so may steps that overlap and
    have more GPUs together than the job: both are added up.

    Parameters
    ----------
    frame : pandas.DataFrame
        The rows of steps.
    job_of : numpy.ndarray
        The number of each step's job.
    gpus_of_jobs : numpy.ndarray
        The GPUs of each job.
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        For a time or a number of tasks of another form.
    """
    count = len(gpus_of_jobs)
    summed = np.zeros(count, bool)
    if "TRESUsageInMax" not in frame or frame.empty:
        return StepUse(np.full(count, np.nan), np.full(count, np.nan), summed)
    gpus = _gpus(frame, gpus_of_jobs[job_of])
    tasks = _tasks(frame, gpus, source)
    most, total = (_Amounts.of(frame, f"TRESUsageIn{of}") for of in ("Max", "Tot"))
    memory_mib = _memory_mib(most, total, gpus, tasks)
    util = _util(most, total, gpus, tasks)
    start_s = moments(frame["Start"], source)
    end_s = np.fmax(ends(frame, start_s, source), start_s + _SHORTEST_S)
    steps = _StepTimes(job_of, np.nan_to_num(start_s, nan=-np.inf), end_s, gpus, gpus_of_jobs)
    summed[job_of[np.isnan(memory_mib) & ~np.isnan(most.gpumem)]] = True
    memory_max_mib = np.where(summed, np.nan, steps.most_at_once(memory_mib))
    return StepUse(memory_max_mib, np.minimum(steps.most_at_once(util), 1.0), summed)


def _gpus(frame: pd.DataFrame, of_job: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the GPUs of each step: those of its job if it does not list them."""
    by_text = {text: float(held_gpus(text).gpus) for text in frame["AllocTRES"].unique()}
    own = frame["AllocTRES"].map(by_text).to_numpy(np.float64)
    return np.maximum(np.where(own > 0, own, of_job), 1.0)


def _tasks(frame: pd.DataFrame, gpus: NDArray[np.float64], source: str) -> NDArray[np.float64]:
    """Return the number of tasks of each step, NaN if unknown; scripts and shells are one."""
    one = np.array([job.endswith(_ONE_TASK) for job in frame["JobID"]], bool)
    told = numbers(frame["NTasks"], source) if "NTasks" in frame else np.full(len(frame), np.nan)
    return np.where(one | (np.isnan(told) & (gpus == 1)), 1.0, told)


class _Amounts(NamedTuple):
    """The memory in bytes and the utilisation in per cent in a column, NaN if it lacks them."""

    gpumem: NDArray[np.float64]
    gpuutil: NDArray[np.float64]

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str) -> _Amounts:
        """Return what lists of resources say of GPUs."""
        found = np.full((2, len(frame)), np.nan)
        for row, text in enumerate(frame.get(name, ())):
            for what, number, unit in _AMOUNT.findall(text):
                found[cls._fields.index(what), row] = float(number) * _UNITS[unit]
        return cls(*found)


def _memory_mib(
    most: _Amounts, total: _Amounts, gpus: NDArray[np.float64], tasks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the most memory on a GPU of each step; NaN if a task had several GPUs."""
    on_a_gpu = most.gpumem * np.ceil(tasks / gpus)
    on_one = np.fmin(on_a_gpu, total.gpumem)
    several = (gpus > 1) & ~(tasks >= gpus)
    found = np.where(gpus == 1, on_one, np.where(several, np.nan, on_a_gpu))
    return np.where(most.gpumem == 0, 0.0, found) / _MIB


def _util(
    most: _Amounts, total: _Amounts, gpus: NDArray[np.float64], tasks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the most utilisation of each step over its GPUs, at most that of its busiest task."""
    percent = np.fmin(most.gpuutil * tasks, total.gpuutil)
    return np.minimum(np.where(np.isnan(percent), most.gpuutil, percent / gpus) / 100, 1.0)


class _StepTimes(NamedTuple):
    """When steps ran, and on how many GPUs."""

    job_of: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    gpus: NDArray[np.float64]
    gpus_of_jobs: NDArray[np.float64]

    def most_at_once(self, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the most of an amount by each job's steps that ran at a time, NaN if unknown."""
        known = ~np.isnan(amounts)
        found = np.full(len(self.gpus_of_jobs), -np.inf)
        np.maximum.at(found, self.job_of[known], amounts[known])
        shared = self._sums(self.gpus, known) > self.gpus_of_jobs
        found = np.where(shared, self._sums(amounts, known), found)
        return np.where(np.isinf(found), np.nan, found)

    def _sums(self, amounts: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the largest sum of each job's steps that ran at the same time."""
        times_s = np.concatenate([self.start_s[known], self.end_s[known]])
        jobs = np.tile(self.job_of[known], 2)
        changes = np.concatenate([amounts[known], -amounts[known]])
        order = np.lexsort((changes > 0, times_s, jobs))
        sums = np.full(len(self.gpus_of_jobs), -np.inf)
        np.maximum.at(sums, jobs[order], np.cumsum(changes[order]))
        return sums
