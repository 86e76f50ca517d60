"""Who joins whom, the best pair first: what Co-scheML and its baselines share.

Waiting jobs of one workload, one size and one limit on their tail latency are alike, so they are
looked at as a group. What holds for the first of them holds for all, and a round costs as many
looks as there are groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.rooms import Cost, Rooms
from dovetail.solver.policies.state import Job, State

Groups = dict[tuple[int, int, float], list[Job]]
"""The waiting jobs by (workload, workers, limit), the first to arrive at the end."""


def pair_up(state: State, cost: Cost) -> Decision:
    """Start jobs on idle GPUs as they come; pair the rest with running jobs, the cheapest first.

    This is Co-scheML's Algorithm 1 (Cluster Computing 2021, section 5) for any cost of a pair.
    Jobs for which there is no place are passed over. A gang costs what the dearest of its GPUs
    costs; it may hold some GPUs alone, whose cost is that beside nobody.

    Parameters
    ----------
    state : State
        The pool.
    cost : callable
        Of a waiting job beside residents. It must not fall as more jobs join a GPU.
    """
    if not state.pending:
        return NOTHING
    draft = Draft(state)
    rooms = Rooms(draft)
    if not rooms:
        return NOTHING
    groups = waiting_groups(state)
    if draft.idle_total:
        start_in_turn(groups, rooms, partial(idle_gpus, draft))
    _start_cheapest(groups, rooms, cost)
    return draft.decision()


def waiting_groups(state: State) -> Groups:
    """Return the waiting jobs, alike ones together."""
    groups: Groups = defaultdict(list)
    for job in sorted(state.pending.values(), key=lambda job: -job.number):
        groups[job.workload, job.workers, job.tail_limit].append(job)
    return groups


def start_in_turn(groups: Groups, rooms: Rooms, place: Callable[[Job], list[int] | None]) -> None:
    """Start jobs in the order of arrival where ``place`` says; who has no place is passed over."""
    heads = [(jobs[-1].number, group) for group, jobs in groups.items()]
    heapify(heads)
    while heads:
        _, group = heappop(heads)
        jobs = groups[group]
        gpus = place(jobs[-1])
        if gpus is None:
            continue
        rooms.start(jobs.pop(), gpus)
        if jobs:
            heappush(heads, (jobs[-1].number, group))


def _start_cheapest(groups: Groups, rooms: Rooms, cost: Cost) -> None:
    """Start the job that costs least, again and again.

    Every start leaves fewer and dearer places. So what a group cost before is a bound on what it
    costs now, and only the group with the least bound need be looked at again.
    """
    bounds = [(-1.0, jobs[-1].number, group) for group, jobs in groups.items() if jobs]
    heapify(bounds)
    while bounds:
        bound, _, group = heappop(bounds)
        jobs = groups[group]
        offer = rooms.cheapest(jobs[-1], cost)
        if offer is None:
            continue
        if offer[0] > bound:
            heappush(bounds, (offer[0], jobs[-1].number, group))
            continue
        rooms.start(jobs.pop(), offer[1])
        if jobs:
            heappush(bounds, (bound, jobs[-1].number, group))
