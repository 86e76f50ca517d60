"""Listing every group of jobs that may hold one GPU together.

Hard constraints that concern a single GPU (entries, shares, memory, gSLA, the objective's rule) are
checked here, once: a group that breaks one is never listed. Neither is a group if another group of
the same jobs is as good or better in every respect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from dovetail.formulations.arrays import (
    Floats,
    Ints,
    across,
    joined_floats,
    joined_ints,
    packed,
    pareto,
    ranges,
)
from dovetail.formulations.budget import UNLIMITED, Budget, OutOfTimeError, room_bytes
from dovetail.formulations.candidates.columns import Columns
from dovetail.formulations.candidates.groups import Ceiling, Groups, Kinds, best_gains
from dovetail.formulations.candidates.nodes import fitting, on_nodes
from dovetail.formulations.candidates.paces import paced
from dovetail.formulations.candidates.rows import (
    ROWS_IN_TIME,
    CandidateRows,
    Piece,
    RowRules,
    enough,
    in_chunks,
    in_order,
)
from dovetail.formulations.rounds import (
    Resident,
    Round,
    measured_slowdowns,
    resident_power,
    resident_slowdowns,
)
from dovetail.formulations.slowdowns import Colocations, Members
from dovetail.formulations.values import JobValues, Rows
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.slowdowns.entry import GpuKind

_STEPS_PER_KIND, _STEPS_PER_ROW = 100_000, 500
"""Work to examine GPUs with the same workloads on them, and to list a row."""

_LISTING = 0.3
"""The part of the remaining time that listing the groups may take: solving takes longer."""

MOST_IN_SETS, _FEW = 500_000, 50
"""The maximum number of members of listed groups of three or more jobs. If there are more, prices
select among the groups of families that have more than a few (``columns``)."""

_MEMBER_BYTES = 400
"""Measured memory of listing and solving, for each member of the groups."""


def candidate_groups(
    values: JobValues,
    budget: Budget = UNLIMITED,
    at_paces: bool = False,
    kinds: Kinds | None = None,
    anywhere: bool = False,
) -> Groups:
    """Return the candidate groups, without those that no best plan needs or that have no room.

    Parameters
    ----------
    values : JobValues
        The objective, with its round.
    budget : Budget
        The budget of the answer. Listing takes at most a part of what is left; groups may then be
        missing (``Groups.complete``).
    at_paces : bool
        List gangs that share some of their GPUs at only a few paces (``paces``).
    kinds : Kinds, optional
        The kinds of jobs in the groups; by default those of the objective.
    anywhere : bool
        Treat workers that must stay together on nodes as if they need not: the best choice is then
        a bound on all plans.
    """
    kinds = kinds or Kinds.of(values.round, values)
    groups = list_groups(values.round, values, budget.part(_LISTING), at_paces, kinds)
    groups = fitting(worthwhile(groups) if values.relative else groups)
    return replace(groups, anywhere=True) if anywhere else on_nodes(groups)


def list_groups(
    compiled: Round,
    values: JobValues,
    budget: Budget = UNLIMITED,
    at_paces: bool = False,
    kinds: Kinds | None = None,
) -> Groups:
    """Return every group that some best plan may need, or those listed in time.

    Under a limit the combinations that slow jobs least come first; single jobs and residents that
    no job joins are always listed.

    Parameters
    ----------
    compiled : Round
        The instance.
    values : JobValues
        The objective, which decides when one group beats another.
    budget : Budget
        When to stop.
    at_paces : bool
        List gangs that share some of their GPUs at only a few paces (``paced``).
    kinds : Kinds, optional
        The kinds of jobs in the groups; by default every job is its own kind.
    """
    return _Lister(compiled, values, budget, kinds).groups(at_paces)


def list_chosen(compiled: Round, values: JobValues, pairs: Ints, shares: Ints) -> Groups:
    """Return the groups of single jobs, of running jobs that no job joins, and of these pairs.

    Parameters
    ----------
    compiled : Round
        The instance; its GPUs are interchangeable apart from residents, and no job has variants.
    values : JobValues
        The objective.
    pairs : (m, 2) int
        Pairs of jobs that some best plan needs. A running job is alone on its GPUs.
    shares : (m, 2) int
        Their shares.
    """
    return _Lister(compiled, values).chosen(pairs, shares)


class _Lister(RowRules):
    def __init__(
        self,
        compiled: Round,
        values: JobValues,
        budget: Budget = UNLIMITED,
        kinds: Kinds | None = None,
    ) -> None:
        super().__init__(compiled, values)
        self.kinds = kinds or Kinds.apart(len(compiled))
        self.budget = budget
        self.complete = True
        self.ceiling: Ceiling | None = None
        self.members = 0
        self.named = self.pending & (self.kinds.copies[self.job] > 0)
        self.pool, self.starts, self.counts = self._pool()
        self._measured = measured_slowdowns(compiled)

    def groups(self, at_paces: bool) -> Groups:
        listed, left = self._divided(self._candidates())
        parts = [*self._least(), *map(self._together, listed)]
        if left and self._priceable:
            columns = Columns(self, self.kinds, self.pool, left, self._flattened, self.budget)
            parts, self.ceiling = columns.added_to(parts)
            self.complete = False
        else:
            parts += map(self._together, left)
        if at_paces and self.round.machines.rules.gang_sharing == "partial":
            parts, self.variants = paced(self.round, self.values, parts, self.variants)
            self.job = self.variants.job
        return self._flattened(parts)

    @property
    def _priceable(self) -> bool:
        """Whether a group's worth depends on its jobs' own slowdowns only."""
        one_each = bool((self.round.jobs.workers == 1).all())
        return one_each and not self.values.grouped and not self.values.has_rule

    def _divided(
        self, candidates: Sequence[CandidateRows]
    ) -> tuple[list[CandidateRows], list[CandidateRows]]:
        """Return the candidates to list, and the large families if there are too many sets."""
        in_sets = (
            each.rows.sum() * size for each in candidates if (size := each.count.shape[1]) > 2
        )
        if sum(in_sets) <= MOST_IN_SETS:
            return list(candidates), []
        few = [each.rows <= _FEW for each in candidates]
        both = list(zip(candidates, few, strict=True))
        listed = [each.take(keep) for each, keep in both if keep.any()]
        return listed, [each.take(~keep) for each, keep in both if not keep.all()]

    def chosen(self, pairs: Ints, shares: Ints) -> Groups:
        """Return the groups of these pairs; jobs have one variant each."""
        place = {there: k for k, there in enumerate(self.round.classes.on)}
        classes, jobs, held_shares = [], [], []
        for members, held in zip(pairs.tolist(), shares.tolist(), strict=True):
            order = sorted(zip(members, held, strict=True), key=lambda m: self.pending[m[0]])
            job, share = order[0]
            resident = Resident(job, job, share)
            classes.append(place[() if self.pending[job] else (resident,)])
            jobs.append([job for job, _ in order])
            held_shares.append([share for _, share in order])
        if not classes:
            return self._flattened(self._least())
        of_job = np.array(jobs, dtype=np.int64)
        pairs_known = self.round.slowdowns.pairs(self._kind[classes[0]])
        candidates = self._joining(
            np.array(classes, dtype=np.int64),
            of_job,
            pairs_known.found(
                self.round.jobs.workload[of_job], np.array(held_shares, dtype=np.int64)
            ),
        )
        return self._flattened([*self._least(), self._together(candidates)])

    def _least(self) -> Iterator[Rows]:
        """Yield the groups of single jobs, and of running jobs without newcomers."""
        residents = self.round.classes.residents
        for size in np.unique(residents).tolist():
            classes = np.flatnonzero(residents == size)
            if size:
                yield self._undominated(self._untouched(classes, size))
            else:
                yield from (self._undominated(self._alone(index)) for index in classes.tolist())

    def _pool(self) -> tuple[Ints, Ints, Ints]:
        """Return all variants followed by the pending ones by workload, their starts and counts.

        Of jobs of one kind only the representative's variants are included. Start and number of
        pending variants are by the index of the workload.
        """
        pending = np.flatnonzero(self.named)
        of = self.round.jobs.workload[self.job[pending]]
        pool = np.concatenate(
            [np.arange(len(self.variants)), pending[np.argsort(of, kind="stable")]]
        )
        counts = np.bincount(of, minlength=len(self.round.workloads)).astype(np.int64)
        starts = len(self.variants) + np.cumsum(counts) - counts
        return pool.astype(np.int64), starts, counts

    def _candidates(self) -> Sequence[CandidateRows]:
        """Return all ways for jobs to start together or join others, by the number of jobs."""
        jobs = self.round.jobs
        waiting = np.bincount(jobs.workload[~jobs.running], minlength=len(self.round.workloads))
        alike: dict[tuple[GpuKind, Members], list[int]] = defaultdict(list)
        workload, there = jobs.workload.tolist(), self.round.classes.on
        for index in np.flatnonzero(self.round.classes.open).tolist():
            members = tuple([(workload[each.job], each.share) for each in there[index]])
            alike[self._kind[index], members].append(index)
        ways: dict[tuple[int, int], list[tuple[Ints, Colocations]]] = defaultdict(list)
        # Empty GPUs first: if time runs out, joins of running jobs are left out.
        ordered = sorted(alike.items(), key=lambda each: len(each[0][1]))
        for nth, ((kind, held), classes) in enumerate(ordered):
            if nth and self.budget.passed:
                self.complete = False
                break
            self.budget.spend(_STEPS_PER_KIND)
            for known in self._joins(kind, held):
                able = known.able(len(held), waiting)
                if len(able):
                    of = np.repeat(np.array(classes, dtype=np.int64), len(able))
                    rows = known.take(able if len(classes) == 1 else np.tile(able, len(classes)))
                    ways[known.share.shape[1], len(held)].append((of, rows))
        by_size: dict[int, list[CandidateRows]] = defaultdict(list)
        for (size, number), parts in ways.items():
            of = np.concatenate([classes for classes, _ in parts])
            known = Colocations.joined([rows for _, rows in parts])
            by_size[size].append(self._joining(of, self.round.classes.variant[of, :number], known))
        found = [CandidateRows.joined(parts).numbered() for _, parts in sorted(by_size.items())]
        return [self._as_measured(candidates) for candidates in found]

    def _joins(self, kind: GpuKind, held: Members) -> Iterator[Colocations]:
        """Yield how jobs may join others, or start together, by size as far as there is time."""
        known = self.round.slowdowns
        for found in known.joins(kind, held):
            if found.workload.shape[1] == 2 or not self.values.pairs_only:
                yield found
        if not self.values.pairs_only:
            try:
                yield from known.joins_by_rule(kind, held, self.budget)
            except OutOfTimeError:
                self.complete = False

    def _as_measured(self, candidates: CandidateRows) -> CandidateRows:
        """Return the candidates with the measured slowdowns of running jobs as lower bounds.

        A job that shares GPUs outside of the round is slowed by the worse of its co-runners. For
        any other, the ratio of measured to known slowdown also applies with new co-runners.
        """
        least, factor = self._measured
        if not len(least):
            return candidates
        running = candidates.first < len(self.variants)
        job = self.job[np.where(running, candidates.first, 0)]
        least, factor = np.where(running, least[job], 0.0), np.where(running, factor[job], 1.0)
        return replace(
            candidates,
            slowdown=np.maximum(candidates.slowdown * factor, least),
            upper=np.maximum(candidates.upper, least),
            tail=np.maximum(candidates.tail, least),
        )

    def _joining(self, classes: Ints, residents: Ints, known: Colocations) -> CandidateRows:
        """Return the candidates of colocations on these classes beside these variants."""
        held = residents.shape[1]
        free = known.workload[:, held:]
        first = np.concatenate([residents, self.starts[free]], axis=1)
        count = np.concatenate([np.ones_like(residents), self.counts[free]], axis=1)
        return CandidateRows.on(classes, first, count, known, held)

    @cached_property
    def _kind(self) -> Sequence[GpuKind]:
        """The GPU model of each class, and how jobs share it."""
        return [self.round.kinds[k] for k in self.round.classes.kind.tolist()]

    def _untouched(self, classes: Ints, size: int) -> Rows:
        """Return for each class, with ``size`` residents, their group without a newcomer."""
        held = [self.round.classes.gpus[k][0] for k in classes.tolist()]
        residents = self.round.classes.variant[classes, :size]
        alone = self.round.jobs.slowdown[self.job[residents]]
        for k in np.flatnonzero(np.isnan(alone).any(axis=1)):
            alone[k] = resident_slowdowns(self.round, held[k])
        power = [resident_power(self.round, gpu) for gpu in held]
        return Rows(
            classes,
            self.job[residents],
            residents,
            self.round.classes.share[classes, :size],
            alone,
            np.array(power, dtype=np.float64),
        )

    def _alone(self, index: int) -> Rows:
        """Return the groups of one job, uncapped or (with ``start_capped``) at a share."""
        named = np.flatnonzero(self.named)
        of_share = self.round.starts_alone[self.round.jobs.workload[self.job[named]]]
        may = np.isin(self.round.shares_alone, self.round.shares_alone_on(self._kind[index]))
        row, share = np.nonzero(~np.isnan(of_share) & may)
        variant = named[row]
        gpu_class, job = np.full(len(row), index), self.job[variant]
        alone = of_share[row, share] * self.slowdown_factor[variant]
        if self.round.hosts is not None:
            alone *= self.round.hosts.beyond(gpu_class, job)
        keep = alone <= self.accepted[variant]
        keep &= self.fits(gpu_class, variant[:, None])
        return Rows(
            gpu_class,
            job[:, None],
            variant[:, None],
            np.array(self.round.shares_alone, dtype=np.int64)[share][:, None],
            alone[:, None],
            self.round.power_alone[job],
        ).take(keep)

    def _together(self, candidates: CandidateRows) -> Rows:
        """Return the groups of two or more jobs that some best plan may need."""
        found: list[tuple[Rows, Ints]] = []
        for part in self._in_time(candidates):
            if self.members and self.members > room_bytes() / _MEMBER_BYTES:
                self.complete = False
                break
            found.append(self._seated(*part))
            self.members += found[-1][0].variant.size
        if not found:
            return Rows.none(candidates.count.shape[1])
        rows = Rows.joined([rows for rows, _ in found])
        # In the order of the candidates, so that it does not depend on the chunks.
        order = np.argsort(np.concatenate([index for _, index in found]), kind="stable")
        return self._undominated(self._ordered(rows.take(order)))

    def _in_time(self, candidates: CandidateRows) -> Iterator[Piece]:
        """Yield the candidates in pieces, at least one, until the budget is used up."""
        if not self.budget.is_limited:
            yield from in_chunks(candidates.take(candidates.families()))
            return
        promising = candidates.take(candidates.families(across(np.add, 1 / candidates.slowdown)))
        for k, part in enumerate(in_chunks(promising, ROWS_IN_TIME)):
            if k and self.budget.passed:
                self.complete = False
                return
            self.budget.spend(_STEPS_PER_ROW * part.rows)
            yield part

    def _seated(self, candidates: CandidateRows, begin: int, end: float) -> tuple[Rows, Ints]:
        """Return the rows of the candidates that break no rule, and the candidate index of each.

        The ways to seat the same jobs, from ``begin`` to ``end``, are examined one after the other.
        For jobs of one GPU only the way with the largest gain is kept; for others all are kept, and
        ``_undominated`` selects.
        """
        at = candidates.alike()
        family, place = candidates.together(at).product(begin, end)
        variant = self.pool[place]
        gpu_class = candidates.gpu_class[at[0]][family]
        keep = enough(self.job[variant], self.kinds.copies)
        keep &= self.fits(gpu_class, variant)
        if self.round.hosts is not None:
            keep &= self.round.hosts.bears(gpu_class, self.job[variant])
        if self.round.machines.rules.gang_sharing == "whole":
            same = self.workers[variant] == self.workers[variant[:, :1]]
            keep &= across(np.logical_and, same)
        family, variant = family[keep], variant[keep]
        several = across(np.logical_or, self.workers[variant] > 1) | self.values.ratio
        best, chosen = np.full(len(family), -np.inf), np.full(len(family), -1)
        every: list[tuple[Ints, Ints]] = []
        for nth in at:
            row, candidate, gain = self._allowed(candidates, nth[family], variant)
            more = ~several[row] & (gain > best[row])
            best[row[more]], chosen[row[more]] = gain[more], candidate[more]
            every.append((row[several[row]], candidate[several[row]]))
        single = np.flatnonzero(chosen >= 0)
        row = np.concatenate([single, *(row for row, _ in every)])
        candidate = np.concatenate([chosen[single], *(candidate for _, candidate in every)])
        index = candidates.index[candidate]
        order = np.lexsort((row, index))
        rows = self.rows(candidates, candidate[order], variant[row[order]])
        return rows, index[order]

    def _allowed(
        self, candidates: CandidateRows, candidate: Ints, variant: Ints
    ) -> tuple[Ints, Ints, Floats]:
        """Return the rows that break no rule, their candidates, and the sum of their gains.

        Parameters
        ----------
        candidates : CandidateRows
            The candidates.
        candidate : (n,) int
            The candidate of each row, -1 for none.
        variant : (n, size) int
            The variants in its places.
        """
        keep = candidate >= 0
        for k, of_place in enumerate(variant.T):
            keep &= self.bound(candidates, k, candidate, of_place) <= self.accepted.take(of_place)
        row = np.flatnonzero(keep)
        candidate, variant = candidate[row], variant[row]
        found = self.rows(candidates, candidate, variant)
        keep = in_order(variant, candidates.twin[candidate])
        if self.values.has_rule:
            keep &= self.values.may_share(found)
        row, candidate, worth = row[keep], candidate[keep], self._worth(found.take(keep))
        able = ~np.isnan(worth)
        return row[able], candidate[able], worth[able]

    def _ordered(self, rows: Rows) -> Rows:
        """Return the rows with their members in the order of the jobs."""
        order = np.argsort(rows.job, axis=1)
        return Rows(
            rows.gpu_class,
            np.take_along_axis(rows.job, order, axis=1),
            np.take_along_axis(rows.variant, order, axis=1),
            np.take_along_axis(rows.share, order, axis=1),
            np.take_along_axis(rows.slowdown, order, axis=1),
            rows.power_w,
        )

    def _undominated(self, rows: Rows) -> Rows:
        """Drop each group that is not allowed, or is no better than another of the same jobs.

        Single-GPU jobs are compared by the sum of their gains, at any sub-batch; a gang by its
        gain, and only with groups at the same sub-batch, because its other GPUs may need it.
        """
        gang = self.workers[rows.variant] > 1
        value = self._value(rows)
        able = ~np.isnan(value)
        if not able.all():
            return self._undominated(rows.take(able))
        gain = self.values.gains(rows)
        single = across(np.add, np.where(gang, 0.0, gain)) + value
        criteria = [-single, *(-gain[:, k] * gang[:, k] for k in np.flatnonzero(gang.any(axis=0)))]
        if self.values.ratio:
            criteria.append(self.values.cost(rows))
        alike = np.where(gang, len(self.round) + rows.variant, rows.job)
        key = packed(np.column_stack([rows.gpu_class, alike]))
        return rows.take(pareto(key, criteria))

    def _worth(self, rows: Rows) -> Floats:
        """Return the sum of each group's gains and its value; NaN if it is not allowed."""
        worth: Floats = across(np.add, self.values.gains(rows)) + self._value(rows)
        return worth

    def _value(self, rows: Rows) -> Floats:
        """Return the value of each group less its cost to the other jobs of its node."""
        value, hosts = self.values.value(rows), self.round.hosts
        if (value > 0).any():  # bounds would be wrong, and useful groups left out
            rule = f"must be <= 0, got {np.nanmax(value):.10g}"
            raise UnsupportedError(f"{self.values.name}.value {rule}: add what is gained to gains")
        job = rows.job
        if hosts is None or job.shape[1] > 1 or not len(job):
            return value
        starts = ~self.round.jobs.running[job[:, 0]]
        lost = np.zeros(len(job))
        lost[starts] = hosts.harm(self.values, rows.gpu_class[starts], job[starts, 0])
        return value - lost

    def _flattened(self, parts: Iterable[Rows]) -> Groups:
        """Return the rows as groups, class by class, in their order within a class."""
        parts = list(parts)
        worth = [(self.values.gains(part).ravel(), self._value(part)) for part in parts]
        sizes = joined_ints([np.full(len(p), p.variant.shape[1]) for p in parts])
        gpu_class = joined_ints([p.gpu_class for p in parts])
        order = np.argsort(gpu_class, kind="stable")
        member = ranges((np.cumsum(sizes) - sizes)[order], sizes[order])
        variant = joined_ints([p.variant.ravel() for p in parts])[member]
        return Groups(
            values=self.values,
            gpu_class=gpu_class[order],
            start=np.append(0, np.cumsum(sizes[order])),
            variant=variant,
            job=self.job[variant],
            share=joined_ints([p.share.ravel() for p in parts])[member],
            slowdown=joined_floats([p.slowdown.ravel() for p in parts])[member],
            cost=joined_floats([self.values.cost(part) for part in parts])[order],
            gain=joined_floats([gain for gain, _ in worth])[member],
            value=joined_floats([value for _, value in worth])[order],
            node=np.full(len(order), -1),
            variants=self.variants,
            kinds=self.kinds,
            complete=self.complete,
            ceiling=self.ceiling,
        )


