"""Runs by policy: means, spreads and the best of each metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunResult
from dovetail.instances._frames import frame
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins
from dovetail.solver.policies.registry import POLICIES

if TYPE_CHECKING:
    from pandas import DataFrame

FloatArray = NDArray[np.float64]

_SAME: Final = 1e-9
_USUAL_BASELINE: Final = "fifo"
_SUBJECT: Final = "dovetail"
"""The policy that is compared with Dovetail's other policies."""


@dataclass(frozen=True)
class PolicyRuns:
    """All runs of one policy, in the order of their seeds."""

    policy: str
    runs: tuple[RunResult, ...]

    @property
    def first(self) -> RunResult:
        """The run of the lowest seed, which charts show."""
        return self.runs[0]

    def values(self, metric: str) -> list[float]:
        """Return a metric of every run."""
        return [run.summary.get(metric, math.nan) for run in self.runs]

    def mean(self, metric: str) -> float:
        """Return the mean over the runs in which a metric exists; NaN if there is none."""
        known = [value for value in self.values(metric) if math.isfinite(value)]
        return fmean(known) if known else math.nan

    def spread(self, metric: str) -> float:
        """Return the standard deviation over runs; NaN for fewer than two."""
        known = [value for value in self.values(metric) if math.isfinite(value)]
        if len(known) < 2:
            return math.nan
        spread = stdev(known)
        return spread if spread > _SAME * abs(fmean(known)) else 0.0

    def jobs(self, column: str) -> FloatArray:
        """Return a column of the jobs of all runs, one after the other."""
        return np.concatenate([np.asarray(run.jobs[column], float) for run in self.runs])


@dataclass(frozen=True)
class RunsByPolicy:
    """The policies in the order in which they first occur, and the baseline.

    All have the same seeds; seeds that a policy lacks are in ``left_out``.
    """

    every: tuple[PolicyRuns, ...]
    baseline: PolicyRuns
    left_out: tuple[int, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[RunResult], baseline: str | None = None) -> RunsByPolicy:
        """Return runs by policy; by default the baseline is FIFO, or else the first policy.

        Raises
        ------
        UnsupportedError
            When there is no seed that all policies have.
        """
        common = common_seeds(runs)
        if not common:
            raise UnsupportedError("there is no seed for which all policies have a run")
        by_policy: dict[str, list[RunResult]] = {}
        for run in (run for run in runs if run.seed in common):
            by_policy.setdefault(run.policy, []).append(run)
        every = tuple(
            PolicyRuns(policy, tuple(sorted(group, key=lambda run: run.seed)))
            for policy, group in by_policy.items()
        )
        wanted = (group for group in every if group.policy == (baseline or _USUAL_BASELINE))
        return cls(every, next(wanted, every[0]), tuple(sorted({r.seed for r in runs} - common)))

    @property
    def outstanding(self) -> tuple[PolicyRuns, ...]:
        """The policy of Dovetail and the user's own, which charts show first."""
        baselines = _baselines()
        return tuple(
            group for group in self.every if group.policy.partition(":")[0] not in baselines
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of every policy, in order."""
        return tuple(run.seed for run in self.baseline.runs)

    def to_frame(self) -> DataFrame:
        """Return a row for each policy and seed with every metric, as a data frame of pandas."""
        runs = (run for group in self.every for run in group.runs)
        rows = ({"policy": run.policy, "seed": run.seed, **run.summary} for run in runs)
        return frame(rows, ("policy", "seed", *METRICS))

    def best(self, metric: str) -> tuple[PolicyRuns, ...]:
        """Return the groups with the best mean.

        There is none if neither direction is better, all are equal, or some group lacks the
        metric: a policy without violations has no excess.
        """
        better = METRICS[metric].better
        means = [(group, group.mean(metric)) for group in self.every]
        if not better or not all(math.isfinite(mean) for _, mean in means):
            return ()
        choose = min if better == "lower" else max
        top = choose(mean for _, mean in means)
        found = tuple(g for g, mean in means if math.isclose(mean, top, rel_tol=_SAME))
        return found if len(found) < len(means) else ()


def common_seeds(runs: Sequence[RunResult]) -> set[int]:
    """Return the seeds for which every policy has a run."""
    by_policy: dict[str, set[int]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, set()).add(run.seed)
    return set.intersection(*by_policy.values()) if by_policy else set()


def leads(group: PolicyRuns, other: PolicyRuns, metric: str) -> tuple[int, int]:
    """Return in how many of the common seeds a group beats another, and how many there are."""
    sign = 1 if METRICS[metric].better == "lower" else -1
    theirs = dict(zip((run.seed for run in other.runs), other.values(metric), strict=True))
    both = [
        (mine, theirs[run.seed])
        for run, mine in zip(group.runs, group.values(metric), strict=True)
        if run.seed in theirs and math.isfinite(mine) and math.isfinite(theirs[run.seed])
    ]
    return sum(sign * mine < sign * yours for mine, yours in both), len(both)


def gain(group: PolicyRuns, base: PolicyRuns, metric: str) -> float:
    """Return how many times better a policy's mean is than a baseline's; above 1 is better.

    NaN if one of the two does not exist, or is 0, so that no ratio is meaningful.
    """
    own, other = group.mean(metric), base.mean(metric)
    if own == 0 or other == 0:
        return math.nan
    return other / own if METRICS[metric].better == "lower" else own / other


def _baselines() -> set[str]:
    """Return the names of the policies that Dovetail provides for comparison."""
    brought = {name for name, each in plugins("policy").items() if each.is_own}
    return {*POLICIES, *brought} - {_SUBJECT}
