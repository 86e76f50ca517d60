"""Entries of three and more workloads: of their pairs, or by the law of MPS under caps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement, islice, product
from typing import Final

import numpy as np

from dovetail.instances._record import IDLE
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.sets import LARGEST, set_slowdown, slowdown_with_idle
from dovetail.instances.slowdowns.shares import BEST_EFFORT, caps_of, full_splits
from dovetail.predictors._combinations import Members, jobs_of, members_of, settled_keys, used
from dovetail.predictors.kernels import KernelsPredictor
from dovetail.predictors.predictor import UNCAPPED, BoolArray, FloatArray, IntArray

_LARGEST_SLOWDOWN: Final = 1e15
_ROWS_AT_ONCE: Final = 4096


def set_entries(instance: Instance, gpu_models: Sequence[str | None]) -> Iterator[SlowdownEntry]:
    """Yield an entry for each unknown set that jobs can form and whose pairs are known."""
    jobs = jobs_of(instance)
    names = list(used(instance))
    largest = min(instance.cluster.max_jobs_per_gpu, LARGEST)
    for gpu_model in gpu_models:
        pairs = _UncappedPairs.of(instance, names, gpu_model)
        settled = settled_keys(instance, gpu_model)
        for size in range(3, largest + 1):
            yield from pairs.entries(size, jobs, settled)


def entries_behind(instance: Instance, gpu_models: Sequence[str | None]) -> Iterator[SlowdownEntry]:
    """Yield an entry for each unknown set of a job and several others that run in its idle time.

    Its pairs are known, and the instance's jobs can form it.
    """
    jobs, largest = jobs_of(instance), min(instance.cluster.max_jobs_per_gpu, LARGEST)
    if IDLE not in instance.cluster.shares or largest < 3:
        return
    names = list(used(instance))
    settled = {gpu_model: settled_keys(instance, gpu_model) for gpu_model in gpu_models}
    for gpu_model, first in product(gpu_models, names):
        pairs = {name: e for name in names if (e := _behind(instance, gpu_model, first, name))}
        left = jobs - Counter([first])
        for size in range(2, largest):
            for chosen in combinations_with_replacement(pairs, size):
                members = sorted([(first, UNCAPPED), *((name, BEST_EFFORT) for name in chosen)])
                if Counter(chosen) <= left and tuple(members) not in settled[gpu_model]:
                    yield _with_idle(gpu_model, first, [pairs[name] for name in chosen], chosen)


def _behind(
    instance: Instance, gpu_model: str | None, first: str, behind: str
) -> SlowdownEntry | None:
    """Return the entry of a workload behind another, or None if they may not share."""
    key, mode = members_of((first, behind), (UNCAPPED, BEST_EFFORT)), instance.cluster.sharing
    known = instance.entries
    entry = known.get((gpu_model, key, mode)) or known.get((None, key, mode))
    return entry if entry and entry.slowdown else None


def _with_idle(
    gpu_model: str | None, first: str, pairs: Sequence[SlowdownEntry], behind: Sequence[str]
) -> SlowdownEntry:
    def together(figures: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        ordered = [
            values if entry.shares[1] == IDLE else values[::-1]
            for entry, values in zip(pairs, figures, strict=True)
        ]
        found = slowdown_with_idle(*np.array(ordered).T)
        return tuple(rounded_up(found).tolist())

    slowdown = [entry.slowdown or () for entry in pairs]
    upper = [entry.upper or entry.slowdown or () for entry in pairs]
    tail = [entry.p99 or entry.upper or entry.slowdown or () for entry in pairs]
    return SlowdownEntry(
        set=(first, *behind),
        share=(None, *[IDLE] * len(behind)),
        slowdown=together(slowdown),
        upper=together(upper) if any(entry.upper for entry in pairs) else None,
        p99=together(tail) if any(entry.p99 for entry in pairs) else None,
        gpu_model=gpu_model,
        source="estimate",
        mode=pairs[0].mode,
    )


def rounded_up(values: FloatArray) -> FloatArray:
    """Return slowdowns rounded upward to 1/10,000, as in entries."""
    # The inner rounding keeps 1.3 at 1.3 when the sum came out as 1.3000000000000003. A bound that
    # could not be given is infinite: it becomes the largest number, which keeps no gSLA.
    finite = np.where(np.isposinf(values), _LARGEST_SLOWDOWN, values)
    return np.divide(np.ceil(np.round(finite * 1e4, 3)), 1e4)


@dataclass(frozen=True)
class _UncappedPairs:
    """The entries of uncapped pairs on a GPU model as matrices over workloads.

    ``upper`` is the slowdown if an entry has no upper bound, ``tail`` is ``upper`` if it has no
    p99; ``bounded`` and ``tailed`` say which entries have them.
    """

    gpu_model: str | None
    mode: SharingMode
    names: Sequence[str]
    slowdown: FloatArray
    upper: FloatArray
    bounded: BoolArray
    tail: FloatArray
    tailed: BoolArray

    @cached_property
    def known(self) -> BoolArray:
        """The pairs with a number."""
        return np.asarray(~np.isnan(self.slowdown))

    @classmethod
    def of(cls, instance: Instance, names: Sequence[str], gpu_model: str | None) -> _UncappedPairs:
        """Read the entries that hold on the GPU model."""
        shape = (len(names), len(names))
        slowdown, upper, tail = (np.full(shape, np.nan) for _ in range(3))
        bounded, tailed = (np.zeros(shape, dtype=np.bool_) for _ in range(2))
        known = instance.slowdowns
        place = {name: k for k, name in enumerate(names)}
        places = np.array([place.get(name, -1) for name in known.names], dtype=np.int64)
        ends = places[known.workload]
        mode = instance.cluster.sharing
        rows = known.model == -1 if gpu_model is None else known.holds_on(gpu_model, mode)
        rows = rows & known.may_share & (known.share == UNCAPPED).all(axis=1)
        rows &= (ends >= 0).all(axis=1)
        for k in range(2):
            at = ends[rows, k], ends[rows, 1 - k]
            found, high, late = (
                column[rows, k] for column in (known.slowdown, known.upper, known.p99)
            )
            bounded[at], tailed[at] = ~np.isnan(high), ~np.isnan(late)
            slowdown[at], upper[at] = found, np.where(bounded[at], high, found)
            tail[at] = np.where(tailed[at], late, upper[at])
        return cls(gpu_model, mode, names, slowdown, upper, bounded, tail, tailed)

    def entries(
        self, size: int, jobs: Mapping[str, int], settled: set[Members]
    ) -> Iterator[SlowdownEntry]:
        """Yield entries for sets of this size that jobs can form and that are not settled."""
        sets = (s for s in self._sets(size, jobs) if self._key(s) not in settled)
        while block := list(islice(sets, _ROWS_AT_ONCE)):
            yield from self._predicted(np.array(block, dtype=np.int64))

    def _sets(self, size: int, jobs: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
        """Yield the sets with every pair known, grown by one workload at a time.

        Every intermediate set was also yielded as a smaller set, so their number bounds the work.
        """
        if size == 0:
            yield ()
            return
        for smaller in self._sets(size - 1, jobs):
            for k in range(smaller[-1] if smaller else 0, len(self.names)):
                enough = smaller.count(k) < jobs[self.names[k]]
                if enough and self.known[k, list(smaller)].all():
                    yield (*smaller, k)

    def _key(self, chosen: Sequence[int]) -> Members:
        return tuple(sorted((self.names[k], UNCAPPED) for k in chosen))

    def _predicted(self, sets: IntArray) -> Iterator[SlowdownEntry]:
        pair = sets[:, :, np.newaxis], sets[:, np.newaxis, :]
        slowdown = rounded_up(set_slowdown(self.slowdown[pair]))
        upper = np.maximum(slowdown, rounded_up(set_slowdown(self.upper[pair])))
        tail = rounded_up(set_slowdown(self.tail[pair]))
        bounded = np.asarray(self.bounded[pair].any(axis=(1, 2)))
        tailed = np.asarray(self.tailed[pair].any(axis=(1, 2)))
        for k, chosen in enumerate(sets.tolist()):
            # Equal workloads get equal numbers, whatever the order of summation.
            first = [chosen.index(workload) for workload in chosen]
            yield SlowdownEntry(
                set=tuple(self.names[workload] for workload in chosen),
                slowdown=tuple(slowdown[k, first].tolist()),
                upper=tuple(upper[k, first].tolist()) if bounded[k] else None,
                p99=tuple(tail[k, first].tolist()) if tailed[k] else None,
                gpu_model=self.gpu_model,
                source="estimate",
                mode=self.mode,
            )


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
