"""The combinations of an instance's workloads that may be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.predictors.predictor import UNCAPPED, BoolArray, IntArray, Split

_ROWS_AT_ONCE: Final = 100_000

Members = tuple[tuple[str, int], ...]
"""Sorted workloads with their shares, the second part of an entry's key."""


def used(instance: Instance) -> dict[str, Workload]:
    """Return the workloads that jobs run, in the order of the file; all if there are no jobs."""
    jobs = jobs_of(instance)
    return {name: w for name, w in instance.workloads.items() if jobs[name]}


def jobs_of(instance: Instance) -> Counter[str]:
    """Return how many jobs run each workload.

    An instance without jobs is a world for simulations, in which any number may arrive.
    """
    if not instance.jobs:
        return Counter(dict.fromkeys(instance.workloads, instance.cluster.max_jobs_per_gpu))
    return Counter(job.workload for job in instance.jobs)


def gang_sizes(instance: Instance) -> dict[str, int]:
    """Return the number of workers of the largest job of each workload."""
    sizes: dict[str, int] = {}
    for job in instance.jobs:
        sizes[job.workload] = max(job.workers, sizes.get(job.workload, 1))
    return sizes


def unknown_pairs(
    instance: Instance,
    known: Iterable[str],
    gpu_models: Sequence[str | None],
    mixed: bool,
) -> Iterator[Slowdowns]:
    """Yield the pairs of known workloads, at every split, for which the instance has no entry.

    They come in parts, numbered alike: the known workloads first. They have no figures yet.
    """
    names = tuple(dict.fromkeys((*known, *instance.slowdowns.names)))
    models = tuple(model for model in gpu_models if model is not None)
    given = instance.slowdowns.numbered(names)
    splits = np.array(wanted_splits(instance.cluster, mixed))
    pairs = _pairs(instance, known)
    size = max(1, _ROWS_AT_ONCE // len(splits))
    for gpu_model in gpu_models:
        settled = given.members[_settled(instance, gpu_model)]
        model = -1 if gpu_model is None else models.index(gpu_model)
        for start in range(0, len(pairs), size):
            workload = np.repeat(pairs[start : start + size], len(splits), axis=0)
            share = np.tile(splits, (len(workload) // len(splits), 1))
            part = Slowdowns.of_pairs(names, workload, models, share=share, model=model)
            mirror_of_earlier = (workload[:, 0] == workload[:, 1]) & (share[:, 0] > share[:, 1])
            yield part.select(~mirror_of_earlier & ~np.isin(part.members, settled))


def _pairs(instance: Instance, known: Iterable[str]) -> IntArray:
    """Return the numbers of the workloads, two each, that two different jobs can run."""
    jobs = jobs_of(instance)
    several = np.array([jobs[name] > 1 for name in known], dtype=np.bool_)
    first, second = np.triu_indices(len(several))
    return np.asarray(np.stack([first, second], axis=1)[(first != second) | several[first]])


def wanted_splits(cluster: Cluster, mixed: bool) -> list[Split]:
    """Return the splits to predict: no caps, caps that sum to ``share_sum``, and maybe one cap."""
    allowed = sorted(caps_of(cluster.shares))
    both = [(p, cluster.share_sum - p) for p in allowed if cluster.share_sum - p in allowed]
    one = [split for p in allowed for split in ((UNCAPPED, p), (p, UNCAPPED))]
    return [(UNCAPPED, UNCAPPED), *both, *(one if mixed else [])]


def settled_keys(instance: Instance, gpu_model: str | None) -> set[Members]:
    """Return the combinations that need no entry: known for the GPU model, or for all."""
    known, wanted = instance.slowdowns, _wanted(instance, gpu_model)
    found = _settled(instance, gpu_model)
    ends = zip(known.workload[found].tolist(), known.share[found].tolist(), strict=True)
    names = known.names
    keys = {members_of((names[a], names[b]), (x, y)) for (a, b), (x, y) in ends}
    of_sets: dict[Members, set[str | None]] = {}
    for entry in known.sets.values():
        on, together, _ = entry.key
        of_sets.setdefault(together, set()).add(on)
    return keys | {key for key, on in of_sets.items() if None in on or wanted <= on}


def _settled(instance: Instance, gpu_model: str | None) -> IntArray:
    """Return a row of each pair that needs no entry; see ``settled_keys``."""
    known = instance.slowdowns
    code, rows, members = np.unique(known.members, return_index=True, return_inverse=True)
    settled = np.ones(len(code), dtype=np.bool_)
    for model in _wanted(instance, gpu_model):
        settled &= _among(members, known.of_model(model), len(code))
    settled |= _among(members, known.model == -1, len(code))
    return rows[settled]


def _wanted(instance: Instance, gpu_model: str | None) -> set[str]:
    """Return the GPU models that entries are needed for."""
    if gpu_model is not None:
        return {gpu_model}
    return {place.gpu.model for place in instance.places.values()}


def _among(members: IntArray, rows: BoolArray, count: int) -> BoolArray:
    """Return which of the numbered combinations some of these rows have."""
    found = np.zeros(count, dtype=np.bool_)
    found[members[rows]] = True
    return found


def members_of(pair: tuple[str, str], shares: Split) -> Members:
    """Return a pair in the form of its entry's key."""
    return tuple(sorted(zip(pair, shares, strict=True)))
