"""The combinations of an instance's workloads that may be predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import EntryKey
from dovetail.instances.slowdowns.shares import caps_of
from dovetail.predictors.predictor import UNCAPPED, BoolArray, IntArray, Split

Members = tuple[tuple[str, int], ...]
"""Sorted workloads with their shares, the second part of an entry's key."""


class PairAtShares(NamedTuple):
    """A pair of workloads at shares on a GPU model (None: on every model)."""

    pair: tuple[str, str]
    shares: Split
    gpu_model: str | None

    @property
    def key(self) -> EntryKey:
        """The key of its entry."""
        return self.gpu_model, members_of(self.pair, self.shares)


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


def unknown_rows(
    instance: Instance,
    known: Mapping[str, object],
    gpu_models: Sequence[str | None],
    mixed: bool,
) -> Iterator[PairAtShares]:
    """Yield the pairs of known workloads, at every split, for which the instance has no entry."""
    splits = wanted_splits(instance.cluster, mixed)
    for gpu_model in gpu_models:
        settled = settled_keys(instance, gpu_model)
        for pair in _pairs(instance, known):
            for shares in splits:
                mirror_of_earlier = pair[0] == pair[1] and shares[0] > shares[1]
                if not mirror_of_earlier and members_of(pair, shares) not in settled:
                    yield PairAtShares(pair, shares, gpu_model)


def _pairs(instance: Instance, known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of workloads that two different jobs can make."""
    jobs = jobs_of(instance)
    for first, second in combinations_with_replacement(known, 2):
        if first != second or jobs[first] > 1:
            yield first, second


def wanted_splits(cluster: Cluster, mixed: bool) -> list[Split]:
    """Return the splits to predict: no caps, caps that sum to ``share_sum``, and maybe one cap."""
    allowed = sorted(caps_of(cluster.shares))
    both = [(p, cluster.share_sum - p) for p in allowed if cluster.share_sum - p in allowed]
    one = [split for p in allowed for split in ((UNCAPPED, p), (p, UNCAPPED))]
    return [(UNCAPPED, UNCAPPED), *both, *(one if mixed else [])]


def settled_keys(instance: Instance, gpu_model: str | None) -> set[Members]:
    """Return the combinations that need no entry: known for the GPU model, or for all."""
    known = instance.slowdowns
    present = {place.gpu.model for place in instance.places.values()}
    wanted = present if gpu_model is None else {gpu_model}
    code, rows, members = np.unique(known.members, return_index=True, return_inverse=True)
    settled = np.ones(len(code), dtype=np.bool_)
    for model in wanted:
        settled &= _among(members, known.of_model(model), len(code))
    settled |= _among(members, known.model == -1, len(code))
    found = rows[settled]
    ends = zip(known.workload[found].tolist(), known.share[found].tolist(), strict=True)
    names = known.names
    keys = {members_of((names[a], names[b]), (x, y)) for (a, b), (x, y) in ends}
    of_sets: dict[Members, set[str | None]] = {}
    for entry in known.sets.values():
        on, together = entry.key
        of_sets.setdefault(together, set()).add(on)
    return keys | {key for key, on in of_sets.items() if None in on or wanted <= on}


def _among(members: IntArray, rows: BoolArray, count: int) -> BoolArray:
    """Return which of the numbered combinations some of these rows have."""
    found = np.zeros(count, dtype=np.bool_)
    found[members[rows]] = True
    return found


def members_of(pair: tuple[str, str], shares: Split) -> Members:
    """Return a pair in the form of its entry's key."""
    return tuple(sorted(zip(pair, shares, strict=True)))
