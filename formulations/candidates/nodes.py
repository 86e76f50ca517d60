"""Groups with gangs whose workers stay together on nodes, and the room that gangs have.

A gang with ``workers_per_node`` or ``workers_together`` has whole groups of workers on each of its
nodes. Formulations count GPUs of a class on any node, so every candidate group with such a gang is
listed once for each node on which its class has GPUs; all others stay as they are. The GPUs of a
class that no group with a node takes are enough for the groups without one exactly if the class has
as many GPUs as all its groups take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.formulations.arrays import Bools, Ints, packed
from dovetail.formulations.budget import require_room
from dovetail.formulations.candidates.groups import Groups

_BYTES = 400
"""Measured memory of listing and solving, for each member of a group on a node."""


def on_nodes(groups: Groups) -> Groups:
    """Return the groups with one copy for each node if a gang in them has a rule for nodes.

    Raises
    ------
    UnsupportedError
        If they would not fit in memory.
    """
    return groups if not groups.by_node else fitting(copied(groups)[0])


def copied(groups: Groups) -> tuple[Groups, Ints]:
    """Return the groups with their copies for each node, and the group of each.

    Raises
    ------
    UnsupportedError
        If they would not fit in memory.
    """
    compiled, tied = groups.round, with_rules(groups)
    copies = copies_of(groups)
    require_room(_BYTES * float((copies * groups.sizes).sum()), "the groups on each node")
    number = np.repeat(np.arange(len(groups)), copies)
    node = np.full(len(number), -1)
    node[tied[number]] = np.nonzero(compiled.gpus_by_node[groups.gpu_class[tied]])[1]
    return replace(groups.take(number), node=node), number


def with_rules(groups: Groups) -> Bools:
    """Return which groups have a gang whose workers stay together on nodes, (n,)."""
    on_nodes = groups.round.on_nodes[groups.job]
    return np.asarray(np.bincount(groups.group_of_member, on_nodes, len(groups)) > 0)


def copies_of(groups: Groups) -> Ints:
    """Return how many copies of each group there are, one for each node if need be, (n,)."""
    nodes = (groups.round.gpus_by_node > 0).sum(axis=1)[groups.gpu_class]
    return np.where(with_rules(groups), nodes, 1)


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
    node = groups.node[group]
    _, first = np.unique(
        packed(np.stack([way, groups.gpu_class[group], node + 1], axis=1)), return_index=True
    )
    number, place, at = _numbered(way, node)
    gpus = np.bincount(place[first], groups.available[group[first]], number).astype(np.int64)
    room = np.zeros(number, dtype=np.int64)
    np.maximum.at(room, place, _whole(groups, groups.job[member], node, gpus[place]))
    lacks = (np.bincount(at, room)[way] < jobs.workers[groups.job[member]]) | (room[place] == 0)
    return np.asarray(np.bincount(group, weights=lacks, minlength=len(groups)) == 0)


def _numbered(way: Ints, node: Ints) -> tuple[int, Ints, Ints]:
    """Return the number of pairs of a way and a node, the pair of each row, and its way."""
    pairs, place = np.unique(packed(np.stack([way, node + 1], axis=1)), return_inverse=True)
    at = np.zeros(len(pairs), dtype=np.int64)
    at[place] = way
    return len(pairs), place, at


def _whole(groups: Groups, job: Ints, node: Ints, gpus: Ints) -> Ints:
    """Return how many workers of jobs these GPUs of a node can have, in whole groups, (k,)."""
    jobs = groups.round.jobs
    together = jobs.together[job]
    number = np.where(jobs.one_each[job], np.minimum(gpus // together, 1), gpus // together)
    return np.where(node < 0, gpus, number * together)


def _jobs(groups: Groups) -> Ints:
    """Return a number for each group, equal exactly if the jobs are the same, (n,)."""
    place = np.arange(len(groups.job)) - groups.start[groups.group_of_member]
    jobs = np.zeros((len(groups), int(groups.sizes.max(initial=1))), dtype=np.int64)
    jobs[groups.group_of_member, place] = groups.job + 1
    return packed(jobs)
