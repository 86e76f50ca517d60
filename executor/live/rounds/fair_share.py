"""Fair shares: the user with less goes first, regardless of the policy's objective.

Max-min fairness: while jobs of several users wait and not all of them can start, the next idle
device goes to the user with the fewest devices at the moment; ties go to the user with the least
usage while they compete (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996;
``StateMachine.used``). The policy first chooses among the user's jobs with the lowest ``nice``.

A limited number of waiting jobs takes part in a round, from all users: otherwise a user who submits
very many different jobs would delay the starts of other users' jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from heapq import heapify, heappop, heappush, nsmallest
from operator import attrgetter
from typing import Final, NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.solver.policies.policy import Decision, Start
from dovetail.solver.policies.state import Job, State

MOST_IN_ROUND: Final = 1000
"""Waiting jobs that take part in a round, unless twice the number of devices is more."""

_OLDEST: Final = 10
"""One part in this many of a user's share is for the longest-waiting jobs, whatever their nice."""


def most_of(devices: int) -> int:
    """Return the number of waiting jobs that take part in a round on this many devices."""
    return max(MOST_IN_ROUND, 2 * devices)


def taking_part(
    queued: Mapping[str, LiveJob], reserved: Iterable[str], most: int
) -> Collection[str]:
    """Return the ids of the jobs that take part: all jobs, or about ``most``.

    Each user has an equal share; unused parts go to the others. A user's jobs are ordered by
    ``nice``, lowest first, then by waiting time, longest first.

    Parameters
    ----------
    queued : mapping of str to LiveJob
        The jobs that wait for devices.
    reserved : iterable of str
        The jobs that have a reservation, which always take part.
    most : int
        The approximate number of jobs.
    """
    if len(queued) <= most:
        return queued.keys()
    of_user: defaultdict[int, list[LiveJob]] = defaultdict(list)
    for job in queued.values():
        of_user[job.spec.owner.uid].append(job)
    found, left = {*reserved}, most
    for others, jobs in zip(
        range(len(of_user), 0, -1), sorted(of_user.values(), key=len), strict=True
    ):
        first = _first(jobs, max(left // others, 1))
        left -= len(first)
        found.update(job.id for job in first)
    return found


def _first(jobs: list[LiveJob], share: int) -> list[LiveJob]:
    if len(jobs) <= share:
        return jobs
    oldest = nsmallest(share // _OLDEST, jobs, key=attrgetter("competes_since_s", "sequence"))
    taken = {job.id for job in oldest}
    rest = (job for job in jobs if job.id not in taken)
    return [*oldest, *nsmallest(share - len(oldest), rest, key=_order)]


def _order(job: LiveJob) -> tuple[int, float, int]:
    return job.spec.nice, job.competes_since_s, job.sequence


class Standing(NamedTuple):
    """The devices and usage of a user; the user with the smallest standing comes first.

    Attributes
    ----------
    devices : float
        Devices that the user's jobs hold now; a shared device counts by the job's part of it.
    used_s : float
        Device seconds, comparable between users with waiting jobs (``StateMachine.used``).
    """

    devices: float
    used_s: float


def standings(machine: StateMachine) -> dict[int, Standing]:
    """Return the standing of each user with waiting jobs, by uid."""
    devices, used_s = _devices_of(machine), defaultdict(float, machine.used)
    for job in machine.holding.values():
        used_s[job.spec.owner.uid] += job.spec.workers * job.held_s(machine.now_s)
    return {uid: Standing(devices[uid], used_s[uid]) for uid in machine.waiting}


def _devices_of(machine: StateMachine) -> dict[int, float]:
    devices: dict[int, float] = defaultdict(float)
    for residents in machine.residents().values():
        for job in residents:
            devices[job.spec.owner.uid] += 1 / len(residents)
    return devices


def without_unfair_stops(decision: Decision, machine: StateMachine) -> Decision:
    """Return a decision without unfair stops, and without the starts that need them.

    A stop is unfair if it favours a user who would then have more devices, or a job of the same
    user with a higher ``nice``. Latency-critical jobs are never stopped.
    """
    devices = _devices_of(machine)
    after = devices.copy()
    for start in decision.starts:
        after[_uid(start.job, machine)] += start.job.workers
    stay: set[int] = set()
    for job in decision.stops:
        mine = machine.jobs[job.id].spec
        others = [
            machine.jobs[start.job.id].spec
            for start in decision.starts
            if {*start.gpus} & {*job.gpus}
        ]
        if job.latency or any(
            other.nice > mine.nice
            if other.owner.uid == mine.owner.uid
            else after[other.owner.uid] > devices[mine.owner.uid]
            for other in others
        ):
            stay.update(job.gpus)
    rest = decision.without(lambda start: not stay.isdisjoint(start.gpus))
    return rest._replace(stops=tuple(job for job in rest.stops if stay.isdisjoint(job.gpus)))


class Precedence(NamedTuple):
    """The order of users with waiting jobs.

    Attributes
    ----------
    users : dict of int to str
        By uid, for every user but the first: the user who comes first, and why.
    nice : dict of int to int
        By uid, the lowest ``nice`` of the user's jobs that wait for devices.
    """

    users: Mapping[int, str]
    nice: Mapping[int, int]

    @classmethod
    def of(cls, machine: StateMachine) -> Self:
        """Return the order of the users whose jobs wait for devices."""
        nice: dict[int, int] = {}
        for job in machine.queued.values():
            uid = job.spec.owner.uid
            nice[uid] = min(job.spec.nice, nice.get(uid, job.spec.nice))
        return cls(_users_before(machine), nice)

    def ahead(self, job: LiveJob) -> tuple[str, str] | None:
        """Return the rule by which other jobs come before a job, and their user; or None."""
        owner = job.spec.owner
        if owner.uid in self.users:
            return "fair share", self.users[owner.uid]
        if job.spec.nice > self.nice.get(owner.uid, job.spec.nice):
            return "order", f"{owner.name} with a lower nice"
        return None


def _users_before(machine: StateMachine) -> dict[int, str]:
    known = standings(machine)
    if len(known) < 2:
        return {}
    names = {job.spec.owner.uid: job.spec.owner.name for job in machine.queued.values()}
    first = min(known, key=known.__getitem__)
    return {
        uid: f"{names[first]}, who {_text(known[first])} ({names[uid]} {_text(mine)})"
        for uid, mine in known.items()
        if mine > known[first]
    }


def _text(standing: Standing) -> str:
    count = f"{standing.devices:.3g} device{'' if standing.devices == 1 else 's'}"
    return f"has {count} and is charged {standing.used_s:.0f} device seconds"


def turns(
    machine: StateMachine, state: State, decide: Callable[[State], Sequence[Start]]
) -> Iterator[Sequence[Start]]:
    """Yield the starts that come before the policy's own choice, user by user.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices.
    state : State
        The caller enters the starts into it before it asks for the next. In a user's turn it has
        only the user's waiting jobs (at first only the jobs with the lowest ``nice``), and no
        reservations of other latency-critical jobs.
    decide : callable
        Returns the policy's starts in a state.
    """
    nice = {(_uid(job, machine), _nice(job, machine)) for job in state.pending.values()}
    if len(nice) < 2:
        # One user's jobs, all alike in what comes before the policy's choice.
        return
    place = _places(machine, state)
    compete = False
    for uid, devices in _devices_for(machine, state).items():
        compete = True
        own = [n for n, job in state.pending.items() if _uid(job, machine) == uid]
        others = sum(state.idle_count) - devices
        for numbers in _in_order(own, place):
            with _only(numbers, state):
                yield _within(sum(state.idle_count) - others, decide(state), state)
    if not compete and any(place.values()):
        for numbers in _in_order(place, place):
            with _only(numbers, state):
                yield decide(state)


def _in_order(numbers: Collection[int], place: Mapping[int, int]) -> Iterator[set[int]]:
    """Yield growing sets of jobs: those of the first place, then of the first two, and so on."""
    for last in sorted({place[number] for number in numbers}):
        yield {number for number in numbers if place[number] <= last}


def _places(machine: StateMachine, state: State) -> dict[int, int]:
    """Return the rank (from 0) of each waiting job's nice among its user's waiting jobs."""
    of_user: dict[int, set[int]] = defaultdict(set)
    nice = {job.number: _nice(job, machine) for job in state.pending.values()}
    for job in state.pending.values():
        of_user[_uid(job, machine)].add(nice[job.number])
    order = {uid: sorted(levels) for uid, levels in of_user.items()}
    return {
        job.number: order[_uid(job, machine)].index(nice[job.number])
        for job in state.pending.values()
    }


def _devices_for(machine: StateMachine, state: State) -> dict[int, int]:
    """Return the number of idle devices that each user gets, in the order of the users."""
    idle = sum(state.idle_count)
    wanted: dict[int, list[int]] = defaultdict(list)
    for job in state.pending.values():
        wanted[_uid(job, machine)].append(job.workers)
    found: dict[int, int] = {}
    if not idle or len(wanted) < 2 or sum(map(sum, wanted.values())) <= idle:
        return found
    known = standings(machine)
    order = [(*known[uid], uid, iter(workers)) for uid, workers in wanted.items()]
    heapify(order)
    while order and idle:
        devices, used_s, uid, jobs = heappop(order)
        workers = next((size for size in jobs if size <= idle), None)
        if workers is not None:
            found[uid] = found.get(uid, 0) + workers
            idle -= workers
            heappush(order, (devices + workers, used_s, uid, jobs))
    return found


def _within(devices: int, starts: Sequence[Start], state: State) -> list[Start]:
    """Return the first starts that together take at most this many idle devices."""
    taken: set[int] = set()
    found = []
    for start in starts:
        more = {gpu for gpu in start.gpus if not state.residents[gpu]} - taken
        if len(taken) + len(more) <= devices:
            taken |= more
            found.append(start)
    return found


@contextmanager
def _only(numbers: Set[int], state: State) -> Iterator[None]:
    """Hide other waiting jobs from a state, and the reservations of the latency-critical ones."""
    pending, reserved = state.pending, state.reserved
    state.pending = {n: job for n, job in pending.items() if n in numbers}
    state.reserved = {
        n: kept for n, kept in reserved.items() if n in numbers or not pending[n].latency
    }
    try:
        yield
    finally:
        state.pending = {n: job for n, job in pending.items() if job.phase == "pending"}
        state.reserved = {n: kept for n, kept in reserved.items() if n in state.pending}


def _nice(job: Job, machine: StateMachine) -> int:
    return machine.jobs[job.id].spec.nice


def _uid(job: Job, machine: StateMachine) -> int:
    return machine.jobs[job.id].spec.owner.uid
