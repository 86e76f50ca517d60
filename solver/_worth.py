"""What it would be worth to the objective to start a job at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache

import numpy as np

from dovetail.formulations._rows import Rows
from dovetail.formulations.groups import NO_SHARE
from dovetail.formulations.refusals import Site
from dovetail.solver._findings import Finder, Finding

_ROUNDING = 1e-12
"""Part of the largest gain by which a change may differ from 0 and be rounding."""


_Held = tuple[int, Rows]
"""A group, and how many GPUs it holds."""


class Worth:
    """Weighs the start of a job against the slowdown of those that it would join.

    Parameters
    ----------
    finder : Finder
        Where findings come from.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._round = finder.round
        self._values = finder.values
        self._now = cache(self._group_at)

    def cost(self, index: int, finding: Finding) -> str:
        """Return why a plan may be better off without a job that starts as found; else nothing."""
        if self._values.two_stage:
            return ", but its weight is 0" if self._round.jobs.weight[index] == 0 else ""
        change = self._change(index, finding)
        if change > 0:
            return ""
        if change == 0:
            return f", but {self._values.name} would not rise"
        return f", but {self._values.name} would fall by {Decimal(f'{-change:.2g}'):f}"

    def _change(self, index: int, finding: Finding) -> float:
        """Return what the objective would gain if the job started as found."""
        sites = self._finder.sites
        met = {o.variant.job for pick in finding.picks for o in sites[pick.site].occupants}
        touched = {pick.site for pick in finding.picks}
        touched |= {k for job in met for k in self._finder.refusals.sites_of[job]}
        now = [(len(sites[k].gpus), self._now(sites[k])) for k in touched if sites[k].occupants]
        before, cost_before = self._gains(now)
        after, cost_after = self._gains(self._joined(index, finding, touched))
        parts = [gain - before.get(job, 0.0) for job, gain in after.items()]
        change = math.fsum([*parts, cost_after - cost_before])
        largest = max(map(abs, [*after.values(), *before.values(), cost_after]))
        return 0.0 if abs(change) <= _ROUNDING * largest else change

    def _gains(self, held: Iterable[_Held]) -> tuple[dict[int, float], float]:
        """Return the least gain of each job, and what the groups are worth beside that."""
        least: dict[int, float] = {}
        worth = 0.0
        for number, group in held:
            jobs = self._finder.refusals.job[group.variant]
            worth += number * float(self._values.value(group, jobs)[0])
            for job, gain in zip(jobs[0].tolist(), self._values.gains(group, jobs)[0], strict=True):
                least[job] = min(float(gain), least.get(job, math.inf))
        return least, worth

    def _joined(self, index: int, finding: Finding, touched: Iterable[int]) -> Iterator[_Held]:
        """Yield the groups that there would be on the GPUs of some sites."""
        left = {k: len(self._finder.sites[k].gpus) for k in touched}
        for pick in finding.picks:
            left[pick.site] -= pick.number
            group = self._finder.refusals.groups_of(index, np.array([pick.row]))
            yield (pick.number, group)
        for k, number in left.items():
            if number and self._finder.sites[k].occupants:
                yield (number, self._now(self._finder.sites[k]))

    def _group_at(self, site: Site) -> Rows:
        """Return the group that a site holds under the plan."""
        variant = [self._finder.refusals.number[o.variant] for o in site.occupants]
        return Rows(
            gpu_class=np.array([site.gpu_class]),
            variant=np.array([variant]),
            share=np.array([[o.share or NO_SHARE for o in site.occupants]]),
            slowdown=np.array([self._slowdowns_at(site)]),
            power_w=np.array([np.nan]),
        )

    def _slowdowns_at(self, site: Site) -> tuple[float, ...]:
        """Return the slowdown of each job at a site under the plan."""
        occupants = site.occupants
        if not any(map(self._finder.starts, occupants)):
            return self._round.resident_slowdowns(site.gpus[0])
        if len(occupants) == 1:
            return (self._round.alone(*occupants[0]) or 1.0,)
        workload, names = self._round.jobs.workload, self._round.names
        members = [(names[workload[o.variant.job]], o.share) for o in occupants]
        known = self._round.entries.find(site.model, members)
        if known is None:
            raise AssertionError("jobs that start together in a valid plan have a known slowdown")
        return known.stretched([o.variant.stretch for o in occupants]).slowdown
