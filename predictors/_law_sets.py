"""Entries of three and more workloads under caps, by the law of MPS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement, islice

import numpy as np

from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.sets import LARGEST
from dovetail.instances.slowdowns.shares import caps_of, full_splits
from dovetail.predictors._combinations import Members, jobs_of, settled_keys
from dovetail.predictors._set_entries import rounded_up
from dovetail.predictors.kernels import KernelsPredictor

_ROWS_AT_ONCE = 4096


def law_set_entries(
    instance: Instance,
    law: KernelsPredictor,
    known: Mapping[str, Workload],
    gpu_models: Sequence[str | None],
) -> Iterator[SlowdownEntry]:
    """Yield an entry for each unknown set under caps that jobs can form, and for its parts.

    A job keeps its cap when others end, so every subset of two and more needs an entry, too.
    """
    jobs = jobs_of(instance)
    splits = _with_what_is_left(_splits(instance.cluster))
    for gpu_model in gpu_models:
        settled = settled_keys(instance, gpu_model)
        for size in sorted({len(caps) for caps in splits}):
            of_size = [caps for caps in splits if len(caps) == size]
            sets = (s for s in _sets(list(known), jobs, of_size) if s not in settled)
            while block := list(islice(sets, _ROWS_AT_ONCE)):
                yield from _entries(law, known, gpu_model, block)


def _splits(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return the caps of three and more jobs that leave the least of a GPU unused."""
    most = min(cluster.max_jobs_per_gpu, LARGEST)
    room = min(cluster.share_sum, 100)
    sizes = range(3, most + 1)
    return [caps for size in sizes for caps in full_splits(caps_of(cluster.shares), size, room)]


def _with_what_is_left(splits: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the splits with all of their parts of two and more jobs."""
    return {
        part
        for caps in splits
        for size in range(2, len(caps) + 1)
        for part in combinations(caps, size)
    }


def _sets(
    names: Sequence[str], jobs: Mapping[str, int], splits: Sequence[tuple[int, ...]]
) -> Iterator[Members]:
    """Yield every set of workloads at these caps, sorted, once."""
    for caps in sorted(splits):
        groups = sorted(Counter(caps).items())
        for chosen in _of_groups(names, groups):
            amounts = Counter(name for name, _ in chosen)
            if all(amount <= jobs[name] for name, amount in amounts.items()):
                yield tuple(sorted(chosen))


def _of_groups(names: Sequence[str], groups: Sequence[tuple[int, int]]) -> Iterator[Members]:
    """Yield workloads for each cap and the number of jobs that have it."""
    if not groups:
        yield ()
        return
    (cap, amount), rest = groups[0], groups[1:]
    for same in combinations_with_replacement(names, amount):
        for others in _of_groups(names, rest):
            yield (*((name, cap) for name in same), *others)


def _entries(
    law: KernelsPredictor,
    known: Mapping[str, Workload],
    gpu_model: str | None,
    sets: Sequence[Members],
) -> Iterator[SlowdownEntry]:
    place = {name: k for k, name in enumerate(known)}
    jobs = np.array([[place[name] for name, _ in members] for members in sets], dtype=np.int64)
    caps = np.array([[cap for _, cap in members] for members in sets], dtype=np.int64)
    found = law.predict(known, jobs, caps, gpu_model)
    assert found.upper is not None
    slowdown, upper = rounded_up(found.slowdown), rounded_up(found.upper)
    for k, members in enumerate(sets):
        names = tuple(name for name, _ in members)
        together = {"pair": names} if len(names) == 2 else {"set": names}
        yield SlowdownEntry(
            **together,
            share=tuple(cap for _, cap in members),
            slowdown=tuple(slowdown[k].tolist()),
            upper=tuple(upper[k].tolist()),
            gpu_model=gpu_model,
            source="estimate",
            confidence=law.confidence,
        )
