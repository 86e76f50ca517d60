"""Rounds of the live service: when a decision is due, and how it is carried out.

Some jobs start before the policy's choice, so that their workloads are profiled: until a workload
has a profile, none of its jobs may share and their length is unknown. The first job of a workload
is therefore worth more than a policy that compares lengths can see.

Every start is checked before it is placed: what is in a plan by the checker of ``dovetail check``,
on the policy's state (``second_opinion``); the rest here against the state machine and the pool,
whether the devices are free, and whether the shares compute correctly on them. Unknown devices are
treated as busy. Nothing starts while the disk has no room for the files that a start writes.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import Final
from zlib import crc32

from dovetail.executor.jobs import events
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Run, Seat, WorkloadKey
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.live import Live
from dovetail.executor.live.rounds.fair_share import turns, without_unfair_stops
from dovetail.executor.live.rounds.gathering import Gatherer
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.second_opinion import malformed, unlawful, violations
from dovetail.instances._record import IDLE
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision, Policy, Start, decided, objective_of
from dovetail.solver.policies.registry import policy_named
from dovetail.solver.policies.services import services_first, services_kept
from dovetail.solver.policies.state import Job, Reservation, State

LEAST_BYTES: Final = 8 * 2**20
"""Space for the journal's log, and for a run's specification, claim, exit status and output."""

_LOG: Final = logging.getLogger("dovetail.live")

_LEAST_FILES: Final = 100
_LEAVING: Final = frozenset({JobState.STOPPING, JobState.LOST})


class CannotStartError(DovetailError):
    """Starts break a rule; nothing was changed, and the jobs wait."""


def require_space(directory: str) -> None:
    """Refuse a directory whose disk is almost full; do nothing if the name is empty.

    Raises
    ------
    CannotStartError
        If it is almost full.
    OSError
        If the disk cannot be examined.
    """
    if not directory:
        return
    found = os.statvfs(directory)
    few_files = found.f_files and found.f_favail < _LEAST_FILES
    if few_files or found.f_bavail * found.f_frsize < LEAST_BYTES:
        rule = f"its disk must have {LEAST_BYTES // 2**20} MiB and {_LEAST_FILES} files left"
        raise CannotStartError(f"{directory}: {rule}: nothing is started")


def in_groups(starts: Sequence[Start]) -> list[tuple[Start, ...]]:
    """Return the starts in groups that share no device with each other."""
    group_of: dict[int, list[Start]] = {}
    for start in starts:
        met = {id(group_of[gpu]): group_of[gpu] for gpu in start.gpus if gpu in group_of}
        group = [*chain.from_iterable(met.values()), start]
        group_of.update((gpu, group) for one in group for gpu in one.gpus)
    return [tuple(group) for group in {id(group): group for group in group_of.values()}.values()]


def is_fresh(state: State, start: Start) -> bool:
    """Return whether the devices of a start hold no job."""
    residents = state.residents
    return all(0 <= gpu < len(residents) and not residents[gpu] for gpu in start.gpus)


def place(
    view: PolicyView, starts: Sequence[Start], strays: Mapping[str, str]
) -> list[events.Placed]:
    """Return the events for one group of starts, and enter the starts into the view's state.

    The next ``renew`` of the view reverts starts whose events were not applied.

    Parameters
    ----------
    view : PolicyView
        The view on whose state the policy decided.
    starts : sequence of Start
        A group from ``in_groups``.
    strays : mapping of str to str
        Devices that runs without a job may still hold, with the run.

    Raises
    ------
    CannotStartError
        If one of them would break a rule (``refusal``), or the check itself fails.
    """
    names = ", ".join(start.job.id for start in starts)
    try:
        refused = refusal(view, starts, strays)
    except Exception as error:
        failed = f"{names} cannot start because the check failed: {type(error).__name__}"
        raise CannotStartError(failed) from error
    if refused:
        raise CannotStartError(f"{names} cannot start: {refused}")
    placed = []
    ports = {job.run.port for job in view.machine.holding.values() if job.run is not None}
    for start in starts:
        live = view.machine.jobs[start.job.id]
        profiling = not live.alone_only and not view.machine.may_share(live)
        run = _with_port(_run(view, start), live.submitted_s, ports)
        placed.append(events.Placed(at_s=view.state.now, run=run, profiling=profiling))
        view.enter(start)
    return placed


def refusal(view: PolicyView, starts: Sequence[Start], strays: Mapping[str, str]) -> str | None:
    """Return the rule that a group of starts would break; None if they break none."""
    unreadable = [why for start in starts for why in malformed(view.state, start)]
    if unreadable:
        return unreadable[0]
    residents = view.machine.residents()
    for start in starts:
        run = _run(view, start)
        refused = _busy(view, run, residents, strays) or _refused_by_pool(view, run, residents)
        if refused:
            return refused
    return next(iter(violations(view.state, starts)), None)


def _busy(
    view: PolicyView,
    run: Run,
    residents: Mapping[str, Sequence[LiveJob]],
    strays: Mapping[str, str],
) -> str | None:
    """Return why a run may not have its devices now; None if all are known to be free."""
    for gpu in (seat.gpu for seat in run.seats):
        device = view.machine.devices.get(gpu)
        if device is None or device.trouble:
            return f"{gpu} {device.trouble if device else 'is not a device of the pool'}"
        leaving = [job.id for job in residents[gpu] if job.state in _LEAVING]
        holder = strays.get(gpu) or next(iter(leaving), None)
        if holder:
            return f"{holder} may still be on {gpu}"
    # Events of a stray would be mistaken for events of a run with the same id.
    return f"another run {run.id} has not ended" if run.id in strays.values() else None


def _refused_by_pool(
    view: PolicyView, run: Run, residents: Mapping[str, Sequence[LiveJob]]
) -> str | None:
    """Return why the pool cannot run a job with its shares or its co-runners; None if it can."""
    for seat in run.seats:
        allowed = view.beliefs.allowed(run.spec, view.beliefs.devices.models[seat.gpu])
        if seat.share is not None and seat.share not in allowed:
            return f"a share of {seat.share_text} is not known to compute right on {seat.gpu}"
        for other in residents[seat.gpu]:
            apart = view.beliefs.pool.sharing(run.spec.owner.uid == other.spec.owner.uid)
            if apart:
                return f"{run.job} and {other.id} may not share: {apart}"
    return None


def _run(view: PolicyView, start: Start) -> Run:
    """Return the run that a start would begin."""
    live, gpu_ids = view.machine.jobs[start.job.id], view.state.machines.gpu_ids
    shares = start.shares or (None,) * start.job.workers
    seats = tuple(
        Seat(gpu=gpu_ids[gpu], share=share, memory_mib=_limit_mib(view, live.spec, gpu))
        for gpu, share in zip(start.gpus, shares, strict=True)
    )
    role = view.beliefs.isolation(live)
    alone = role == "best-effort" and None in shares
    return Run(
        id=f"{live.id}.{live.runs + 1}",
        job=live.id,
        spec=live.spec,
        seats=seats,
        isolated=role == "latency" or alone or IDLE in shares,
    )


PORTS: Final = range(30_000, 32_700)
"""Ports of services: below those of outgoing connections, and none of a gang's."""


