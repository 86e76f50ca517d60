"""The objectives of a plan, recomputed from their definitions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.checking.completion import CheckedCompletion
from dovetail.instances.checking.facts import JobOnGpus, Occupancy
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.shares import CODES

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

    def of_pair(own: str, other: str) -> float:
        if own not in number or other not in number:
            return math.inf
        return float(lowest[number[own], number[other]])

    return of_pair


def _holds(known: Slowdowns, instance: Instance) -> NDArray[np.bool_]:
    """Return the pairs whose entry applies to some GPU of the cluster.

    An entry for a GPU model overrides the one without a model.
    """
    present = {place.gpu.model for place in instance.places.values()}
    models = [known.models.index(model) for model in present if model in known.models]
    holds = np.isin(known.model, models)
    for_all = known.model == -1
    if len(models) < len(present) or not present:
        return np.asarray(holds | for_all)
    members = np.sort(known.workload.astype(np.int64) * CODES + known.share, axis=1)
    number = members[:, 0] * (len(known.names) * CODES) + members[:, 1]
    overridden = [np.isin(number, number[known.model == model]) for model in models]
    return np.asarray(holds | (for_all & ~np.logical_and.reduce(overridden)))


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
