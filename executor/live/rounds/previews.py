"""What rounds tell users: what the service would do and why jobs wait.

Most of it is computed outside the service's thread.

That thread only makes the decision, in at most one part in ``REST`` of its time. Plans and
explanations are computed from it in the threads of the requests, one at a time, and are cached for
later requests.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.states import OVER, QUEUED
from dovetail.executor.live.live import Live
from dovetail.executor.live.rounds.deciding import REST, Decider
from dovetail.executor.live.rounds.fair_share import Precedence
from dovetail.executor.live.rounds.lacking import Lacks, of_job, why_capped
from dovetail.executor.live.rounds.planning import PlannedDecision, of_choice, plan_of
from dovetail.executor.live.views import ServiceView
from dovetail.executor.pools.pool import awaited_text
from dovetail.formulations.budget import Budget
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan

TIME_LIMIT_S: Final = 5.0
"""Seconds that a plan's reasons, or an explanation, may take."""

_COSTLY_S: Final = 0.1
_FRESH_S: Final = 60.0
"""Seconds for which a preview is valid if nothing happens; only the work done changes meanwhile."""


@dataclass
class _Preview:
    """A decision, with the plan and the texts computed from it so far."""

    choice: PlannedDecision
    sequence: int
    made_s: float
    took_s: float
    plan: Plan | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def is_shown(self, job: str, sequence: int, now_s: float) -> bool:
        """Return whether this is recent enough for a job (empty: for all jobs)."""
        if self.sequence == sequence:
            return now_s < self.made_s + _FRESH_S
        known = not job or job in self.choice.instance.jobs_by_id
        return known and self.took_s > _COSTLY_S and now_s < self.rest_until_s

    @property
    def rest_until_s(self) -> float:
        """When the service's thread may make a decision for a preview again."""
        return self.made_s + REST * self.took_s


class Previews:
    """Answers what users ask of rounds; thread-safe.

    Parameters
    ----------
    live : Live
        What the parts of the service share.
    decider : Decider
        Makes decisions; used only for previews here.
    """

    def __init__(self, live: Live, decider: Decider) -> None:
        self._live, self._decider = live, decider
        self._one = threading.Lock()
        self._last: _Preview | None = None
        self._of_audience: dict[str, _Preview] = {}
        self._lacked: tuple[tuple[int, str, int], Lacks] | None = None

    def noted(self, service: ServiceView) -> ServiceView:
        """Return the view of the service with the last decision and the evidence for shares."""
        decider, evidence = self._decider, self._decider.gatherer.view()
        return replace(service, decide_s=decider.took_s, gap=decider.gap, evidence=evidence)

    # The caller holds the lock of the state machine.

    def waiting_for(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""
        return self._lacks().of_job(job)

    def why_capped(self, job: LiveJob) -> str:
        """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""
        return why_capped(self._live.beliefs, job)

    def _lacks(self) -> Lacks:
        """Return what waiting jobs lack, recomputed after an event and each second."""
        live = self._live
        now = live.machine.sequence, self._stalled(), int(live.now_s)
        if self._lacked is None or self._lacked[0] != now:
            self._lacked = now, Lacks.of(live.beliefs, live.dry_run, now[1])
        return self._lacked[1]

    def _stalled(self) -> str:
        """Return what prevents any start, even on idle devices; empty if nothing."""
        troubles = self._live.troubles
        if "disk" in troubles:
            return "room on the disk of the service, which is full"
        if "journal" in troubles:
            return "the journal of the service, which cannot be written"
        if "world" in troubles or self._decider.policy.trouble:
            return "a decision of the policy, which fails"
        return ""

    # The present round. ``audience`` is the only user whose workloads may be named; empty: all
    # users' may.

    def instance(self, audience: str = "") -> Instance:
        """Return the present round."""
        with self._one:
            return self._now(audience).choice.instance

    def plan(self, audience: str = "") -> Plan:
        """Return a plan of the policy's present decision."""
        with self._one:
            return self._plan(self._now(audience))

    def explain(self, job: LiveJob, audience: str = "") -> str:
        """Return why a job waits and what would let it start, or where it runs."""
        live = self._live
        with live.lock:
            text, over = of_job(job, live.beliefs, self._stalled()), job.state in OVER
            # While no device takes jobs, other remedies are useless.
            waits = job.state in QUEUED
            closed = waits and self._lacks().closed
        if waits and not job.barred:
            text = "\n".join(filter(None, [text, awaited_text(live.pool)]))
        if over or closed or job.barred:
            return text
        lines = [text, self._of_round(job.id, audience)]
        if waits and live.dry_run:
            lines.append("this is a dry run: nothing is started")
        return "\n".join(lines)

    def _of_round(self, job: str, audience: str) -> str:
        with self._one:
            preview = self._now(audience, job)
            if job not in preview.texts:
                budget = Budget.of(TIME_LIMIT_S)
                plan = self._plan(preview)
                preview.texts[job] = of_choice(job, preview.choice, plan, budget)
            return preview.texts[job]

    def _plan(self, preview: _Preview) -> Plan:
        if preview.plan is None:
            preview.plan = plan_of(preview.choice, Budget.of(TIME_LIMIT_S))
        return preview.plan

    def _now(self, audience: str, job: str = "") -> _Preview:
        last = self._last
        if last is None or not last.is_shown(job, self._live.machine.sequence, self._live.now_s):
            if last is not None:
                time.sleep(max(0.0, last.rest_until_s - self._live.now_s))
            last = self._last = self._live.requests.read(self._chosen)
            self._of_audience = {"": last}
        if audience not in self._of_audience:
            choice = last.choice.for_user(audience)
            self._of_audience[audience] = _Preview(choice, last.sequence, last.made_s, last.took_s)
        return self._of_audience[audience]

    def _chosen(self) -> _Preview:
        live, decider, began = self._live, self._decider, time.thread_time()
        before = Precedence.of(live.machine)
        instance, decision, objective = decider.choose()
        choice = PlannedDecision.of(
            instance, decider.view.state, decision, decider.policy.name, objective
        )
        jobs = [live.machine.jobs[job.id] for job in choice.instance.jobs]
        choice = choice._replace(
            notice=live.pool.notice,
            alone=frozenset(job.id for job in jobs if not live.machine.may_share(job)),
            before={job.id: rule for job in jobs if (rule := before.ahead(job)) is not None},
        )
        took_s = time.thread_time() - began
        return _Preview(choice, live.machine.sequence, live.now_s, took_s)
