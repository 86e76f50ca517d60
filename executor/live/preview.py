"""What the policy would do now, for those who ask before it is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.live.fair_share import Precedence, without_unfair_stops
from dovetail.executor.live.guarded_policy import GuardedPolicy, asked
from dovetail.executor.live.left_behind import LeftBehind
from dovetail.executor.live.planning import plan_of
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.profiling_queue import ProfilingQueue, first_starts
from dovetail.executor.live.starts import CannotStartError, in_groups, place
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.system.clock import ServiceClock
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.solver.policies import Start, objective_of, policy_named

REST: Final = 4.0
"""How many times as long as a decision took the service's thread does other things after it."""

_COSTLY_S: Final = 0.1


class Round(NamedTuple):
    """A round and its plan, and until when they are good enough for others who ask."""

    instance: Instance
    plan: Plan
    until_s: float


class Preview:
    """Decides without carrying out.

    Parameters
    ----------
    machine, clock, pool
        The service's.
    view : PolicyView
        The state that the policy decides on.
    policy : GuardedPolicy
        The service's; a fresh one of its name is asked.
    looks : ProfilingQueue
        What comes before the policy's choice.
    left : LeftBehind
        Runs without a job, on devices that take no start.
    """

    def __init__(
        self,
        machine: StateMachine,
        clock: ServiceClock,
        pool: NodePool,
        view: PolicyView,
        policy: GuardedPolicy,
        looks: ProfilingQueue,
        left: LeftBehind,
    ) -> None:
        self._machine, self._clock, self._pool, self._view = machine, clock, pool, view
        self._policy, self._profiling, self._left = policy, looks, left
        self._last: Round | None = None

    def recent(self, job: str = "") -> Round | None:
        """Return the last round, if it took long and is not old; it has to know a job.

        From any thread.
        """
        found = self._last
        if found is None or self._clock.now_s() > found.until_s:
            return None
        return found if not job or job in found.instance.jobs_by_id else None

    def instance(self) -> Instance:
        """Return the round as it is now; from the service's thread, as ``round`` is."""
        self._view.renew(self._clock.now_s())
        return self._view.instance()

    def round(self, job: str = "") -> Round:
        """Return the round and what the policy would do.

        A look that costs much is not taken for each who asks: it takes the time of the thread
        that serves, of which it has one part in ``REST``.
        """
        # Several may have asked at the same time.
        recent = self.recent(job)
        if recent is not None:
            return recent
        began = time.thread_time()
        instance, before = self.instance(), Precedence.of(self._machine)
        state = self._view.state
        chosen = first_starts(self._machine, state, self._profiling, self._policy)
        first = [start for starts, _ in chosen for start in self._entered(starts)]
        policy = policy_named(self._policy.name)
        decision = without_unfair_stops(asked(policy, state), self._machine)
        decision = decision._replace(starts=(*first, *decision.starts))
        plan = plan_of(
            instance,
            state,
            decision,
            self._policy.name,
            objective_of(policy),
            lambda job: not self._machine.may_share(self._machine.jobs[job]),
            lambda job: before.told(self._machine.jobs[job]),
            self._pool.notice,
        )
        took_s = time.thread_time() - began
        kept_s = REST * took_s if took_s > _COSTLY_S else -1.0
        self._last = Round(instance, plan, self._clock.now_s() + kept_s)
        return self._last

    def _entered(self, starts: Sequence[Start]) -> list[Start]:
        """Enter starts into the state, and return those that break no rule."""
        found: list[Start] = []
        for group in in_groups(starts):
            with suppress(CannotStartError):
                place(self._view, group, self._left.held)
                found += group
        return found
