"""Fair shares between users: whoever has less goes first, whatever the policy thinks of the jobs.

Max-min fairness: while jobs of several users wait and not all of them can start, the next idle
device is for the user who has the fewest devices now. Among equals it is for the one who has used
the least since they compete (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996;
``Brain.used``). Which of a user's jobs starts there is up to the policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dovetail.executor.live.brain import Brain
from dovetail.solver.policies import Decision, Job, Start, State


class Standing(NamedTuple):
    """What a user has, in the order in which users come first.

    Attributes
    ----------
    devices : float
        That the user's jobs hold now; of a device that is shared, a part.
    used_s : float
        Device seconds, comparable between users whose jobs wait (``Brain.used``).
    """

    devices: float
    used_s: float


def standings(brain: Brain) -> dict[int, Standing]:
    """Return what each user has whose jobs wait, by uid."""
    devices, used_s = _devices_of(brain), defaultdict(float, brain.used)
    for job in brain.holding.values():
        used_s[job.spec.owner.uid] += job.spec.workers * job.held_s(brain.now_s)
    return {uid: Standing(devices[uid], used_s[uid]) for uid in brain.waiting}


def _devices_of(brain: Brain) -> dict[int, float]:
    devices: dict[int, float] = defaultdict(float)
    for residents in brain.residents().values():
        for job in residents:
            devices[job.spec.owner.uid] += 1 / len(residents)
    return devices


def without_unfair_stops(decision: Decision, brain: Brain) -> Decision:
    """Return a decision that takes devices from no user for another who would have more."""
    devices = _devices_of(brain)
    after = devices.copy()
    for start in decision.starts:
        after[_uid(start.job, brain)] += start.job.workers
    stay: set[int] = set()
    for job in decision.stops:
        mine = _uid(job, brain)
        others = {
            _uid(start.job, brain) for start in decision.starts if {*start.gpus} & {*job.gpus}
        }
        if any(after[uid] > devices[mine] for uid in others - {mine}):
            stay.update(job.gpus)
    return decision._replace(
        stops=tuple(job for job in decision.stops if stay.isdisjoint(job.gpus)),
        starts=tuple(start for start in decision.starts if stay.isdisjoint(start.gpus)),
    )


def whom_they_wait_for(brain: Brain) -> dict[int, str]:
    """Return whose jobs come before those of each user who waits, by uid; nothing of the first."""
    known = standings(brain)
    if len(known) < 2:
        return {}
    names = {job.spec.owner.uid: job.spec.owner.name for job in brain.queued.values()}
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
    brain: Brain, state: State, decide: Callable[[State], Sequence[Start]]
) -> Iterator[Sequence[Start]]:
    """Yield the starts of one user after another that come before the policy's own.

    Parameters
    ----------
    brain : Brain
        Who has what.
    state : State
        Into it the starts are to be entered before the next are asked for. In a user's turn it
        has no other's jobs that wait.
    decide : callable
        What the policy would start in a state.
    """
    for uid, devices in _devices_for(brain, state).items():
        with _only(uid, brain, state):
            yield _within(devices, decide(state), state)


def _devices_for(brain: Brain, state: State) -> dict[int, int]:
    """Return how many of the idle devices are for each user, the first first."""
    idle = sum(state.idle_count)
    wanted: dict[int, list[int]] = defaultdict(list)
    for job in state.pending.values():
        wanted[_uid(job, brain)].append(job.workers)
    found: dict[int, int] = {}
    if not idle or len(wanted) < 2 or sum(map(sum, wanted.values())) <= idle:
        return found
    known = standings(brain)
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
def _only(uid: int, brain: Brain, state: State) -> Iterator[None]:
    """Leave out of a state the waiting jobs of other users."""
    everybody = state.pending
    state.pending = {n: job for n, job in everybody.items() if _uid(job, brain) == uid}
    try:
        yield
    finally:
        state.pending = {n: job for n, job in everybody.items() if job.phase == "pending"}


def _uid(job: Job, brain: Brain) -> int:
    return brain.jobs[job.id].spec.owner.uid
