"""From who shall run with whom to the stops and starts that bring it about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus_of
from dovetail.solver.policies.state import Job, State


class Group(NamedTuple):
    """Jobs of equally many workers that share all their GPUs, of one model."""

    jobs: tuple[Job, ...]
    model: int


def rearranged(state: State, groups: Sequence[Group]) -> Draft:
    """Return the draft in which exactly these groups run, with few jobs moved.

    A group stays where its first member that may stay runs, if that is on its model; its others
    join there. Running jobs that are in no group, or belong elsewhere, are stopped. A group for
    which the right GPUs are not idle (a member needs more memory than they have) is left out.
    """
    draft = Draft(state)
    seats = [_seat(group) for group in groups]
    staying = {
        job.number
        for group, seat in zip(groups, seats, strict=True)
        for job in group.jobs
        if seat is not None and job.phase == "running" and set(job.gpus) == set(seat)
    }
    for job in list(state.running.values()):
        if job.number not in staying:
            draft.stop(job)
    for group, seat in zip(groups, seats, strict=True):
        if seat is not None:
            _join(draft, [job for job in group.jobs if job.number not in staying], seat)
    for group, seat in zip(groups, seats, strict=True):
        first, *others = group.jobs
        gpus = None if seat else idle_gpus_of(draft, first, first.workers, group.model)
        if gpus is not None:
            draft.start(first, gpus)
            _join(draft, others, tuple(gpus))
    return draft


def _seat(group: Group) -> tuple[int, ...] | None:
    """Return the GPUs on which a member of a group runs already."""
    return next((job.gpus for job in group.jobs if job.gpus and job.mode == 0), None)


def _join(draft: Draft, jobs: Sequence[Job], gpus: tuple[int, ...]) -> None:
    for job in jobs:
        if all(draft.has_room(gpu, job) for gpu in gpus):
            draft.start(job, gpus)
