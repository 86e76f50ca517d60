"""The hard constraints of the round problem, one function each, the warnings, and the objectives.

``before`` holds the running jobs only, ``after`` also the jobs that the plan starts. A constraint
is checked only if a job starts; breaches among running jobs close their GPUs to starting jobs and
are otherwise warnings. The objectives are recomputed from their definitions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import IDLE, listed
from dovetail.instances.checking.completion import TOLERANCE, CheckedCompletion
from dovetail.instances.checking.facts import (
    Effect,
    GpuOccupants,
    JobOnGpus,
    Occupancy,
    RuleName,
    Violation,
)
from dovetail.instances.instance import Cluster, Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import GpuKind, SharingMode
from dovetail.instances.slowdowns.shares import NO_CAP

MEMORY_TOLERANCE_MIB = 1e-6
GSLA_TOLERANCE = 1e-9
JCT_TOLERANCE = 1e-9
LEAST_SENSITIVITY = 0.01


def broken_rules(
    before: Occupancy, after: Occupancy, objective: ObjectiveName
) -> Iterator[Violation]:
    """Yield every hard constraint that a starting job breaks."""
    for placed in after.placed.values():
        if placed.starting:
            yield from _gang(after, placed)
            yield from _groups_on_nodes(after, placed)
            yield from _allowed_shares(after.instance, placed)
            yield from _sub_batch(placed)
    for on_gpu in after.gpus.values():
        if on_gpu.joined:
            yield from _gpu_rules(before, after, on_gpu)
            if objective == "jct":
                yield from _jct(on_gpu)
    if objective == "completion" and len(after.effects) == len(after.placed):
        yield from _completion(after)
    if after.instance.cluster.gang_sharing == "whole":
        yield from _whole(after)
    yield from _hosts(before, after)
    yield from _gsla(before, after)
    yield from _closed(before, after)


def existing_breaches(before: Occupancy) -> Iterator[str]:
    """Yield a line for each rule that the running jobs already break among themselves."""
    cluster = before.instance.cluster
    for on_gpu in before.gpus.values():
        yield from map(str, _memory(on_gpu))
        yield from map(str, _share_sum(cluster, on_gpu))
        if len(on_gpu.jobs) > 1 and on_gpu.together is None:
            rule = f"no slowdown is known of {listed(on_gpu.ids)} together, each counted as alone"
            yield str(_broken("entry", f"GPU {on_gpu.name}", rule))
    if cluster.gang_sharing == "whole":
        yield from map(str, _whole(before, among_running=True))
    for placed in before.placed.values():
        yield from map(str, _groups_on_nodes(before, placed))
    for name, effect in before.effects.items():
        if _over_gsla(before.placed[name], effect):
            yield str(_gsla_broken(before.placed[name], effect))


def _gang(after: Occupancy, placed: JobOnGpus) -> Iterator[Violation]:
    """1: exactly ``workers`` distinct GPUs of one model."""
    workers = placed.job.workers
    if len(placed.share) != workers:
        rule = f"needs {workers} distinct GPUs, has {len(placed.share)}"
        yield _broken("gang", f"job {placed.job.id}", rule)
    if len(placed.share) == 1:
        return
    models = {after.instance.places[gpu].gpu.model for gpu in placed.share}
    if len(models) > 1:
        where = f"job {placed.job.id}"
        yield _broken("gang", where, f"needs GPUs of one model, has {listed(sorted(models))}")


def _groups_on_nodes(occupancy: Occupancy, placed: JobOnGpus) -> Iterator[Violation]:
    """1: on each of its nodes, ``workers_per_node`` workers, or whole ``workers_together``."""
    job = placed.job
    on = Counter(occupancy.instance.places[gpu].node for gpu in placed.share)
    has = listed(f"{number} on {node}" for node, number in on.items())
    exactly, together = job.workers_per_node, job.workers_together
    if exactly and any(number != exactly for number in on.values()):
        rule = f"needs exactly {exactly} workers on each of its nodes, has {has}"
        yield _broken("nodes", f"job {job.id}", rule)
    if together and any(number % together for number in on.values()):
        rule = f"needs a multiple of {together} workers on each of its nodes, has {has}"
        yield _broken("nodes", f"job {job.id}", rule)


def _allowed_shares(instance: Instance, placed: JobOnGpus) -> Iterator[Violation]:
    """2: a starting job's share is null or one of ``shares``; ``idle`` for isolated jobs only.

    Under time slicing no share is a cap.
    """
    cluster = instance.cluster
    for gpu, share in placed.share.items():
        if share is None:
            continue
        if share not in cluster.shares:
            allowed = listed(map(str, cluster.shares)) or "none"
            rule = f"share {share} on {gpu} is not one of the cluster's shares ({allowed})"
            yield _broken("share", f"job {placed.job.id}", rule)
        elif share != IDLE and _sharing(instance, gpu) == "time_sliced":
            rule = f"share {share} on {gpu} is a cap, which time-sliced jobs cannot have"
            yield _broken("share", f"job {placed.job.id}", rule)
        elif share == IDLE and placed.workload.isolation is None:
            rule = f"share idle on {gpu} needs isolation: blocks of workload {placed.job.workload}"
            yield _broken("share", f"job {placed.job.id}", rule)


def _sub_batch(placed: JobOnGpus) -> Iterator[Violation]:
    """A starting job's sub-batch is one that gradient accumulation allows."""
    if placed.sub_batch is None:
        return
    batch, where = placed.workload.batch, f"job {placed.job.id}"
    if batch is None:
        rule = f"workload {placed.job.workload} has no batch, got sub-batch {placed.sub_batch}"
        yield _broken("sub_batch", where, rule)
    elif not batch.allows(placed.sub_batch):
        rule = f"must be {batch.size} / 2^k and >= {batch.min}, got {placed.sub_batch}"
        yield _broken("sub_batch", where, rule)


