"""Rounds of the live service: when a decision is due, and how it is carried out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.live.live import Live
from dovetail.executor.live.rounds.fair_share import without_unfair_stops
from dovetail.executor.live.rounds.gathering import Gatherer
from dovetail.executor.live.rounds.guarded_policy import AGAIN_S, GuardedPolicy, asked
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.live.rounds.profiling_queue import ProfilingQueue, first_starts
from dovetail.executor.live.rounds.starts import (
    CannotStartError,
    in_groups,
    is_fresh,
    place,
    require_space,
    reservations,
    stop_reason,
)
from dovetail.executor.second_opinion import unlawful
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.solver.policies.policy import Decision, Start, objective_of
from dovetail.solver.policies.registry import policy_named
from dovetail.solver.policies.services import services_kept
from dovetail.solver.policies.state import Reservation

REST: Final = 4.0
"""After a decision, the service's thread does other things for this many times its length."""

_SOONEST_S: Final = 0.1
_QUIET: Final = frozenset(
    {
        "recorded",
        "rank_started",
        "rank_ready",
        "placed",
        "reserved",
        "measuring_begun",
        "measuring_stopped",
    }
)
_PATIENT: Final = _QUIET | {"submitted"}

_LOG: Final = logging.getLogger("dovetail.live")


class Decider:
    """Prepares, carries out and previews the decisions of a policy.

    Its methods are called from the service's thread. No job starts while the disk of the state
    directory is almost full.

    Parameters
    ----------
    live : Live
        What the parts of the service share.
    policy : GuardedPolicy
        The policy; previews use a new policy of the same name.
    gatherer : Gatherer
        Measures shares on idle devices, and makes way for starts.
    look_s : float
        The longest duration of a profile, in seconds.

    Attributes
    ----------
    view : PolicyView
        The state that the policy decides on.
    took_s, gap : float or None
        Duration of the last decision, and the gap that it proved.
    """

    def __init__(
        self, live: Live, policy: GuardedPolicy, gatherer: Gatherer, look_s: float
    ) -> None:
        self._live, self._machine = live, live.machine
        self.policy, self.gatherer = policy, gatherer
        self.view = PolicyView(live.beliefs)
        self._queue = ProfilingQueue(live.machine, look_s)
        self.took_s: float | None = None
        self.gap: float | None = None
        self._due_s = self._rest_until_s = -math.inf
        self._learned = live.beliefs.of_workloads
        self._first_s = 0.0

    # When a decision is due.

    def next_s(self) -> float:
        """Return when the next decision is due, on the service's clock.

        That is at once after an event that may change the decision, or newer beliefs. If there are
        only new jobs, it is once the thread has rested from the last decision.
        """
        ledger = self._live.ledger
        kinds, ledger.applied = ledger.applied, set()
        learned = self._live.beliefs.of_workloads is not self._learned
        if learned or not _PATIENT.issuperset(kinds):
            self.decide_now()
        elif not _QUIET.issuperset(kinds):
            self._decide_by(self._rest_until_s)
        return self._due_s

    def decide_now(self) -> None:
        """Request the next decision as soon as possible."""
        self._due_s = -math.inf

    def _decide_by(self, at_s: float) -> None:
        self._due_s = min(self._due_s, at_s)

    # A decision.

    def prepare(self) -> bool:
        """Bring the policy's state up to date; return whether that succeeded."""
        self._due_s = math.inf
        self._learned = self._live.beliefs.of_workloads
        try:
            self.view.renew(self._live.now_s)
        except Exception as error:
            self._live.troubles.report("world", error)
            self._decide_by(self._live.now_s + AGAIN_S)
            return False
        self._live.troubles.clear("world")
        return True

    def begin(self) -> bool:
        """Start jobs that go before the policy's choice; return whether the policy may decide."""
        try:
            require_space(self._live.directory)
        except (CannotStartError, OSError) as error:
            return self._failed("disk", error)
        self._live.troubles.clear("disk")
        began = time.perf_counter()
        try:
            chosen = first_starts(self._machine, self.view.state, self._queue, self.policy)
            with closing(chosen) as first:
                for starts, looks in first:
                    begun = self._start_all(starts)
                    if looks and begun:
                        self._queue.note(begun[0], self.view.state)
        except JournalError as error:
            return self._failed("journal", error)
        self._first_s = time.perf_counter() - began
        return True

    def _failed(self, kind: str, error: Exception) -> bool:
        self._live.troubles.report(kind, error)
        self._decide_by(self._live.troubles.again_s)
        return False

    def note(self, decision: Decision, decide_s: float) -> None:
        """Plan the next decision after one that took ``decide_s`` seconds."""
        self.took_s = decide_s + self._first_s
        self.gap = decision.proof.gap if decision.proof else None
        now_s = self._live.now_s
        self._rest_until_s = now_s + REST * self.took_s
        if decision.wake_s is not None:
            # A wake-up time in the past would never let the service rest.
            self._decide_by(max(decision.wake_s, now_s + _SOONEST_S))

    def carry_out(self, decision: Decision) -> None:
        """Stop and place jobs as decided, except starts that the checker refuses."""
        try:
            decision = self._lawful(without_unfair_stops(decision, self._machine))
            for job in decision.stops:
                run = self._machine.jobs[job.id].run
                if run is not None and run.spec.requeue:
                    at_s, why = self._live.now_s, stop_reason(decision, job)
                    stop = events.StopDecided(at_s=at_s, run=run.id, reason=why, then="wait")
                    self._live.ledger.commit([stop])
            # Devices that a stop frees are busy until its processes are gone.
            freed = {gpu for job in decision.stops for gpu in job.gpus}
            at_once = [start for start in decision.starts if freed.isdisjoint(start.gpus)]
            self._start_all(at_once)
            later = [start for start in decision.starts if start not in at_once]
            kept = self._kept(later) if decision.proof else {}
            # The state is older than the starts, and the journal's time never goes back.
            now_s = self._live.now_s
            self._live.ledger.commit(reservations(self.view, kept | {**decision.reserved}, now_s))
            self._live.pool.lack(sum(job.spec.workers for job in self._machine.queued.values()))
        except JournalError as error:
            self._failed("journal", error)

    def _kept(self, starts: Sequence[Start]) -> dict[int, Reservation]:
        """Return reservations of devices that are being freed, no device twice.

        Otherwise the stopped job might get its devices back in the next round.
        """
        found, taken = dict[int, Reservation](), set[int]()
        for start in starts:
            if taken.isdisjoint(start.gpus):
                taken.update(start.gpus)
                found[start.job.number] = Reservation(start.gpus, self.view.state.now)
        return found

    def _lawful(self, decision: Decision) -> Decision:
        """Return a decision without the stops that break a rule, if its policy keeps the rules."""
        if decision.proof is None:
            return decision
        state, stays = self.view.state, set[int]()
        for job in decision.stops:
            for why in unlawful(state, [job]):
                _LOG.warning("%s", why)
                stays.update(job.gpus)
        rest = decision.without(lambda start: not stays.isdisjoint(start.gpus))
        return rest._replace(stops=tuple(job for job in rest.stops if stays.isdisjoint(job.gpus)))

    def _start_all(self, starts: Sequence[Start]) -> list[Start]:
        """Place jobs, and return the starts that were carried out."""
        begun: list[Start] = []
        for group in in_groups(starts):
            if self._awaits_device(group):
                continue
            if self._start(group):
                begun += group
            elif len(group) > 1 or group[0].shares:
                # Otherwise the policy would decide the same again, and no job would ever start.
                alone = (start._replace(shares=None) for start in group)
                begun += [
                    one for one in alone if is_fresh(self.view.state, one) and self._start([one])
                ]
        return begun

    def _awaits_device(self, group: Sequence[Start]) -> bool:
        """Return whether starts must wait until a device is free of what measures a share there.

        That is being stopped then, and the next decision follows its end.
        """
        ids = self.view.state.machines.gpu_ids
        gpus = {ids[gpu] for start in group for gpu in start.gpus if 0 <= gpu < len(ids)}
        stops = self.gatherer.make_way(gpus, self._live.now_s, group[0].job.id)
        if stops:
            self._live.ledger.commit(stops)
        return stops is not None

    def _start(self, group: Sequence[Start]) -> bool:
        """Place jobs that start together unless they break a rule; return True if placed."""
        try:
            placed = place(self.view, group, self._live.left.held)
        except CannotStartError as error:
            _LOG.warning("%s", error, exc_info=error.__cause__)
            return False
        now = {"at_s": self._live.now_s}
        self._live.ledger.commit([one.model_copy(update=now) for one in placed])
        self._queue.begin(self._machine.jobs[start.job.id] for start in group)
        return True

    # Progress and previews.

    def note_progress(self, now_s: float) -> None:
        """Update the work that jobs have done from the readings of this moment."""
        for run, reading in self._live.readings.now.items():
            if reading.iterations is not None:
                job = run.rpartition(".")[0]
                self.view.note_progress(job, reading.iterations, reading.total, now_s)

    def choose(self) -> tuple[Instance, Decision, ObjectiveName]:
        """Return the present round, and the policy's decision in it, which is not carried out.

        The policy's objective comes with it.
        """
        self.view.renew(self._live.now_s)
        instance, state = self.view.instance(), self.view.state
        chosen = first_starts(self._machine, state, self._queue, self.policy)
        first = [start for starts, _ in chosen for start in self._entered(starts)]
        policy = policy_named(self.policy.name)
        decision = services_kept(state, asked(policy, state))
        decision = without_unfair_stops(decision, self._machine)
        decision = decision._replace(starts=(*first, *decision.starts))
        return instance, decision, objective_of(policy)

    def _entered(self, starts: Sequence[Start]) -> list[Start]:
        """Enter the starts that break no rule into the state, and return them."""
        found: list[Start] = []
        for group in in_groups(starts):
            with suppress(CannotStartError):
                place(self.view, group, self._live.left.held)
                found += group
        return found