def worthwhile(groups: Groups) -> Groups:
    """Drop the groups that make any plan worse than a plan without starts.

    A plan without starts has the value 0, under an objective whose groups have a value of at most
    0. The gain of a running gang is capped at its largest gain on its slowest GPUs. Otherwise
    groups that no plan needs or reaches would set the scale by which solvers round.
    """
    groups = replace(groups, gain=np.minimum(groups.gain, _most_of_running(groups)[groups.job]))
    most = np.maximum(best_gains(groups)[:, 0], 0.0)
    member = np.bincount(
        groups.group_of_member, weights=groups.gain - most[groups.job], minlength=len(groups)
    )
    return groups.take(member + groups.value + most.sum() >= 0)


def _most_of_running(groups: Groups) -> Floats:
    """Return each running job's largest gain on its worst GPUs, inf for other jobs."""
    classes = len(groups.round.classes)
    member = np.flatnonzero(groups.round.jobs.running[groups.job])
    gpu_class = groups.gpu_class[groups.group_of_member[member]]
    key, place = np.unique(groups.job[member] * classes + gpu_class, return_inverse=True)
    best = np.full(len(key), -np.inf)
    np.maximum.at(best, place, groups.gain[member])
    most = np.full(len(groups.round), np.inf)
    np.minimum.at(most, key // classes, best)
    return np.where(groups.round.jobs.running, most, np.inf)
