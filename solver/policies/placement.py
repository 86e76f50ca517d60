"""Placement of gangs: on few nodes and racks, without fragmenting nodes unnecessarily.

Gangs whose workers stay together on nodes get whole groups of GPUs there, or none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from dovetail.formulations.rounds import Machines
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job, State


def idle_gpus(draft: Draft, job: Job) -> list[int] | None:
    """Return idle GPUs for a whole gang, or None if no model has enough.

    Among the models with enough idle GPUs, the one on which the job runs fastest is taken. There
    the gang goes to the node with the fewest idle GPUs that is large enough; if none is, to the
    nodes with the most idle GPUs, so that it spans the fewest, and all in one rack if equally few
    nodes of one rack are enough. GPUs with too little memory for the job are skipped. Workers that
    must stay together on nodes do.
    """
    speed = draft.state.speed
    models = range(len(draft.state.machines.models))
    for model in sorted(models, key=lambda m: -speed[m][job.workload]):
        found = idle_gpus_of(draft, job, job.workers, model)
        if found is not None:
            return found
    return None


def idle_gpus_of(draft: Draft, job: Job, count: int, model: int, mode: int = 0) -> list[int] | None:
    """Return ``count`` idle GPUs of one model for workers of a job, or None if there are too few.

    GPUs that are reserved for the job may be used. Workers that must stay together on nodes do;
    ``count`` are whole groups of them then.
    """
    own = draft.state.reserved.get(job.number)
    if own is None:
        return _idle_gpus_of(draft, job, count, model, mode)
    released = draft.release(own.gpus)
    found = _idle_gpus_of(draft, job, count, model, mode)
    draft.keep(released)
    return found


def _idle_gpus_of(draft: Draft, job: Job, count: int, model: int, mode: int) -> list[int] | None:
    if draft.idle_total < count:
        return None
    machines = draft.state.machines
    way = draft.state.modes[job.workload][mode]
    if len(machines.models) == 1 and machines.all_hold(0, [way]):
        return _chosen(job, draft.idle_count, count, draft.idle_on, machines)

    def fitting(node: int) -> list[int]:
        return [
            gpu
            for gpu in draft.idle_on(node)
            if machines.model[gpu] == model and draft.has_room(gpu, job, mode)
        ]

    counts = [len(fitting(node)) if idle else 0 for node, idle in enumerate(draft.idle_count)]
    return _chosen(job, counts, count, fitting, machines)


def _chosen(
    job: Job,
    counts: list[int],
    count: int,
    idle_on: Callable[[int], list[int]],
    machines: Machines,
) -> list[int] | None:
    if not job.by_node:
        return _consolidated(counts, count, idle_on, machines)
    return in_groups(job, {n: idle_on(n) for n, idle in enumerate(counts) if idle}, count)


def in_groups(job: Job, usable: Mapping[int, Sequence[int]], count: int) -> list[int] | None:
    """Return GPUs for workers of a job in whole groups on nodes, or None if there are too few.

    Nodes on which most groups fit come first, then those with the fewest usable GPUs; of several
    that hold all the groups that are left, the one with the fewest.

    Parameters
    ----------
    job : Job
        A gang whose workers stay together on nodes.
    usable : mapping of int to sequence of int
        The GPUs of each node that it may use, the best first. They are of one model.
    count : int
        Number of workers.
    """
    left = {n: job.groups_on(len(gpus)) for n, gpus in usable.items()}
    needed, taken = count // job.together, list[int]()
    while needed:
        node = min(left, key=lambda n: (-min(left[n], needed), len(usable[n])), default=None)
        if node is None or not left[node]:
            return None
        groups = min(left.pop(node), needed)
        taken += usable[node][: groups * job.together]
        needed -= groups
    return taken


def keeps_groups(state: State, job: Job, gpus: Sequence[int]) -> bool:
    """Return whether workers on these GPUs are as many on each node as the job allows."""
    if not job.by_node:
        return True
    on = Counter(state.machines.node[gpu] for gpu in gpus)
    return all(job.groups_on(number) * job.together == number for number in on.values())


def _consolidated(
    counts: list[int], workers: int, idle_on: Callable[[int], list[int]], machines: Machines
) -> list[int] | None:
    """Return GPUs of few nodes, given the number and the list of usable GPUs of each node."""
    fullest = min([count for count in counts if count >= workers], default=None)
    if fullest is not None:
        return idle_on(counts.index(fullest))[:workers]
    if sum(counts) < workers:
        return None
    nodes = fewest_nodes({n: count for n, count in enumerate(counts) if count}, workers, machines)
    return [gpu for node in nodes for gpu in idle_on(node)][:workers]


def fewest_nodes(counts: Mapping[int, int], workers: int, machines: Machines) -> list[int]:
    """Return the fewest nodes that hold a gang, all of one rack if that needs no more.

    Parameters
    ----------
    counts : mapping of int to int
        How many workers each node can hold; at least the gang's workers in total.
    workers : int
        Number of workers of the gang.
    machines : Machines
        The machines, with the racks of the nodes.
    """
    rack_of = {node: int(machines.rack_of_node[node]) for node in counts}
    held: dict[int, int] = {}
    for node, rack in rack_of.items():
        held[rack] = held.get(rack, 0) + counts[node]
    place = {rack: k for k, rack in enumerate(held)}
    order = sorted(counts, key=lambda n: (-counts[n], -held[rack_of[n]], place[rack_of[n]]))
    fewest = _until(order, counts, workers)
    alone = (
        _until([node for node in order if rack_of[node] == rack], counts, workers)
        for rack in sorted(held, key=lambda rack: held[rack])
        if held[rack] >= workers
    )
    return next((nodes for nodes in alone if len(nodes) == len(fewest)), fewest)


def _until(order: Sequence[int], counts: Mapping[int, int], workers: int) -> list[int]:
    """Return the first nodes that together hold a gang."""
    held = list(accumulate(counts[node] for node in order))
    return [*order[: bisect_left(held, workers) + 1]]
