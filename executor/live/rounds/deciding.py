"""Rounds of the live service: when a decision is due, and how it is carried out.

Some jobs start before the policy's choice, so that their workloads are profiled: until a workload
has a profile, none of its jobs may share and their length is unknown. The first job of a workload
is therefore worth more than a policy that compares lengths can see.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import WorkloadKey
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.live import Live
from dovetail.executor.live.rounds.fair_share import turns, without_unfair_stops
from dovetail.executor.live.rounds.gathering import Gatherer
from dovetail.executor.live.rounds.policy_view import PolicyView
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
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision, Policy, Start, decided, objective_of
from dovetail.solver.policies.registry import policy_named
from dovetail.solver.policies.services import services_first, services_kept
from dovetail.solver.policies.state import Reservation, State

AGAIN_S: Final = 60.0
"""Seconds after which a policy that failed is asked again, unless something happens earlier."""

_LOG: Final = logging.getLogger("dovetail.live")


class GuardedPolicy:
    """A policy by name; a decision that fails changes nothing.

    Policies remember data by GPU and workload of one state object. When the state is replaced by
    another object, the policy is replaced too.

    Parameters
    ----------
    name : str
        Name and options, as in ``policy_named``.

    Attributes
    ----------
    trouble : str
        Why the last decision failed; empty if it did not.

    Raises
    ------
    UnsupportedError
        If there is no such policy.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.trouble = ""
        self._policy = policy_named(name)
        self._state: State | None = None

    def decide(self, state: State) -> Decision:
        """Return the policy's decision."""
        if state is not self._state:
            self._policy, self._state = policy_named(self.name), state
        try:
            decision = asked(self._policy, state)
        except Exception as error:
            _LOG.exception("the policy failed")
            self.trouble = f"the policy failed: {error}"
            return NOTHING._replace(wake_s=state.now + AGAIN_S, reserved=state.reserved)
        self.trouble = ""
        return decision

    def starts(self, state: State) -> tuple[Start, ...]:
        """Return the starts of a new policy of this name on devices that are not reserved.

        Starts for which the policy would stop jobs are left out.
        """
        try:
            decision = services_first(state) or asked(policy_named(self.name), state)
        except Exception:
            # It will fail again when it decides, and that is reported.
            return ()
        taken = state.reserved_gpus.union(*(job.gpus for job in decision.stops))
        starts = (start for start in decision.starts if start.job not in decision.stops)
        return tuple(start for start in starts if taken.isdisjoint(start.gpus))


def asked(policy: Policy, state: State) -> Decision:
    """Return a policy's decision; nothing if the pool has no devices yet."""
    return decided(policy, state) if len(state.machines) else NOTHING


PROFILING_PART: Final = 4
"""At most one part in ``PROFILING_PART`` of the devices' time is used for such profiles."""


def first_starts(
    machine: StateMachine, state: State, looks: ProfilingQueue, policy: GuardedPolicy
) -> Generator[tuple[Sequence[Start], bool]]:
    """Yield the starts that come before the policy's choice; True marks starts for a profile.

    The caller enters the starts into the state before it asks for the next.
    """
    due: list[Start] = []

    def chosen(state: State) -> Sequence[Start]:
        due[:] = looks.due(state)
        return due or policy.starts(state)

    competed = False
    for starts in turns(machine, state, chosen):
        competed = True
        yield starts, bool(due)
    if not competed:
        yield list(looks.due(state)), True


class ProfilingQueue:
    """Finds the job to profile next, if any.

    It is the first submitted job among workloads without a started job, if there are idle devices
    that are not reserved for its whole gang, and more ranks wait than devices are idle. A profile
    closes its devices to other jobs for up to ``look_s``; the next profile waits until this is at
    most one part in ``PROFILING_PART`` of the time of all devices since then.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    look_s : float
        The longest duration of a profile, in seconds.
    """

    def __init__(self, machine: StateMachine, look_s: float) -> None:
        self._machine = machine
        self._look_s = look_s
        self._next_s = -math.inf
        self._begun = {job.spec.key for job in machine.jobs.values() if job.runs}

    def due(self, state: State) -> Iterator[Start]:
        """Yield at most one start, of the job to profile next."""
        self.begin(self._machine.holding.values())  # an earlier service may have started them
        idle = sum(state.idle_count)
        if not idle or state.now < self._next_s or not _more_wait(state, idle):
            return
        draft = Draft(state)
        for live in self._first_jobs():
            job = state.pending.get(live.sequence)
            gpus = idle_gpus(draft, job) if job is not None else None
            if job is not None and gpus is not None and state.reserved_gpus.isdisjoint(gpus):
                yield Start(job, tuple(gpus))
                return

    def begin(self, jobs: Iterable[LiveJob]) -> None:
        """Note that jobs were started, for a profile or by the policy."""
        self._begun.update(job.spec.key for job in jobs)

    def note(self, start: Start, state: State) -> None:
        """Note that a profile has begun."""
        closed_s = start.job.workers * self._look_s
        self._next_s = state.now + PROFILING_PART * closed_s / len(state.machines)

    def _first_jobs(self) -> list[LiveJob]:
        first: dict[WorkloadKey, LiveJob] = {}
        for live in self._machine.queued.values():
            key = live.spec.key
            if live.state is JobState.SUBMITTED and key not in self._begun and not live.runs:
                earlier = first.setdefault(key, live)
                first[key] = min(live, earlier, key=_sequence)
        return sorted(first.values(), key=_sequence)


def _more_wait(state: State, idle: int) -> bool:
    """Return whether more ranks wait than devices are idle."""
    wanted = 0
    for job in state.pending.values():
        wanted += job.workers
        if wanted > idle:
            return True
    return False


def _sequence(live: LiveJob) -> int:
    return live.sequence


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
