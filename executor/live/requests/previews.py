"""Previews of what the service would do and why jobs wait, mostly computed outside its thread.

The service's thread only makes the decision, in at most one part in ``REST`` of its time. Plans and
explanations are computed from it in the threads of the requests, one at a time, and are cached for
later requests.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.live.requests.request_queue import RequestQueue
from dovetail.executor.live.rounds.deciding import REST, Decider
from dovetail.executor.live.rounds.planning import PlannedDecision, of_choice, plan_of
from dovetail.executor.system.clock import ServiceClock
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
    """Answers requests for previews; thread-safe.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only its sequence is read.
    clock, requests, decider
        Parts of the service.
    """

    def __init__(
        self, machine: StateMachine, clock: ServiceClock, requests: RequestQueue, decider: Decider
    ) -> None:
        self._machine, self._clock = machine, clock
        self._requests, self._decider = requests, decider
        self._one = threading.Lock()
        self._last: _Preview | None = None
        self._of_audience: dict[str, _Preview] = {}

    # ``audience``: the only user whose workloads may be named; empty: all users' may.

    def instance(self, audience: str = "") -> Instance:
        """Return the present round."""
        with self._one:
            return self._now(audience).choice.instance

    def plan(self, audience: str = "") -> Plan:
        """Return a plan of the policy's present decision."""
        with self._one:
            return self._plan(self._now(audience))

    def explain(self, job: str, audience: str = "") -> str:
        """Return why a job waits and what would let it start, or where it runs."""
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
        if last is None or not last.is_shown(job, self._machine.sequence, self._clock.now_s()):
            if last is not None:
                time.sleep(max(0.0, last.rest_until_s - self._clock.now_s()))
            last = self._last = self._requests.read(self._chosen)
            self._of_audience = {"": last}
        if audience not in self._of_audience:
            choice = last.choice.for_user(audience)
            self._of_audience[audience] = _Preview(choice, last.sequence, last.made_s, last.took_s)
        return self._of_audience[audience]

    def _chosen(self) -> _Preview:
        began = time.thread_time()
        choice = self._decider.choose()
        took_s = time.thread_time() - began
        return _Preview(choice, self._machine.sequence, self._clock.now_s(), took_s)