def _gpu_rules(before: Occupancy, after: Occupancy, on_gpu: GpuOccupants) -> Iterator[Violation]:
    """2 and 3: the rules for all jobs on one GPU."""
    cluster, where = after.instance.cluster, f"GPU {on_gpu.name}"
    most = cluster.most_on(on_gpu.place.gpu)
    if len(on_gpu.jobs) > most:
        rule = f"holds {len(on_gpu.jobs)} jobs, at most {most} may"
        yield _broken("capacity", where, rule)
    yield from _share_sum(cluster, on_gpu)
    yield from _memory(on_gpu)
    yield from _needed_sharing(after.instance, on_gpu)
    if len(on_gpu.jobs) == 1:
        yield from _starts_alone(cluster, on_gpu)
    elif _without_entry(before, on_gpu.name):
        running = listed(before.gpus[on_gpu.name].ids)
        yield _broken("entry", where, f"holds {running} without an entry, nothing may join")
    elif on_gpu.together is None:
        yield _broken("entry", where, f"no entry lets {_members(on_gpu)} share")


def _starts_alone(cluster: Cluster, on_gpu: GpuOccupants) -> Iterator[Violation]:
    """2: alone, a job has no cap, or with ``start_capped`` a cap of known throughput."""
    (placed,), (share,) = on_gpu.jobs, on_gpu.shares
    if share is None:
        return
    where = f"job {placed.job.id}"
    if not cluster.start_capped:
        yield _broken("share", where, f"starts alone on {on_gpu.name} at share {share}, not null")
    elif on_gpu.effects is None:
        rule = f"throughput at 100 and {share} must be known to start alone on {on_gpu.name}"
        yield _broken("share", where, f"{rule} at share {share}")


def _sharing(instance: Instance, gpu: str) -> SharingMode:
    """Return how jobs share a GPU: its own ``sharing``, or else the cluster's."""
    return instance.places[gpu].gpu.sharing or instance.cluster.sharing


