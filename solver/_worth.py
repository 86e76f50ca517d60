"""What it would be worth to the objective to start a job at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from dovetail.formulations.values import JobValues
from dovetail.solver._findings import Finder, Finding, Pick
from dovetail.solver._sites import Site


class Worth:
    """Weighs the start of a job against the slowdown of those that it would join.

    Parameters
    ----------
    finder : Finder
        Where findings come from.
    values : JobValues
        The objective.
    """

    def __init__(self, finder: Finder, values: JobValues) -> None:
        self._sites = finder.sites
        self._round = finder.round
        self._values = values
        self._now = cache(self._slowdowns_at)

    def told(self, index: int, finding: Finding) -> str:
        """Return why the plan may be better off without a job that could start at once."""
        change = self._change(index, finding)
        if self._values.two_stage and self._round.jobs[index].weight == 0:
            return ", but its weight is 0"
        if self._values.two_stage or change > 0:
            return "; a plan with it would be better, if by less than the gap shown"
        if change == 0:
            return f", but {self._values.name} would not rise"
        return f", but {self._values.name} would fall by {-change:.2g}"

    def _change(self, index: int, finding: Finding) -> float:
        """Return what the objective would gain if the job started as found."""
        model = self._sites.all[finding.binding.site].model
        after = self._after(finding)
        after[index] = max(pick.way.slowdown for pick in finding.picks)
        gained = sum(self._gain(job, slowdown, model) for job, slowdown in after.items())
        return gained - sum(
            self._gain(job, self._before(job), model) for job in after if job != index
        )

    def _gain(self, job: int, slowdown: float, model: str) -> float:
        return float(self._values.gain(np.array([job]), np.array([slowdown]), model)[0])

    def _before(self, job: int) -> float:
        return max(self._now(site)[job] for site in self._sites.of[job])

    def _after(self, finding: Finding) -> dict[int, float]:
        """Return the slowdown that each co-runner of the job would have."""
        joined = {self._sites.all[pick.way.site]: pick for pick in finding.picks}
        met = {o.variant.job for site, pick in joined.items() for o in pick.way.others(site)}
        return {job: max(self._seen(job, joined)) for job in met}

    def _seen(self, job: int, joined: Mapping[Site, Pick]) -> Iterator[float]:
        """Yield the slowdowns that a placed job would have on its GPUs."""
        for site in self._sites.of[job]:
            pick = joined.get(site)
            if pick is None or pick.number < len(site.gpus):
                yield self._now(site)[job]
            if pick is not None:
                jobs = [other.variant.job for other in pick.way.others(site)]
                yield pick.way.slowed(jobs.index(job))[0]

    def _slowdowns_at(self, site: Site) -> dict[int, float]:
        """Return the slowdown of each job at a site under the plan."""
        occupants = site.occupants
        jobs = [o.variant.job for o in occupants]
        if not any(o.starting for o in occupants):
            return dict(zip(jobs, self._round.resident_slowdowns(site.gpus[0]), strict=True))
        if len(occupants) == 1:
            alone = self._round.alone(occupants[0].variant, occupants[0].share)
            return {jobs[0]: alone or 1.0}
        members = [(self._round.jobs[o.variant.job].workload, o.share) for o in occupants]
        known = self._round.entries.find(site.model, members)
        stretch = [o.variant.stretch for o in occupants]
        return dict(zip(jobs, known.stretched(stretch).slowdown, strict=True)) if known else {}