def _with_port(run: Run, submitted_s: float, taken: set[int | None]) -> Run:
    """Return a run, with a port if it is of a service: one that no other run has.

    The first to be tried differs by job, run and Dovetail's service. If something else on the node
    has the port, the run does not start, and the next one tries another.
    """
    if not run.spec.service:
        return run
    first = crc32(f"{run.id} {submitted_s}".encode()) % len(PORTS)
    port = next(port for port in (*PORTS[first:], *PORTS[:first]) if port not in taken)
    taken.add(port)
    return run.model_copy(update={"port": port})


def _limit_mib(view: PolicyView, spec: JobSpec, gpu: int) -> float | None:
    """Return the memory limit of a rank on a device; None if its owner gave none.

    A percentage includes ``per_process_mib``, which a limit leaves out.
    """
    if spec.memory_percent is None:
        return spec.memory_mib
    machines = view.state.machines
    part_mib = spec.memory_percent / 100 * machines.memory_mib[gpu]
    return max(1.0, part_mib - machines.rules.per_process_mib)


def stop_reason(decision: Decision, job: Job) -> str:
    """Return for whom a decision stops a job, as its owner reads it."""
    starts = [one.job.id for one in decision.starts if not {*job.gpus}.isdisjoint(one.gpus)]
    others = ", ".join(name for name in starts if name != job.id)
    return f"the policy gives its devices to {others or 'others'}"


def reservations(
    view: PolicyView, wanted: Mapping[int, Reservation], now_s: float
) -> list[events.Reserved]:
    """Return the events that change the reservations in the journal to those of a decision."""
    jobs, ids = view.state.pending, view.state.machines.gpu_ids
    kept = {
        jobs[number].id: (tuple(ids[gpu] for gpu in one.gpus), one.until_s)
        for number, one in wanted.items()
        if number in jobs and all(0 <= gpu < len(ids) for gpu in one.gpus)
    }
    known = {job: (one.gpus, one.until_s) for job, one in view.machine.reserved.items()}
    gone = {job: ((), 0.0) for job in known if job not in kept}
    return [
        events.Reserved(at_s=now_s, job=job, gpus=gpus, until_s=until_s)
        for job, (gpus, until_s) in (gone | kept).items()
        if known.get(job) != (gpus, until_s)
    ]


AGAIN_S: Final = 60.0
"""Seconds after which a policy that failed is asked again, unless something happens earlier."""


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
        self._live.counted.note_decision(self.took_s)
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
