"""From a choice of groups to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Floats, ranges
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.rounds import Round
from dovetail.instances._record import AnyShare
from dovetail.instances.hosts import host_slowdown
from dovetail.instances.instance import Instance, Job
from dovetail.instances.plan import Assignment
from dovetail.instances.slowdowns.shares import share_of


def assignments(
    groups: Groups,
    placed: Mapping[int, int],
    exchanged: Mapping[int, int] | None = None,
    preempted: Round | None = None,
) -> tuple[Assignment, ...]:
    """Return the assignment of every placed job, in the order of the instance.

    Parameters
    ----------
    groups : Groups
        The candidate groups.
    placed : mapping
        The group on each GPU in use.
    exchanged : mapping, optional
        The job that takes the place of a chosen job, if it is another one.
    preempted : Round, optional
        The round with its running jobs in place, if they are pending in ``groups``. A job that
        keeps its GPUs, shares and sub-batch does not start.
    """
    jobs = (preempted or groups.round).instance.jobs
    takes = exchanged or {}
    gpus, ids = sorted(placed), groups.round.machines.gpu_ids
    first = groups.start[[placed[gpu] for gpu in gpus]]
    size = groups.start[[placed[gpu] + 1 for gpu in gpus]] - first
    member = ranges(first, size)
    columns = (groups.job, groups.share, groups.variant, _slowdowns(groups, placed))
    rows = zip(*(column[member].tolist() for column in columns), strict=True)
    seats: dict[int, dict[str, _Seat]] = {}
    on: dict[str, list[str]] = {}
    for gpu, number in zip(map(ids.__getitem__, gpus), size.tolist(), strict=True):
        on[gpu] = []
        for chosen, share, variant, slowdown in islice(rows, number):
            job = takes.get(chosen, chosen)
            seats.setdefault(job, {})[gpu] = _Seat(share, variant, slowdown)
            on[gpu].append(jobs[job].id)
    return tuple([_assignment(groups, jobs[k], seats[k], on) for k in sorted(seats)])


class _Seat(NamedTuple):
    """A worker's code of its share, its variant and its slowdown."""

    share: int
    variant: int
    slowdown: float


def _slowdowns(groups: Groups, placed: Mapping[int, int]) -> Floats:
    """Return the slowdown of each member, including that by starts beyond the host's capacity."""
    hosts, jobs = groups.round.hosts, groups.round.jobs
    if hosts is None:
        return groups.slowdown
    used = np.array(sorted(placed.values()), dtype=np.int64)
    load = hosts.load_with(groups, np.bincount(used, minlength=len(groups)))
    node = hosts.class_node[groups.gpu_class[groups.group_of_member]]
    part = hosts.part[node, groups.job]
    ratio = host_slowdown(part, load[node]) / hosts.slowdown[node, groups.job]
    return groups.slowdown * np.where((node >= 0) & jobs.running[groups.job], ratio, 1.0)


def _assignment(
    groups: Groups, job: Job, seats: Mapping[str, _Seat], on: Mapping[str, list[str]]
) -> Assignment:
    gpus = _in_order_of_ranks(job, seats)
    held = [seats[gpu] for gpu in gpus]
    shares = tuple([share_of(seat.share) for seat in held])
    sub_batch = int(groups.variants.sub_batch[held[0].variant]) or None
    return Assignment(
        job=job.id,
        gpus=gpus,
        share=shares,
        slowdown=max([seat.slowdown for seat in held]),
        sub_batch=sub_batch,
        co_runners=tuple([tuple([name for name in on[gpu] if name != job.id]) for gpu in gpus]),
        start=not (job.running and _stays(groups.round.instance, job, gpus, shares, sub_batch)),
    )


def _stays(
    instance: Instance,
    job: Job,
    gpus: tuple[str, ...],
    shares: tuple[AnyShare, ...],
    sub_batch: int | None,
) -> bool:
    batch = instance.workloads[job.workload].batch
    now = job.gpus, job.shares, job.sub_batch or (batch and batch.size)
    return now == (gpus, shares, sub_batch)


def _in_order_of_ranks(job: Job, seats: Mapping[str, _Seat]) -> tuple[str, ...]:
    """Return the GPUs of a job; workers that stay on their GPU keep their rank."""
    if job.gpus is None:
        return tuple(seats)
    free = iter([gpu for gpu in seats if gpu not in job.gpus])
    return tuple(gpu if gpu in seats else next(free) for gpu in job.gpus)
