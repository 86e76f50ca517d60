"""The objectives of a plan, recomputed from their definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from math import fsum, sqrt

from dovetail.instances.checking.completion import CheckedCompletion
from dovetail.instances.checking.facts import JobOnGpus, Occupancy
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.slowdowns.entry import EntryKey, SlowdownEntry

LEAST_SENSITIVITY = 0.01


def objective_value(after: Occupancy, objective: ObjectiveName) -> float | None:
    """Return the value of a plan, or None if the slowdown of a placed job is not known.

    For the two-stage objectives (``slowdown``, ``sensitivity``, ``energy``) this is the value of
    the second stage; ``placed_weight`` is the value of the first.
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


def _sensitivity(
    own: str, jobs: Mapping[str, int], lowest: Mapping[tuple[str, str], float]
) -> float:
    known = [
        (lowest[own, other], count - (own == other))
        for other, count in jobs.items()
        if (own, other) in lowest
    ]
    total = sum(count for _, count in known)
    if total < 2:
        return 1.0
    mean = fsum(value * count for value, count in known) / total
    variance = fsum((value - mean) ** 2 * count for value, count in known) / total
    return max(LEAST_SENSITIVITY, sqrt(variance))


def _lowest_slowdowns(instance: Instance) -> dict[tuple[str, str], float]:
    """Return each workload's lowest slowdown with another, over shares and GPU models."""
    models = {place.gpu.model for place in instance.places.values()}
    own = {entry.key for entry in instance.slowdowns if entry.gpu_model is not None}
    lowest: dict[tuple[str, str], float] = {}
    for entry in instance.slowdowns:
        if entry.pair and entry.slowdown and _holds(entry, models, own):
            (a, b), (slow_a, slow_b) = entry.pair, entry.slowdown
            lowest[a, b] = min(slow_a, lowest.get((a, b), slow_a))
            lowest[b, a] = min(slow_b, lowest.get((b, a), slow_b))
    return lowest


def _holds(entry: SlowdownEntry, models: set[str], own: Collection[EntryKey]) -> bool:
    """Return whether the entry applies to some GPU of the cluster.

    ``own`` has the keys of the entries for a GPU model, which override entries without a model.
    """
    if entry.gpu_model is not None:
        return entry.gpu_model in models
    if not own:
        return True
    members = entry.key[1]
    return any((model, members) not in own for model in models)


def _throughput(after: Occupancy) -> float:
    return _total(after, lambda placed: _rate(after, placed))


def _slowdown(after: Occupancy) -> float:
    return _total(after, lambda placed: after.effects[placed.job.id].slowdown)


def _sensitive_slowdown(after: Occupancy) -> float:
    of = sensitivities(after.instance)
    return _total(
        after, lambda placed: after.effects[placed.job.id].slowdown / of[placed.job.workload]
    )


def _jct(after: Occupancy) -> float:
    return _total(after, lambda placed: _rate(after, placed) / (placed.job.remaining_s or 1.0))


def _energy(after: Occupancy) -> float:
    """Work per watt; a cluster that does nothing has 0."""
    work = _total(after, lambda placed: placed.job.workers * _rate(after, placed))
    power = fsum(on_gpu.power_w or 0.0 for on_gpu in after.gpus.values())
    return work / power if after.gpus else 0.0


def _total(after: Occupancy, value: Callable[[JobOnGpus], float]) -> float:
    return fsum(placed.job.weight * value(placed) for placed in after.placed.values())


def _rate(after: Occupancy, placed: JobOnGpus) -> float:
    model = after.instance.places[next(iter(placed.share))].gpu.model
    return placed.workload.speed.get(model, 1.0) / after.effects[placed.job.id].slowdown


_VALUES: Mapping[ObjectiveName, Callable[[Occupancy], float]] = {
    "throughput": _throughput,
    "slowdown": _slowdown,
    "sensitivity": _sensitive_slowdown,
    "jct": _jct,
    "energy": _energy,
    "completion": lambda after: CheckedCompletion(after).value(),
}
