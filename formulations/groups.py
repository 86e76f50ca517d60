"""Every group of jobs that may hold one GPU together, as arrays.

A *group* is a set of (job variant, share) on a GPU of one class, with the slowdown each job
has there. Hard constraints that concern one GPU alone (entries, shares, memory, gSLA, the jct
rule) are settled here, once: a group that breaks one is never listed. Neither is a group that
another group of the same jobs equals or beats in every respect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations._rows import (
    Rows,
    Seating,
    Seatings,
    distinct_in_order,
    in_chunks,
    joined_floats,
    joined_ints,
    packed,
    pareto,
)
from dovetail.formulations.entries import Combination
from dovetail.formulations.rounds import (
    GSLA_TOLERANCE,
    MEMORY_TOLERANCE_MIB,
    GpuClass,
    Resident,
    Round,
    Variant,
)
from dovetail.formulations.values import JobValues, shortens_mean_completion

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_SHARE = 0
"""Stands for "no cap" in share arrays."""


@dataclass(frozen=True)
class Groups:
    """All candidate groups, a row each; their members flattened and ordered by job.

    Attributes
    ----------
    round : Round
        What they were made from.
    gpu_class : (n,) int
        Index of the class of GPUs that the group can be on.
    start : (n + 1,) int
        Members of group g are the positions ``start[g]:start[g + 1]`` of the next arrays.
    variant : (m,) int
        Index into ``variants``.
    job : (m,) int
        Index of the job.
    share : (m,) int
        The cap, ``NO_SHARE`` where there is none.
    slowdown : (m,) float
        Slowdown of the job on this GPU, the sub-batch's stretch included.
    power_w : (n,) float
        Power of the GPU; NaN where unknown.
    variants : tuple of Variant
        What ``variant`` counts.
    """

    round: Round
    gpu_class: Ints
    start: Ints
    variant: Ints
    job: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats
    variants: tuple[Variant, ...]

    def __len__(self) -> int:
        return len(self.gpu_class)

    @property
    def sizes(self) -> Ints:
        """The number of jobs of each group, (n,)."""
        return np.diff(self.start)

    @property
    def group_of_member(self) -> Ints:
        """The group that each member belongs to, (m,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def model(self) -> Ints:
        """The index of the GPU model that each member would be on, (m,)."""
        models = self.round.models
        of_class = np.array([models.index(c.model) for c in self.round.classes], dtype=np.int64)
        return np.asarray(of_class[self.gpu_class[self.group_of_member]])

    def members(self, group: int) -> range:
        """Return the positions of the members of one group."""
        return range(int(self.start[group]), int(self.start[group + 1]))


def list_groups(compiled: Round, values: JobValues) -> Groups:
    """Return every group that some best plan may need.

    Parameters
    ----------
    compiled : Round
        The instance.
    values : JobValues
        The objective, which says when one group beats another.
    """
    return _Lister(compiled, values).groups()


def list_chosen(compiled: Round, values: JobValues, pairs: Ints, shares: Ints) -> Groups:
    """Return the groups of one job, those of running jobs that nobody joins, and these pairs.

    Parameters
    ----------
    compiled : Round
        The instance; its GPUs are interchangeable but for residents, and no job has variants.
    values : JobValues
        The objective.
    pairs : (m, 2) int
        Pairs of jobs that some best plan needs. A running one is alone on its GPUs.
    shares : (m, 2) int
        Their shares.
    """
    return _Lister(compiled, values).chosen(pairs, shares)


def idle_counts(groups: Groups) -> Ints:
    """Return the choice in which running jobs stay and nobody starts, (n,)."""
    classes = groups.round.classes
    residents = np.array([len(c.residents) for c in classes], dtype=np.int64)
    gpus = np.array([len(c.gpus) for c in classes], dtype=np.int64)
    untouched = residents[groups.gpu_class] == groups.sizes
    return np.where(untouched, gpus[groups.gpu_class], 0)


def member_gains(groups: Groups, values: JobValues) -> Floats:
    """Return the gain that each member's job would have at the member's slowdown, (m,)."""
    gain = np.empty(len(groups.job))
    for index, name in enumerate(groups.round.models):
        here = groups.model == index
        gain[here] = values.gain(groups.job[here], groups.slowdown[here], name)
    return gain


class _Lister:
    def __init__(self, compiled: Round, values: JobValues) -> None:
        self.round = compiled
        self.values = values
        self.variants = tuple(v for variants in compiled.variants for v in variants)
        jobs = [compiled.jobs[v.job] for v in self.variants]
        self.job = np.array([v.job for v in self.variants], dtype=np.int64)
        self.memory = np.array([v.memory_mib for v in self.variants])
        self.stretch = np.array([v.stretch for v in self.variants])
        self.gsla = np.array([np.inf if j.gsla is None else j.gsla for j in jobs])
        self.latency = np.array([j.priority == "latency" for j in jobs], dtype=bool)
        self.workers = np.array([j.workers for j in jobs], dtype=np.int64)
        self.pending = np.array([not j.running for j in jobs], dtype=bool)
        self.index = {variant: k for k, variant in enumerate(self.variants)}
        self.shares = {None, *compiled.instance.cluster.shares}
        self.pool, self.ranges = self._pool()

    def groups(self) -> Groups:
        return self._flattened(
            [
                self._undominated(rows)
                for index, gpu_class in enumerate(self.round.classes)
                for rows in self._on_class(index, gpu_class)
                if len(rows)
            ]
        )

    def chosen(self, pairs: Ints, shares: Ints) -> Groups:
        by_class: dict[int, list[Seating]] = defaultdict(list)
        place = {c.residents: k for k, c in enumerate(self.round.classes)}
        for members, held in zip(pairs.tolist(), shares.tolist(), strict=True):
            order = sorted(zip(members, held, strict=True), key=lambda m: self.pending[m[0]])
            job, share = order[0]
            resident = Resident(self.variants[job], share or None)
            index = place[() if self.pending[job] else (resident,)]
            by_class[index].append(self._seating(self.round.classes[index].model, order))
        return self._flattened(
            [
                self._undominated(rows)
                for index, gpu_class in enumerate(self.round.classes)
                for rows in (
                    self._least(index, gpu_class),
                    *(self._allowed(index, gpu_class, s) for s in in_chunks(by_class[index])),
                )
                if len(rows)
            ]
        )

    def _seating(self, model: str, members: Sequence[tuple[int, int]]) -> Seating:
        """Return the seating of two jobs at their shares; jobs have one variant each."""
        names = [(self.round.jobs[job].workload, share or None) for job, share in members]
        known = self.round.entries.find(model, names)
        if known is None:
            raise AssertionError("a chosen pair has a known slowdown")
        return Seating(known, tuple(range(job, job + 1) for job, _ in members), (False, False))

    def _least(self, index: int, gpu_class: GpuClass) -> Rows:
        """Return the groups of a class without anybody joining anybody."""
        if gpu_class.residents:
            return self._untouched(index, gpu_class)
        return self._alone(index, gpu_class)

    def _pool(self) -> tuple[Ints, Mapping[str, range]]:
        """Return all variants followed by the pending ones, by workload; and their ranges."""
        by_workload: dict[str, list[int]] = {}
        for k in np.flatnonzero(self.pending).tolist():
            by_workload.setdefault(self.round.jobs[self.job[k]].workload, []).append(k)
        pool = list(range(len(self.variants)))
        ranges = {}
        for workload, found in by_workload.items():
            ranges[workload] = range(len(pool), len(pool) + len(found))
            pool += found
        return np.array(pool, dtype=np.int64), ranges

    def _on_class(self, index: int, gpu_class: GpuClass) -> Iterator[Rows]:
        """Yield all groups of a class by the number of their jobs."""
        yield self._least(index, gpu_class)
        if gpu_class.open:
            for combinations in self._by_size(gpu_class):
                yield self._together(index, gpu_class, combinations)

    def _by_size(self, gpu_class: GpuClass) -> Sequence[Sequence[Combination]]:
        """Return the combinations that leave a place beside the residents, by their size."""
        cluster = self.round.instance.cluster
        by_size: dict[int, list[Combination]] = {}
        for known in self._known_with(gpu_class):
            size = len(known.members)
            shares = sum(share or 0 for _, share in known.members)
            if (
                len(gpu_class.residents) < size <= cluster.max_jobs_per_gpu
                and shares <= cluster.share_sum
            ):
                by_size.setdefault(size, []).append(known)
        return list(by_size.values())

    def _known_with(self, gpu_class: GpuClass) -> Sequence[Combination]:
        """Return the combinations on the class's model, those with its first resident."""
        entries = self.round.entries
        if not gpu_class.residents:
            return entries.known(gpu_class.model)
        resident = gpu_class.residents[0]
        member = (self.round.jobs[resident.variant.job].workload, resident.share)
        return entries.known_with(gpu_class.model, member)

    def _untouched(self, index: int, gpu_class: GpuClass) -> Rows:
        """Return the one group of the residents of a class that nobody joins."""
        residents = gpu_class.residents
        gpu = gpu_class.gpus[0]
        slowdown = self.round.resident_slowdowns(gpu)
        return Rows(
            index,
            np.array([[self.index[r.variant] for r in residents]], dtype=np.int64),
            np.array([[r.share or NO_SHARE for r in residents]], dtype=np.int64),
            np.array([slowdown]),
            np.array([_or_nan(self.round.resident_power(gpu))]),
        )

    def _alone(self, index: int, gpu_class: GpuClass) -> Rows:
        """Return the groups of one job, uncapped or (with ``start_capped``) at a share."""
        found = [
            (k, share or NO_SHARE, slowdown, _or_nan(self.round.workload(job).power_w))
            for k, job in enumerate(self.job.tolist())
            if self.pending[k]
            for share in self.round.shares_alone
            if (slowdown := self.round.alone(self.variants[k], share)) is not None
        ]
        variant = np.array([row[0] for row in found], dtype=np.int64)
        alone = np.array([row[2] for row in found], dtype=np.float64)
        keep = alone <= self.gsla[variant] * (1 + GSLA_TOLERANCE)
        keep &= self.memory[variant] <= gpu_class.memory_mib + MEMORY_TOLERANCE_MIB
        return Rows(
            index,
            variant[:, None],
            np.array([row[1] for row in found], dtype=np.int64)[:, None],
            alone[:, None],
            np.array([row[3] for row in found], dtype=np.float64),
        ).take(keep)

    def _together(
        self, index: int, gpu_class: GpuClass, combinations: Sequence[Combination]
    ) -> Rows:
        """Return the groups of two or more jobs: the residents and whoever may join them."""
        seatings = [s for known in combinations for s in self._seatings(gpu_class, known)]
        nobody = np.empty((0, len(combinations[0].members)))
        none = Rows(index, nobody.astype(np.int64), nobody.astype(np.int64), nobody, nobody[:, 0])
        found = [self._allowed(index, gpu_class, chunk) for chunk in in_chunks(seatings)]
        return Rows.joined([none, *found])

    def _seatings(self, gpu_class: GpuClass, known: Combination) -> Iterator[Seating]:
        """Yield the combination with the residents in their places, if it has those places."""
        free = list(known.members)
        held = [(self.round.jobs[r.variant.job].workload, r.share) for r in gpu_class.residents]
        for member in held:
            if member not in free:
                return
            free.remove(member)
        if any(share not in self.shares or workload not in self.ranges for workload, share in free):
            return
        free.sort(key=lambda member: (member[0], member[1] or NO_SHARE))
        places = [self.index[r.variant] for r in gpu_class.residents]
        yield Seating(
            known.reordered([*held, *free]),
            (*(range(k, k + 1) for k in places), *(self.ranges[name] for name, _ in free)),
            (*(False for _ in held), *(k > 0 and free[k] == free[k - 1] for k in range(len(free)))),
        )

    def _allowed(self, index: int, gpu_class: GpuClass, seatings: Seatings) -> Rows:
        """Return the rows of all seatings that break no rule, their members ordered by job."""
        seating, place = seatings.product()
        variant = self.pool[place]
        keep = distinct_in_order(self.job[variant], seatings.twin[seating])
        keep &= self.memory[variant].sum(axis=1) <= gpu_class.memory_mib + MEMORY_TOLERANCE_MIB
        if self.round.instance.cluster.gang_sharing == "whole":
            keep &= (self.workers[variant] == self.workers[variant[:, :1]]).all(axis=1)
        seating, variant = seating[keep], variant[keep]
        bound = np.where(self.latency[variant], seatings.tail[seating], seatings.upper[seating])
        stretch = self.stretch[variant]
        rows = Rows(
            index,
            variant,
            seatings.share[seating],
            seatings.slowdown[seating] * stretch,
            seatings.power_w[seating],
        )
        keep = (bound * stretch <= self.gsla[variant] * (1 + GSLA_TOLERANCE)).all(axis=1)
        if self.values.objective == "jct":
            keep &= self._shortens(rows)
        return self._ordered(rows.take(keep))

    def _shortens(self, rows: Rows) -> NDArray[np.bool_]:
        job = self.job[rows.variant]
        if job.shape[1] > 2:
            return np.zeros(len(job), dtype=bool)
        jobs = self.round.jobs
        remaining = np.array([j.remaining_s for j in jobs], dtype=np.float64)
        running = np.array([j.running for j in jobs], dtype=bool)
        return shortens_mean_completion(rows.slowdown, remaining[job], running[job])

    def _ordered(self, rows: Rows) -> Rows:
        order = np.argsort(self.job[rows.variant], axis=1)
        return Rows(
            rows.gpu_class,
            np.take_along_axis(rows.variant, order, axis=1),
            np.take_along_axis(rows.share, order, axis=1),
            np.take_along_axis(rows.slowdown, order, axis=1),
            rows.power_w,
        )

    def _undominated(self, rows: Rows) -> Rows:
        """Drop each group that another of the same jobs equals or beats in every criterion.

        Single-GPU jobs count by the sum of their gains, at whichever sub-batch; a gang counts
        by its slowdown, and only against the same sub-batch, because its other GPUs may need
        that one.
        """
        gang = self.workers[rows.variant] > 1
        job = self.job[rows.variant]
        model = self.round.classes[rows.gpu_class].model
        gain = self.values.gain(job.ravel(), rows.slowdown.ravel(), model).reshape(job.shape)
        criteria = [-np.where(gang, 0.0, gain).sum(axis=1)]
        criteria += [c for c in np.where(gang, rows.slowdown, 0.0).T if c.any()]
        if self.values.ratio:
            criteria.append(rows.power_w)
        alike = np.where(gang, len(self.round.jobs) + rows.variant, job)
        return rows.take(pareto(packed(alike), criteria))

    def _flattened(self, parts: Sequence[Rows]) -> Groups:
        sizes = joined_ints([np.full(len(p), p.variant.shape[1]) for p in parts])
        variant = joined_ints([p.variant.ravel() for p in parts])
        return Groups(
            round=self.round,
            gpu_class=joined_ints([np.full(len(p), p.gpu_class) for p in parts]),
            start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            variant=variant,
            job=self.job[variant],
            share=joined_ints([p.share.ravel() for p in parts]),
            slowdown=joined_floats([p.slowdown.ravel() for p in parts]),
            power_w=joined_floats([p.power_w for p in parts]),
            variants=self.variants,
        )


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