def _needed_sharing(instance: Instance, on_gpu: GpuOccupants) -> Iterator[Violation]:
    """2: a job with ``sharing`` shares only GPUs that are shared in this way."""
    there = _sharing(instance, on_gpu.name)
    for placed in on_gpu.jobs if len(on_gpu.jobs) > 1 else ():
        needs = placed.job.sharing
        if needs is not None and needs != there:
            rule = f"{placed.job.id} shares GPUs by {needs} only, and this one is shared by {there}"
            yield _broken("sharing", f"GPU {on_gpu.name}", rule)


def _share_sum(cluster: Cluster, on_gpu: GpuOccupants) -> Iterator[Violation]:
    total = on_gpu.share_sum
    if total > cluster.share_sum:
        rule = f"caps sum to {total} > {cluster.share_sum}"
        yield _broken("share", f"GPU {on_gpu.name}", rule)


def _memory(on_gpu: GpuOccupants) -> Iterator[Violation]:
    """3: the memory of the jobs and the reserve fits on the GPU."""
    needed, size = on_gpu.memory_mib, on_gpu.place.gpu.memory_mib
    if needed > size + MEMORY_TOLERANCE_MIB:
        need = "needs" if len(on_gpu.ids) == 1 else "need"
        rule = f"{listed(on_gpu.ids)} {need} {needed:.10g} MiB > {size:.10g} MiB"
        yield _broken("memory", f"GPU {on_gpu.name}", rule)


def _whole(occupancy: Occupancy, among_running: bool = False) -> Iterator[Violation]:
    """1: under ``whole``, gangs that share any GPU share all of them."""
    asked: set[tuple[str, str]] = set()
    for on_gpu in occupancy.gpus.values():
        for a, b in combinations(on_gpu.jobs, 2):
            pair = (a.job.id, b.job.id)
            mine = among_running or a.starting or b.starting
            if mine and pair not in asked and a.share.keys() != b.share.keys():
                rule = f"shares {on_gpu.name} with {b.job.id} but not all GPUs of both"
                yield _broken("whole", f"job {a.job.id}", rule)
            asked.add(pair)


def _gsla(before: Occupancy, after: Occupancy) -> Iterator[Violation]:
    """4: the gSLA of starting jobs and of running jobs that they join or slow through the host."""
    asked = {name for gpu in after.gpus.values() if gpu.joined for name in gpu.ids}
    asked |= {name for name, running in before.placed.items() if _slower(before, after, running)}
    for name, effect in after.effects.items():
        if name in asked and _over_gsla(after.placed[name], effect):
            yield _gsla_broken(after.placed[name], effect)


def _slower(before: Occupancy, after: Occupancy, running: JobOnGpus) -> bool:
    """Return whether a running job is slowed more by its host than before."""
    return bool(after.hosts.load) and any(
        after.hosts.slowdown(running, gpu) > before.hosts.slowdown(running, gpu)
        for gpu in running.share
    )


def _hosts(before: Occupancy, after: Occupancy) -> Iterator[Violation]:
    """6: starting jobs fit the free resources of a host, or only one job exceeds them."""
    for node, name, load in after.hosts.over_capacity():
        starting = [
            (placed, gpu)
            for placed in after.placed.values()
            for gpu in placed.share
            if placed.starting and _asks(after, placed, gpu, node, name)
        ]
        if not starting:
            continue
        (first, gpu), *more = starting
        where = f"node {node}"
        asked = f"{listed(dict.fromkeys(p.job.id for p, _ in starting))}: {name} is asked for "
        asked += f"{load:.4g} times"
        touched = [
            on_gpu.name
            for on_gpu in after.gpus.values()
            if on_gpu.joined
            and any(_asks(after, placed, on_gpu.name, node, name) for placed in on_gpu.jobs)
        ]
        if more or len(touched) > 1:
            yield _broken("host", where, f"{asked}, at most one job may start beyond what is left")
        elif len(after.gpus[gpu].jobs) > 1:
            yield _broken("host", where, f"{asked}, {first.job.id} may start alone on a GPU only")
        for running in before.placed.values():
            here = [g for g in running.share if _asks(after, running, g, node, name)]
            if here and len(here) < len(running.share):
                rule = f"{asked}, the gang {running.job.id} runs there and on other nodes"
                yield _broken("host", where, rule)


