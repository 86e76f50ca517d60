"""Fair shares between users: whoever has less goes first, whatever the policy thinks of the jobs.

Max-min fairness: while jobs of several users wait and not all of them can start, the next idle
device is for the user who has the fewest devices now. Among equals it is for the one who has used
the least since they compete (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996;
``StateMachine.used``). Which of a user's jobs starts there is up to the policy, but for the order
that the user gave them: the policy is asked of those with the lowest ``nice`` first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Self

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.solver.policies import Decision, Job, Start, State


class Standing(NamedTuple):
    """What a user has, in the order in which users come first.

    Attributes
    ----------
    devices : float
        That the user's jobs hold now; of a device that is shared, a part.
    used_s : float
        Device seconds, comparable between users whose jobs wait (``StateMachine.used``).
    """

    devices: float
    used_s: float


def standings(machine: StateMachine) -> dict[int, Standing]:
    """Return what each user has whose jobs wait, by uid."""
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
    """Return a decision that takes devices from no user for another who would have more.

    Nor from a job for another of its user that comes after it.
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
        if any(
            other.nice > mine.nice
            if other.owner.uid == mine.owner.uid
            else after[other.owner.uid] > devices[mine.owner.uid]
            for other in others
        ):
            stay.update(job.gpus)
    return decision._replace(
        stops=tuple(job for job in decision.stops if stay.isdisjoint(job.gpus)),
        starts=tuple(start for start in decision.starts if stay.isdisjoint(start.gpus)),
    )


class Precedence(NamedTuple):
    """Whose jobs come before others'.

    Attributes
    ----------
    users : dict of int to str
        The user whose jobs come before those of each user who waits, by uid; not of the first.
    nice : dict of int to int
        The lowest ``nice`` of each user's jobs that wait for devices, by uid.
    """

    users: Mapping[int, str]
    nice: Mapping[int, int]

    @classmethod
    def of(cls, machine: StateMachine) -> Self:
        """Look at the jobs that wait for devices."""
        nice: dict[int, int] = {}
        for job in machine.queued.values():
            uid = job.spec.owner.uid
            nice[uid] = min(job.spec.nice, nice.get(uid, job.spec.nice))
        return cls(_users_before(machine), nice)

    def told(self, job: LiveJob) -> tuple[str, str] | None:
        """Return the rule by which others' jobs come before a job, and whose; None: none do."""
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
        uid: f"{names[first]}, who {_told(known[first])} ({names[uid]} {_told(mine)})"
        for uid, mine in known.items()
        if mine > known[first]
    }


def _told(standing: Standing) -> str:
    count = f"{standing.devices:.3g} device{'' if standing.devices == 1 else 's'}"
    return f"has {count} and is charged {standing.used_s:.0f} device seconds"


def turns(
    machine: StateMachine, state: State, decide: Callable[[State], Sequence[Start]]
) -> Iterator[Sequence[Start]]:
    """Yield the starts that come before the policy's own: of one user after another, in order.

    Parameters
    ----------
    machine : StateMachine
        Who has what.
    state : State
        Into it the starts are to be entered before the next are asked for. In a user's turn it
        has no other's jobs that wait, and first only those with the lowest ``nice``.
    decide : callable
        What the policy would start in a state.
    """
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
    """Yield the jobs that come first, then these and the next ones, at last all."""
    for last in sorted({place[number] for number in numbers}):
        yield {number for number in numbers if place[number] <= last}


def _places(machine: StateMachine, state: State) -> dict[int, int]:
    """Return each waiting job's place in the order that its user gave: 0 for the lowest nice."""
    of_user: dict[int, set[int]] = defaultdict(set)
    nice = {job.number: machine.jobs[job.id].spec.nice for job in state.pending.values()}
    for job in state.pending.values():
        of_user[_uid(job, machine)].add(nice[job.number])
    order = {uid: sorted(levels) for uid, levels in of_user.items()}
    return {
        job.number: order[_uid(job, machine)].index(nice[job.number])
        for job in state.pending.values()
    }


def _devices_for(machine: StateMachine, state: State) -> dict[int, int]:
    """Return how many of the idle devices are for each user, the first first."""
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
    """Return the starts that take no more idle devices than a user is to have."""
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
    """Leave out of a state the waiting jobs but these."""
    everybody = state.pending
    state.pending = {n: job for n, job in everybody.items() if n in numbers}
    try:
        yield
    finally:
        state.pending = {n: job for n, job in everybody.items() if job.phase == "pending"}


def _uid(job: Job, machine: StateMachine) -> int:
    return machine.jobs[job.id].spec.owner.uid
