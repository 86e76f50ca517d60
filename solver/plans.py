"""From a choice of groups to a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dovetail.formulations.groups import NO_SHARE, Groups
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment


def assignments(groups: Groups, placed: Mapping[str, int]) -> tuple[Assignment, ...]:
    """Return the assignment of every placed job, in the order of the instance.

    Parameters
    ----------
    groups : Groups
        The candidate groups.
    placed : mapping
        The group on each GPU in use.
    """
    jobs = groups.round.jobs
    order = {gpu: k for k, gpu in enumerate(groups.round.instance.places)}
    seats: dict[int, dict[str, int]] = defaultdict(dict)
    for gpu in sorted(placed, key=order.__getitem__):
        for member in groups.members(placed[gpu]):
            seats[int(groups.job[member])][gpu] = member
    return tuple(
        _assignment(groups, job, seats[job], placed) for job in range(len(jobs)) if job in seats
    )


def nodes_spanned(instance: Instance, assigned: Iterable[Assignment]) -> int:
    """Return the number of nodes that each placed job is on, summed over the jobs."""
    return sum(len({instance.places[gpu].node for gpu in a.gpus}) for a in assigned)


def _assignment(
    groups: Groups, index: int, seats: Mapping[str, int], placed: Mapping[str, int]
) -> Assignment:
    jobs = groups.round.jobs
    job = jobs[index]
    gpus = job.gpus or tuple(seats)
    members = [seats[gpu] for gpu in gpus]
    shares = tuple(int(s) if (s := groups.share[m]) != NO_SHARE else None for m in members)
    others = [
        tuple(jobs[k].id for m in groups.members(placed[gpu]) if (k := int(groups.job[m])) != index)
        for gpu in gpus
    ]
    return Assignment(
        job=job.id,
        gpus=gpus,
        share=shares,
        slowdown=max(float(groups.slowdown[m]) for m in members),
        sub_batch=groups.variants[int(groups.variant[members[0]])].sub_batch,
        co_runners=tuple(others),
        start=not job.running,
    )