def _asks(occupancy: Occupancy, placed: JobOnGpus, gpu: str, node: str, name: str) -> bool:
    """Return whether the worker of a job on a GPU asks for a resource of a node."""
    hosts = occupancy.hosts
    return hosts.node_of(gpu) == node and name in hosts.parts(placed, gpu)


def _closed(before: Occupancy, after: Occupancy) -> Iterator[Violation]:
    """5: no job joins any GPU of a job that is already over its gSLA."""
    for name, effect in before.effects.items():
        running = before.placed[name]
        if not _over_gsla(running, effect):
            continue
        for gpu in running.share:
            if after.gpus[gpu].joined:
                over = f"({effect.bound:.10g} > {running.job.gsla:.10g}), nothing may join"
                when = "will be over its gSLA" if effect.later else "is over its gSLA already"
                rule = f"job {name} {when} {over}"
                yield _broken("gsla", f"GPU {gpu}", rule)


def _jct(on_gpu: GpuOccupants) -> Iterator[Violation]:
    """Castor's theorem 1: two jobs share only if that makes their mean completion earlier."""
    where = f"GPU {on_gpu.name}"
    if len(on_gpu.jobs) > 2:
        yield _broken("jct", where, f"{len(on_gpu.jobs)} jobs share, at most 2 may under jct")
    elif len(on_gpu.jobs) == 2 and on_gpu.effects is not None:
        together = _mean_shared_s(on_gpu)
        in_turn = _mean_in_turn_s(on_gpu)
        if not together < in_turn * (1 - JCT_TOLERANCE):
            rule = f"{' and '.join(on_gpu.ids)} complete in {together:.10g} s on average when "
            yield _broken("jct", where, f"{rule}they share, not earlier than {in_turn:.10g} s")


def _completion(after: Occupancy) -> Iterator[Violation]:
    """No job shares beyond the time at which all jobs, each alone, are forecast to have ended."""
    completion = CheckedCompletion(after)
    last = completion.forecast.last_s
    for on_gpu in after.gpus.values():
        if on_gpu.joined and len(on_gpu.jobs) > 1:
            end = max(completion.ends(on_gpu))
            if end > last * (1 + TOLERANCE):
                rule = f"{listed(on_gpu.ids)} end {end:.10g} s from now when they share, later"
                rule += f" than the {last:.10g} s in which all jobs are forecast to end"
                yield _broken("completion", f"GPU {on_gpu.name}", rule)


def _mean_shared_s(on_gpu: GpuOccupants) -> float:
    """Return the mean completion of two jobs that run together until one of them ends."""
    runs = [
        (effect.slowdown * _remaining_s(placed), effect.slowdown, placed)
        for placed, effect in zip(on_gpu.jobs, on_gpu.effects or (), strict=True)
    ]
    (first_end, _, _), (_, slowdown, last) = sorted(runs, key=lambda run: run[0])
    # The remaining work is done alone, but still at the sub-batch that the job was started with.
    last_end = first_end + (_remaining_s(last) - first_end / slowdown) * last.growth
    return (first_end + last_end) / 2


def _mean_in_turn_s(on_gpu: GpuOccupants) -> float:
    """Return the mean completion one after the other, the running or else the shorter job first.

    A running job keeps its sub-batch; a job that waits will run at full batch.
    """
    order = sorted(on_gpu.jobs, key=lambda placed: (placed.starting, _remaining_s(placed)))
    first, second = (
        _remaining_s(placed) * (1 if placed.starting else placed.growth) for placed in order
    )
    return (first + (first + second)) / 2


