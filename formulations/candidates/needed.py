"""The candidate groups of a round that a best plan may need, under an objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.kinds import Kinds
from dovetail.formulations.candidates.listing import list_groups
from dovetail.formulations.candidates.rows import packed
from dovetail.formulations.programs.scores import best_gains
from dovetail.formulations.values import JobValues

_LISTING = 0.3
"""The part of the remaining time that listing the groups may take: solving takes longer."""


def candidate_groups(
    values: JobValues,
    budget: Budget = UNLIMITED,
    at_paces: bool = False,
    kinds: Kinds | None = None,
) -> Groups:
    """Return the candidate groups, without those that no best plan needs or that have no room.

    Parameters
    ----------
    values : JobValues
        The objective, with its round.
    budget : Budget
        The budget of the answer. Listing takes at most a part of what is left; groups may then be
        missing (``Groups.complete``).
    at_paces : bool
        List gangs that share some of their GPUs at only a few paces (``paces``).
    kinds : Kinds, optional
        The kinds of jobs in the groups; by default those of the objective.
    """
    kinds = kinds or Kinds.of(values.round, values)
    groups = list_groups(values.round, values, budget.part(_LISTING), at_paces, kinds)
    return fitting(worthwhile(groups) if values.relative else groups)


def worthwhile(groups: Groups) -> Groups:
    """Drop the groups that make any plan worse than a plan without starts.

    A plan without starts has the value 0, under an objective whose groups have a value of at most
    0. The gain of a running gang is capped at its largest gain on its slowest GPUs. Otherwise
    groups that no plan needs or reaches would set the scale by which solvers round.
    """
    groups = replace(groups, gain=np.minimum(groups.gain, _most_of_running(groups)[groups.job]))
    most = np.maximum(best_gains(groups)[:, 0], 0.0)
    member = np.bincount(
        groups.group_of_member, weights=groups.gain - most[groups.job], minlength=len(groups)
    )
    return groups.take(member + groups.value + most.sum() >= 0)


def fitting(groups: Groups) -> Groups:
    """Drop the groups of gangs that have no room for all their workers.

    Workers that can never run would take memory, and their weights would set the scale by which all
    weights are rounded. A gang runs at one sub-batch on GPUs of one model and, if gangs share
    whole, with the same jobs everywhere. The GPUs are counted on which some group allows this;
    dropping a group may leave too few for another gang, so this repeats until nothing changes.
    """
    while groups.round.gangs_wait and not (keep := _has_room(groups)).all():
        groups = groups.take(keep)
    return groups


def _has_room(groups: Groups) -> Bools:
    """Return which groups have no gang with too few GPUs, (n,)."""
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
    """Return a number for each group, equal exactly if the jobs are the same, (n,)."""
    place = np.arange(len(groups.job)) - groups.start[groups.group_of_member]
    jobs = np.zeros((len(groups), int(groups.sizes.max(initial=1))), dtype=np.int64)
    jobs[groups.group_of_member, place] = groups.job + 1
    return packed(jobs)


def _most_of_running(groups: Groups) -> Floats:
    """Return each running job's largest gain on its worst GPUs, inf for other jobs."""
    classes = len(groups.round.classes)
    gpu_class = groups.gpu_class[groups.group_of_member]
    key, place = np.unique(groups.job * classes + gpu_class, return_inverse=True)
    best = np.full(len(key), -np.inf)
    np.maximum.at(best, place, groups.gain)
    most = np.full(len(groups.round), np.inf)
    np.minimum.at(most, key // classes, best)
    return np.where(groups.round.jobs.running, most, np.inf)
