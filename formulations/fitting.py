"""Gangs that no plan can place, because too few GPUs have room for their workers.

They are left out of the groups before anything is built on these: workers that can never run
would take memory, and their weights would set the scale by which all weights are rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations._rows import packed
from dovetail.formulations.groups import Groups

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def fitting(groups: Groups) -> Groups:
    """Return the groups without those of gangs that have no room for all their workers.

    A gang runs at one sub-batch on GPUs of one model, and where gangs share whole, beside the
    same jobs everywhere. GPUs are counted on which a group allows that; a group left out may
    leave too few of them to another gang, so that is done until nothing changes.
    """
    while groups.round.gangs_wait and not (keep := _has_room(groups)).all():
        groups = groups.take(keep)
    return groups


def _has_room(groups: Groups) -> Bools:
    """Tell which groups have no gang with too few GPUs, (n,)."""
    jobs = groups.round.jobs
    pending_gang = (jobs.workers > 1) & ~jobs.running
    member = np.flatnonzero(pending_gang[groups.job])
    group = groups.group_of_member[member]
    columns = [groups.variant[member], groups.model[member]]
    if groups.round.machines.rules.gang_sharing == "whole":
        columns.append(_jobs(groups)[group])
    _, way = np.unique(packed(np.stack(columns, axis=1)), return_inverse=True)
    gpu_class = groups.gpu_class[group]
    _, first = np.unique(packed(np.stack([way, gpu_class], axis=1)), return_index=True)
    gpus = groups.round.class_sizes
    room = np.bincount(way[first], weights=gpus[gpu_class[first]])
    lacks = room[way] < jobs.workers[groups.job[member]]
    return np.asarray(np.bincount(group, weights=lacks, minlength=len(groups)) == 0)


def _jobs(groups: Groups) -> Ints:
    """Return a number for each group, equal exactly where the jobs are the same, (n,)."""
    place = np.arange(len(groups.job)) - groups.start[groups.group_of_member]
    jobs = np.zeros((len(groups), int(groups.sizes.max(initial=1))), dtype=np.int64)
    jobs[groups.group_of_member, place] = groups.job + 1
    return packed(jobs)
