"""What would start within the next hour, if jobs end when they are expected to: an estimate.

The present decision of the policy is rolled forward: at the next expected end, the jobs that end
leave, and a round of the jobs that are left is solved (``Instance.after``, as ``dovetail next``
does). Ends follow from the rate that was measured and the iterations that a job reports, or from
its owner's estimate. A service has no end; that of any other job is unknown, and nothing is assumed
about it. A start takes no time here, and fair shares, reservations and new jobs are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dovetail.executor.live.views import HORIZON_S, ExpectedStay, HourAhead
from dovetail.formulations.budget import Budget
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver.rounds import solve

MOST_ROUNDS: Final = 12
"""Rounds that are solved for an outlook."""

MOST_JOBS: Final = 200
"""Jobs up to which rounds are rolled forward; with more, only the present decision is shown."""

TIME_LIMIT_S: Final = 4.0
"""Seconds that an outlook may take."""

SERVICE: Final = "service"
"""By what it is known that a service has no end (``ExpectedEnd.by``)."""

_ROUND_S: Final = 1.0
_LEAST_S: Final = 1.0


class ExpectedEnd(NamedTuple):
    """How much work a job has left.

    Attributes
    ----------
    alone_s : float
        Seconds of work left, alone; infinity if unknown.
    by : str
        From what this is known: ``rate``, ``estimate``, ``service`` (it has no end), or empty.
    now_s : float
        Seconds until a running job ends at its present rate; infinity if it is not measured.
    """

    alone_s: float = math.inf
    by: str = ""
    now_s: float = math.inf


def outlook(
    instance: Instance,
    assigned: Sequence[Assignment],
    objective: ObjectiveName,
    expected: Mapping[str, ExpectedEnd],
    made_s: float,
) -> HourAhead:
    """Roll a decision forward.

    Parameters
    ----------
    instance : Instance
        The present round.
    assigned : sequence of Assignment
        Who runs after the policy's present decision.
    objective : ObjectiveName
        The objective of later rounds.
    expected : mapping of str to ExpectedEnd
        For each job of the round.
    made_s : float
        The service's clock.
    """
    rolling = _Rolling(instance, objective, expected)
    why = rolling.roll(assigned)
    stays = sorted(rolling.stays.values(), key=lambda stay: (stay.from_s, stay.job))
    waiting = tuple(job.id for job in instance.jobs if job.id not in rolling.stays)
    return HourAhead(made_s, tuple(stays), waiting, rolling.at_s, why)


class _Rolling:
    """The round at a moment, and all stays so far."""

    def __init__(
        self, instance: Instance, objective: ObjectiveName, expected: Mapping[str, ExpectedEnd]
    ) -> None:
        self.instance, self._objective, self._expected = instance, objective, expected
        self.at_s = 0.0
        self.stays: dict[str, ExpectedStay] = {}
        self._left_s: dict[str, float] = {
            job.id: expected.get(job.id, ExpectedEnd()).alone_s for job in instance.jobs
        }

    def roll(self, assigned: Sequence[Assignment]) -> str:
        """Roll forward up to the horizon; return why it ends earlier, or nothing."""
        budget = Budget.of(TIME_LIMIT_S)
        plan = Plan(assignments=tuple(assigned))
        for number in range(MOST_ROUNDS + 1):
            self._enter(plan, first=number == 0)
            ends = self._ends()
            open_ended = sum(
                math.isinf(end_s) and self.stays[job].by != SERVICE for job, end_s in ends.items()
            )
            next_s = min(ends.values(), default=math.inf)
            if next_s > HORIZON_S:
                self.at_s = HORIZON_S
                return _unknown(open_ended, bool(self._waiting(plan)))
            if not self._waiting(plan):
                # Nothing is left to start: the other ends are known already.
                self._end_all(ends)
                self.at_s = HORIZON_S
                return ""
            if len(self.instance.jobs) > MOST_JOBS:
                return f"more than {MOST_JOBS} jobs take part"
            if number == MOST_ROUNDS:
                return f"more than {MOST_ROUNDS} rounds would have to be solved"
            if budget.passed:
                return f"it would take longer than {TIME_LIMIT_S:g} s"
            gone = [job for job, end_s in ends.items() if end_s <= next_s + _LEAST_S]
            self._pass(next_s, gone)
            try:
                self.instance = self.instance.after(plan, gone)
                plan = self._solved(budget)
            except DovetailError as error:
                return f"the next round is not solved: {error}"
        return ""

    def _waiting(self, plan: Plan) -> list[str]:
        placed = {row.job for row in plan.assignments}
        return [job.id for job in self.instance.jobs if job.id not in placed]

    def _enter(self, plan: Plan, first: bool) -> None:
        """Note who runs from now on."""
        slowed = self._slowdowns(plan)
        here = self.instance.jobs_by_id
        started = {gpu for row in plan.assignments if not here[row.job].running for gpu in row.gpus}
        for row in plan.assignments:
            job = self.instance.jobs_by_id[row.job]
            known = self._expected.get(row.job, ExpectedEnd())
            if row.job not in self.stays:
                shares = tuple(row.share) if row.share else (None,) * len(row.gpus)
                self.stays[row.job] = ExpectedStay(
                    job=row.job,
                    gpus=tuple(row.gpus),
                    shares=shares,
                    from_s=self.at_s,
                    to_s=math.inf,
                    by=known.by,
                    starts=not job.running,
                )
            stay = self.stays[row.job]
            stay.to_s = self.at_s + self._left_s[row.job] * slowed.get(row.job, math.inf)
            if first and job.running and started.isdisjoint(row.gpus):
                # Its rate was measured with the co-runners that it keeps.
                stay.to_s = min(known.now_s, stay.to_s) if known.by != "rate" else known.now_s

    def _slowdowns(self, plan: Plan) -> Mapping[str, float]:
        try:
            return check(self.instance, plan, self._objective).job_slowdown
        except DovetailError:
            return {}

    def _ends(self) -> dict[str, float]:
        here = self.instance.jobs_by_id
        return {job: stay.to_s for job, stay in self.stays.items() if job in here}

    def _end_all(self, ends: Mapping[str, float]) -> None:
        for job, end_s in ends.items():
            self.stays[job].to_s = end_s

    def _pass(self, next_s: float, gone: Sequence[str]) -> None:
        """Let time pass: jobs do their part of the work that is left."""
        for job, stay in self.stays.items():
            if job in gone:
                stay.to_s = next_s
            elif math.isfinite(stay.to_s) and stay.to_s > self.at_s:
                self._left_s[job] *= (stay.to_s - next_s) / (stay.to_s - self.at_s)
        self.at_s = next_s

    def _solved(self, budget: Budget) -> Plan:
        limit_s = max(min(_ROUND_S, budget.left_s), 0.0)
        return solve(self.instance, self._objective, time_limit=limit_s, explain=False).plan


def _unknown(open_ended: int, some_wait: bool) -> str:
    """Return what is not known of the hour: jobs could start when these end."""
    if not open_ended or not some_wait:
        return ""
    if open_ended == 1:
        return "the end of a running job is unknown"
    return f"the ends of {open_ended} running jobs are unknown"