def _remaining_s(placed: JobOnGpus) -> float:
    return placed.job.remaining_s or 0.0


def _without_entry(before: Occupancy, gpu: str) -> bool:
    on_gpu = before.gpus.get(gpu)
    return on_gpu is not None and len(on_gpu.jobs) > 1 and on_gpu.together is None


def _members(on_gpu: GpuOccupants) -> str:
    model = on_gpu.place.gpu.model
    text = (
        f"{placed.job.id} ({placed.job.workload} at {share or 'no cap'})"
        for placed, share in zip(on_gpu.jobs, on_gpu.shares, strict=True)
    )
    return f"{listed(text)} on {model}"


def _over_gsla(placed: JobOnGpus, effect: Effect) -> bool:
    gsla = placed.job.gsla
    return gsla is not None and effect.bound > gsla * (1 + GSLA_TOLERANCE)


def _gsla_broken(placed: JobOnGpus, effect: Effect) -> Violation:
    rule = f"slowdown {effect.bound:.10g} > {placed.job.gsla:.10g}"
    rule += " once co-runners have ended" if effect.later else ""
    return _broken("gsla", f"job {placed.job.id}", rule)


def _broken(rule: RuleName, where: str, message: str) -> Violation:
    return Violation(rule=rule, where=where, message=message)


def objective_value(after: Occupancy, objective: ObjectiveName) -> float | None:
    """Return the value of a plan, or None if the slowdown of a placed job is not known.

    For the two-stage objectives (``slowdown``, ``sensitivity``, ``energy``, ``fewest``) this is the
    value of the second stage; ``placed_weight`` is the value of the first.
    """
    if len(after.effects) < len(after.placed):
        return None
    return _VALUES[objective](after)


def placed_weight(after: Occupancy) -> float:
    """Return the total weight of the placed jobs, including running ones."""
    return fsum(placed.job.weight for placed in after.placed.values())


def spanned(after: Occupancy) -> tuple[int, int]:
    """Return the number of nodes and of racks of each gang, summed over the gangs."""
    places = after.instance.places
    nodes = racks = 0
    for placed in after.placed.values():
        if len(placed.share) == 1:
            nodes, racks = nodes + 1, racks + 1
            continue
        nodes += len({places[gpu].node for gpu in placed.share})
        racks += len({places[gpu].rack for gpu in placed.share})
    return nodes, racks


def sensitivities(instance: Instance) -> Mapping[str, float]:
    """Return the sensitivity of the jobs of each workload (TensorShare's S2).

    This is the population standard deviation, over all other jobs, of the workload's own lowest
    slowdown over the known pairs with that job's workload; at least 0.01; 1 if fewer than two are
    known.
    """
    lowest = _lowest_slowdowns(instance)
    jobs = Counter(job.workload for job in instance.jobs)
    return {own: _sensitivity(own, jobs, lowest) for own in jobs}


def _sensitivity(own: str, jobs: Mapping[str, int], lowest: Callable[[str, str], float]) -> float:
    known = [
        (slowdown, count - (own == other))
        for other, count in jobs.items()
        if (slowdown := lowest(own, other)) < math.inf
    ]
    total = sum(count for _, count in known)
    if total < 2:
        return 1.0
    mean = fsum(value * count for value, count in known) / total
    variance = fsum((value - mean) ** 2 * count for value, count in known) / total
    return max(LEAST_SENSITIVITY, sqrt(variance))


