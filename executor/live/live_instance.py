"""From a state of live mode to the instance whose round it poses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import product

from dovetail.instances.instance import Cluster, Instance, Job, Node, SlowdownEntry
from dovetail.instances.slowdown_table import UNCAPPED, SlowdownTable
from dovetail.solver.policies import Job as SeenJob
from dovetail.solver.policies import State


def instance_of(
    state: State, cluster: Cluster, troubled: Collection[str], alone: Collection[int]
) -> Instance:
    """Return the round that a state poses: its jobs, and what is believed of their workloads.

    Every two workloads have an entry at all caps that may be used, ``slowdown: null`` where they
    may not share, so that no predictor fills it in.

    Parameters
    ----------
    state : State
        Jobs, and beliefs.
    cluster : Cluster
        The pool's; devices that take nobody and hold nobody are left out.
    troubled : collection of str
        Devices that take nobody.
    alone : collection of int
        The workloads of the state whose jobs run alone: they get no entries.
    """
    jobs = sorted([*state.running.values(), *state.pending.values()], key=lambda job: job.number)
    used = sorted({job.workload for job in jobs})
    holding = {state.machines.gpu_ids[gpu] for gpu, on in enumerate(state.residents) if on}
    shared = [workload for workload in used if workload not in alone]
    return Instance(
        name="live",
        cluster=_without(cluster, {gpu for gpu in troubled if gpu not in holding}),
        workloads={state.names[k]: state.workloads[k] for k in used},
        jobs=tuple(_record(state, job) for job in jobs),
        slowdowns=tuple(_entries(state.predicted, shared)),
    )


def _without(cluster: Cluster, gpus: Collection[str]) -> Cluster:
    nodes = (
        Node(id=n.id, rack=n.rack, gpus=tuple(gpu for gpu in n.devices if gpu.id not in gpus))
        for n in cluster.nodes
    )
    return cluster.replace(nodes=tuple(node for node in nodes if node.gpus))


def _record(state: State, job: SeenJob) -> Job:
    running = job.phase == "running"
    return Job(
        id=job.id,
        workload=state.names[job.workload],
        workers=job.workers,
        gsla=None if math.isinf(job.gsla) else job.gsla,
        weight=job.weight,
        arrival_s=max(0.0, job.arrival_s),
        remaining_s=job.remaining(state.now),
        priority="latency" if job.latency else "batch",
        state="running" if running else "pending",
        gpus=tuple(state.machines.gpu_ids[gpu] for gpu in job.gpus) if running else None,
        share=job.shares if running else None,
    )


def _entries(table: SlowdownTable, shared: Collection[int]) -> Iterator[SlowdownEntry]:
    for m, k in product(range(len(table.models)), range(len(table.caps))):
        mine, theirs = table.caps[k]
        for a, b in product(shared, repeat=2):
            mirror_of_another = a > b or (a == b and (mine or 0) > (theirs or 0))
            if not mirror_of_another:
                yield _entry(table, m, k, a, b)


def _entry(table: SlowdownTable, m: int, k: int, a: int, b: int) -> SlowdownEntry:
    caps = table.caps[k]
    back = table.caps_place[caps[1], caps[0]]
    slowdown = table.rows[m][k][a][b], table.rows[m][back][b][a]
    upper = table.upper_rows[m][k][a][b], table.upper_rows[m][back][b][a]
    known = not any(map(math.isnan, (*slowdown, *upper)))
    p99 = float(table.p99[m, k, a, b]), float(table.p99[m, back, b, a])
    tails = tuple(bound if math.isnan(t) else t for t, bound in zip(p99, upper, strict=True))
    return SlowdownEntry(
        pair=(table.workloads[a], table.workloads[b]),
        share=None if caps == UNCAPPED else caps,
        slowdown=slowdown if known else None,
        upper=upper if known and upper != slowdown else None,
        p99=tails if known and tails != upper else None,
        gpu_model=table.models[m],
    )
