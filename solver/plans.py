"""From a choice of groups to a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.rounds import Round
from dovetail.instances.hosts import host_slowdown
from dovetail.instances.instance import Job
from dovetail.instances.plan import Assignment
from dovetail.instances.slowdowns.shares import share_of


def assignments(
    groups: Groups,
    placed: Mapping[str, int],
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
    order = groups.round.machines.number
    seats: dict[int, dict[str, int]] = defaultdict(dict)
    on: dict[str, list[str]] = defaultdict(list)
    for gpu in sorted(placed, key=order.__getitem__):
        for member in groups.members(placed[gpu]):
            chosen = int(groups.job[member])
            job = takes.get(chosen, chosen)
            seats[job][gpu] = member
            on[gpu].append(jobs[job].id)
    slowdown = _slowdowns(groups, placed)
    return tuple(_assignment(groups, slowdown, jobs[k], seats[k], on) for k in sorted(seats))


def _slowdowns(groups: Groups, placed: Mapping[str, int]) -> Floats:
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
    groups: Groups,
    slowdown: Floats,
    job: Job,
    seats: Mapping[str, int],
    on: Mapping[str, list[str]],
) -> Assignment:
    gpus = _in_order_of_ranks(job, seats)
    members = [seats[gpu] for gpu in gpus]
    shares = tuple(share_of(int(groups.share[m])) for m in members)
    sub_batch = groups.variants[int(groups.variant[members[0]])].sub_batch
    batch = groups.round.instance.workloads[job.workload].batch
    held = job.gpus, job.shares, job.sub_batch or (batch and batch.size)
    return Assignment(
        job=job.id,
        gpus=gpus,
        share=shares,
        slowdown=max(float(slowdown[m]) for m in members),
        sub_batch=sub_batch,
        co_runners=tuple(tuple(other for other in on[gpu] if other != job.id) for gpu in gpus),
        start=(gpus, shares, sub_batch) != held,
    )


def _in_order_of_ranks(job: Job, seats: Mapping[str, int]) -> tuple[str, ...]:
    """Return the GPUs of a job; workers that stay on their GPU keep their rank."""
    held = job.gpus or ()
    free = iter([gpu for gpu in seats if gpu not in held])
    return tuple(gpu if gpu in seats else next(free) for gpu in held) or tuple(seats)