def _lowest_slowdowns(instance: Instance) -> Callable[[str, str], float]:
    """Return each workload's lowest slowdown with another, over shares and GPU models.

    It is infinite for a pair that is not known.
    """
    known = instance.slowdowns
    lowest = np.full((len(known.names),) * 2, np.inf)
    holding = np.flatnonzero(_holds(known, instance) & ~np.isnan(known.slowdown).any(axis=1))
    one, other = known.workload[holding].T
    np.minimum.at(lowest, (one, other), known.slowdown[holding, 0])
    np.minimum.at(lowest, (other, one), known.slowdown[holding, 1])
    number = {name: k for k, name in enumerate(known.names)}
    declared = instance.cluster.assumed
    if declared is not None and declared.pair is not None:
        _add_declared(instance, declared.pair, lowest, number)

    def of_pair(own: str, other: str) -> float:
        if own not in number or other not in number:
            return math.inf
        return float(lowest[number[own], number[other]])

    return of_pair


def _add_declared(
    instance: Instance, slowdown: float, lowest: NDArray[np.float64], number: Mapping[str, int]
) -> None:
    """Enter the declared slowdown of jobs that no entry names without caps, in place."""
    named = dict(instance.entries)
    for a, b in product({job.workload for job in instance.jobs}, repeat=2):
        both = tuple(sorted([(a, NO_CAP), (b, NO_CAP)]))
        if any(
            (None, both, mode) not in named and (model, both, mode) not in named
            for model, mode in _kinds(instance)
        ):
            cell = number[a], number[b]
            lowest[cell] = min(lowest[cell], slowdown)


def _holds(known: Slowdowns, instance: Instance) -> NDArray[np.bool_]:
    """Return the pairs whose entry applies to some GPU of the cluster.

    An entry for a GPU model overrides the one without a model.
    """
    found = np.zeros(len(known.row), dtype=np.bool_)
    for model, mode in _kinds(instance):
        found |= known.holds_on(model, mode)
    return found


def _kinds(instance: Instance) -> set[GpuKind]:
    return {instance.cluster.kind_of(place.gpu) for place in instance.places.values()}


def _throughput(after: Occupancy) -> float:
    return _total(after, lambda placed: _rate(after, placed))


def _slowdown(after: Occupancy) -> float:
    return _total(after, lambda placed: after.effects[placed.job.id].slowdown)


def _sensitive_slowdown(after: Occupancy) -> float:
    of = sensitivities(after.instance)
    return _total(
        after, lambda placed: after.effects[placed.job.id].slowdown / of[placed.job.workload]
    )


def _job_rate(after: Occupancy) -> float:
    return _total(after, lambda placed: _rate(after, placed) / (placed.job.remaining_s or 1.0))


def _energy(after: Occupancy) -> float:
    """Work per watt; a cluster that does nothing has 0."""
    work = _total(after, lambda placed: placed.job.workers * _rate(after, placed))
    power = fsum(on_gpu.power_w or 0.0 for on_gpu in after.gpus.values())
    return work / power if after.gpus else 0.0


def _cost_in_use(after: Occupancy) -> float:
    """Cost of the GPUs with jobs; their number if the cluster gives no costs."""
    used = {gpu for placed in after.placed.values() for gpu in placed.share}
    costs = (after.instance.places[gpu].gpu.cost_per_hour for gpu in sorted(used))
    return fsum(1.0 if cost is None else cost for cost in costs)


def _total(after: Occupancy, value: Callable[[JobOnGpus], float]) -> float:
    return fsum(placed.job.weight * value(placed) for placed in after.placed.values())


def _rate(after: Occupancy, placed: JobOnGpus) -> float:
    model = after.instance.places[next(iter(placed.share))].gpu.model
    return placed.workload.speed.get(model, 1.0) / after.effects[placed.job.id].slowdown


_VALUES: Mapping[ObjectiveName, Callable[[Occupancy], float]] = {
    "throughput": _throughput,
    "slowdown": _slowdown,
    "sensitivity": _sensitive_slowdown,
    "jct": _job_rate,
    "energy": _energy,
    "fewest": _cost_in_use,
    "completion": lambda after: CheckedCompletion(after).value(),
}
