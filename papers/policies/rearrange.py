"""From a target arrangement of jobs to the stops and starts that reach it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus_of, keeps_groups
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.services import held_by_services, movable, services_alone
from dovetail.solver.policies.state import Job, State


class Group(NamedTuple):
    """Jobs with equally many workers that share all their GPUs, on one GPU model."""

    jobs: tuple[Job, ...]
    model: int


def rearranged(state: State, groups: Sequence[Group]) -> Draft:
    """Return the draft in which exactly these groups run, with the fewest workers moved.

    A group stays on the GPUs of a running member on the right model, and its other members join
    it; a matching of groups with places keeps the most workers in place (exactly, if running jobs
    share all their GPUs or none). A group with a running latency-critical job stays with it. All
    other running jobs are stopped, except latency-critical jobs and their co-runners. A member
    that does not fit with its group, and a group with too few idle GPUs, waits.
    """
    draft = Draft(state)
    seats = _seats(state, groups)
    staying = {
        job.number
        for group, seat in zip(groups, seats, strict=True)
        for job in group.jobs
        if seat and job.gpus == seat
    }
    for job in movable(state):
        if job.number not in staying:
            draft.stop(job)
    for group, seat in zip(groups, seats, strict=True):
        _join(draft, [job for job in group.jobs if job.number not in staying], seat)
    for group, seat in zip(groups, seats, strict=True):
        first, *others = group.jobs
        gpus = None if seat else idle_gpus_of(draft, first, first.workers, group.model)
        if gpus is not None:
            draft.start(first, gpus)
            _join(draft, others, tuple(gpus))
    return draft


class Rounds:
    """Rounds of equal length; jobs start and stop only at their ends.

    While every job runs alone on GPUs of one model, a finished round is extended until the next
    event.

    Raises
    ------
    ValueError
        When the length is out of range.
    """

    def __init__(self, round_s: float) -> None:
        if not 0 < round_s < math.inf:
            raise ValueError(f"round_s must be a finite number > 0, got {round_s}")
        self._round_s = round_s
        self._next_s = -math.inf

    def decide(self, state: State, choose: Callable[[State], Sequence[Group]]) -> Decision:
        """Start a round with the groups of ``choose`` if the last one is over."""
        if not (state.running or state.pending):
            return NOTHING
        if state.now < self._next_s:
            return Decision(wake_s=self._next_s)
        self._next_s = state.now + self._round_s
        groups = choose(state)
        wake_s = None if _is_settled(state, groups) else self._next_s
        return rearranged(state, groups).decision(wake_s)


def _is_settled(state: State, groups: Sequence[Group]) -> bool:
    """Return whether every job runs alone on GPUs of one model: no round could do better."""
    alone = [group.jobs[0] for group in groups if len(group.jobs) == 1]
    others = [job for job in alone if not (job.gpus and job.latency)]
    jobs = len(movable(state)) + len(state.pending)
    return len(others) == jobs and len(state.machines.models) == 1


def around_services(state: State) -> list[Group]:
    """Return each running latency-critical job that others may join as a group of one."""
    return [Group((job,), state.machines.model[job.gpus[0]]) for job in services_alone(state)]


def alone_on(state: State, jobs: Sequence[Job], left: list[int]) -> list[Group]:
    """Return groups of one for the first jobs that fit on the remaining GPUs of each model.

    ``left`` is updated.
    """
    groups = []
    holds = state.machines.some_hold
    for job in jobs:
        way = state.modes[job.workload][:1]
        models = [m for m, free in enumerate(left) if free >= job.workers and holds(m, way)]
        if models:
            model = max(models, key=lambda m: state.speed[m][job.workload])
            left[model] -= job.workers
            groups.append(Group((job,), model))
    return groups


def gpus_by_model(state: State) -> list[int]:
    """Return the number of GPUs of each model that are up and not held by services."""
    machines = state.machines
    held = {gpu for number in held_by_services(state) for gpu in state.running[number].gpus}
    count = [0] * len(machines.models)
    for gpu, model in enumerate(machines.model):
        count[model] += machines.node[gpu] not in state.down and gpu not in held
    return count


def _seats(state: State, groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Return the GPUs on which each group stays, none if it has to move."""
    places = list(dict.fromkeys(job.gpus for job in [*services_alone(state), *movable(state)]))
    number = {gpus: k for k, gpus in enumerate(places)}
    kept = np.zeros((len(groups), len(places)))
    for k, group in enumerate(groups):
        for job in [job for job in group.jobs if job.gpus and job.latency] or group.jobs:
            if job.gpus and state.machines.model[job.gpus[0]] == group.model:
                kept[k, number[job.gpus]] += job.workers
    seats: list[tuple[int, ...]] = [()] * len(groups)
    taken: set[int] = set()
    for row, column in zip(*linear_sum_assignment(kept, maximize=True), strict=True):
        if kept[row, column] and taken.isdisjoint(places[column]):
            seats[row] = places[column]
            taken.update(places[column])
    return seats


def _join(draft: Draft, jobs: Sequence[Job], gpus: Sequence[int]) -> None:
    for job in jobs:
        fits = bool(gpus) and keeps_groups(draft.state, job, gpus)
        if fits and all(draft.has_room(gpu, job) for gpu in gpus):
            draft.start(job, gpus)
