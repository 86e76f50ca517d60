"""Policies beside each other: means and spreads over seeds, and which is best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.executor.simulation.metrics import METRICS
from dovetail.executor.simulation.results import RunSummary

_EQUAL = 1e-9


@dataclass(frozen=True)
class PolicyRow:
    """The runs of a policy, one for each seed."""

    policy: str
    runs: tuple[RunSummary, ...]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the seeds in which it exists; NaN if in none."""
        values = self._values(metric)
        return statistics.fmean(values) if values else math.nan

    def deviation(self, metric: str) -> float:
        """Return the standard deviation over the seeds (of a sample); NaN of fewer than two."""
        values = self._values(metric)
        return statistics.stdev(values) if len(values) > 1 else math.nan

    def _values(self, metric: str) -> list[float]:
        return [run.summary[metric] for run in self.runs if math.isfinite(run.summary[metric])]


def policy_rows(runs: Iterable[RunSummary]) -> tuple[PolicyRow, ...]:
    """Return a row for each policy, in the order of their first runs."""
    by_policy: dict[str, list[RunSummary]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return tuple(PolicyRow(policy, tuple(found)) for policy, found in by_policy.items())


def best(rows: Sequence[PolicyRow], metric: str) -> frozenset[str]:
    """Return the policies with the best mean; nobody where neither way is better, or all equal."""
    better = METRICS[metric].better
    means = {row.policy: row.mean(metric) for row in rows if not math.isnan(row.mean(metric))}
    if not better or len(means) < 2:
        return frozenset()
    top = min(means.values()) if better == "lower" else max(means.values())
    found = frozenset(
        policy for policy, mean in means.items() if math.isclose(mean, top, rel_tol=_EQUAL)
    )
    return frozenset() if len(found) == len(means) else found


def gain(row: PolicyRow, base: PolicyRow, metric: str) -> float:
    """Return how many times better a policy's mean is than a baseline's; above 1 is better.

    Infinite where only the policy's is the best that can be (0); NaN where both are, or where
    one does not exist.
    """
    own, other = row.mean(metric), base.mean(metric)
    above, below = (other, own) if METRICS[metric].better == "lower" else (own, other)
    if below == 0:
        return math.inf if above > 0 else math.nan
    return above / below
