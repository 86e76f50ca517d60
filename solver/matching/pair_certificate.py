"""An independent proof of the bound of a matching; shares no code with the search.

The pairs of a round are read from the instance again: which jobs may share a GPU, at which
slowdown, and with which value. Formulations and search are not used, so the proof fails if they
omit or undervalue a pair. Only the gains of a user's own objective come from its class, which
defines them.

A *seat* is a waiting job at one sub-batch, or a running job at its share. Two seats may share if an
entry of the instance allows it, within memory, shares and gSLAs; the best of their entries counts.
Plans are matchings of jobs only if all GPUs are equal, no GPU takes three jobs, and gangs share all
their GPUs or none: this is checked here too.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import combinations_with_replacement, islice
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.values import JobValues
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.checking.facts import JobOnGpus, KnownTogether, Occupancy, running_jobs
from dovetail.instances.instance import Job, Workload
from dovetail.instances.slowdowns.entry import MODES, GpuKind, SlowdownEntry
from dovetail.instances.slowdowns.shares import BEST_EFFORT, CODES, NO_CAP, share_code, share_of
from dovetail.solver.matching.definitions import SeatColumns, definition, slowdowns_alone
from dovetail.solver.pairing.certificate import bound_errors
from dovetail.solver.pairing.result import Matching
from dovetail.solver.types import Proven

_ROUNDING = 1e-12
"""Relative difference that is allowed between two computations of a value."""

_TOLERANCE = 1e-9
"""Relative tolerance of gSLAs and times; for memory, a millionth of a MiB."""

_ANY = -1
"""The share of a seat whose share is still open."""

_AT_ONCE = 1_000_000
"""Pairs of seats processed together."""

_TILE = 256
"""Rows that are mirrored together."""

_SMALL, _FEW = 500**2, 20
"""Cells up to which a matrix is always dense; above, one in this many must be filled."""


def proven_by_pairs(found: Matching, decided: Bools, values: JobValues) -> Proven:
    """Return the bound that the duals of a matching prove, and the errors in them.

    Parameters
    ----------
    found : Matching
        The result of ``match_pairs``.
    decided : (jobs,) bool
        The running jobs that it had to place; the others stay as they are.
    values : JobValues
        The objective in the round, formulated again.
    """
    reading = _Reading(values, decided)
    errors = (*reading.errors(), *bound_errors(found, **reading.arguments()))
    return Proven(found.bound + reading.kept(), errors)


class _Sharing(NamedTuple):
    """An entry from the side of one of its two members."""

    own: int
    other: int
    shares: tuple[int, int]
    slowdown: tuple[float, float]
    upper: tuple[float, float]
    tail: tuple[float, float]
    power_w: float


class _Reading:
    def __init__(self, values: JobValues, decided: Bools) -> None:
        self.instance = instance = values.round.instance
        self.cluster = instance.cluster
        self.decided = decided
        self.before = Occupancy(instance, running_jobs(instance))
        self.definition = definition(values, self.before)
        self.place = {name: k for k, name in enumerate(instance.workloads)}
        self.workloads = tuple(instance.workloads.values())
        self.index = {job.id: k for k, job in enumerate(instance.jobs)}
        kinds = (self.cluster.kind_of(place.gpu) for place in instance.places.values())
        self.kind = next(kinds, GpuKind("", self.cluster.sharing))
        self.model, self.mode = self.kind
        self._solo = slowdowns_alone(self.workloads)
        self._together = KnownTogether(instance)

    # -- the pairing problem of the round ------------------------------------------------------

    def errors(self) -> Iterator[str]:
        """Find why plans of the round are not matchings of its jobs."""
        gpus = (place.gpu for place in self.instance.places.values())
        if len({(self.cluster.kind_of(gpu), gpu.memory_mib) for gpu in gpus}) > 1:
            yield "GPUs of several models, memory sizes or ways of sharing are not interchangeable"
        yield from self._left_out()
        yield from self._in_part()
        yield from self._sets()

    def arguments(self) -> dict[str, Any]:
        """Return the pairs and the single jobs as arguments of ``match_pairs``."""
        jobs = self.instance.jobs
        used = {gpu for job in self._undecided() for gpu in job.gpus or ()}
        return {
            "pair_value": self.pairs.matrix,
            "single_value": self._alone(),
            "gpus": len(self.instance.places) - len(used),
            "size": np.array([job.workers for job in jobs], dtype=np.int64),
            "required": self.decided,
        }

    def kept(self) -> float:
        """Return the value of the running jobs without a decision."""
        jobs = [self.index[job.id] for job in self._undecided()]
        return math.fsum(self.definition.now(jobs))

    def _undecided(self) -> list[Job]:
        jobs = zip(self.instance.jobs, self.decided.tolist(), strict=True)
        return [job for job, decided in jobs if job.running and not decided]

    def _left_out(self) -> Iterator[str]:
        """Find running jobs without a decision that a job could join.

        If only starting jobs have a value, a job that would join at a loss may as well wait.
        """
        joined = self.pairs.worth_more(0.0 if self.definition.relative else -np.inf)
        for job in self._undecided():
            if joined[self.index[job.id]]:
                yield f"{job.id} runs and could be joined, but was left out"
                return

    def _in_part(self) -> Iterator[str]:
        """Find gangs that could share some, but not all, of their GPUs."""
        if self.pairs.in_part is not None:
            names = [self.instance.jobs[k].id for k in self.pairs.in_part]
            yield f"{' and '.join(names)} could share some of their GPUs"

    def _shares_in_part(self, first: Ints, second: Ints) -> Bools:
        """Return which pairs could share some, but not all, GPUs of one of them."""
        workers = np.array([job.workers for job in self.instance.jobs], dtype=np.int64)
        gang = (workers[first] > 1) | (workers[second] > 1)
        several = self._in_several[first] | self._in_several[second]
        return np.asarray(gang & (several | (self.cluster.gang_sharing != "whole")))

    def _sets(self) -> Iterator[str]:
        """Find three or more jobs that could share a GPU."""
        if self.definition.pairs_only:
            return
        residents = [
            gpu.jobs for gpu in self.before.gpus.values() if not any(map(self._over_gsla, gpu.jobs))
        ]
        held = {tuple(each.job.id for each in jobs): jobs for jobs in [(), *residents]}
        declared = self.cluster.assumed
        if declared is not None and declared.sets is not None and self._most > 2:
            yield "three or more jobs could share a GPU by the declared product"
            return
        for entry in self._known_sets():
            if not self._within_shares(entry.shares):
                continue
            for jobs in held.values():
                if self._can_be_filled(entry, jobs):
                    yield f"three or more jobs could share a GPU: {' + '.join(entry.workloads)}"
                    return

    # -- seats -----------------------------------------------------------------------------------

    @cached_property
    def seats(self) -> SeatColumns:
        """The seats of all jobs that may join or be joined."""
        rows = [row for job in self.instance.jobs for row in self._seats_of(job)]
        columns = zip(*rows, strict=True) if rows else ([] for _ in fields(SeatColumns))
        whole, real = np.int64, float
        types = (whole, whole, whole, whole, real, real, real, bool, bool, whole)
        return SeatColumns(*(np.array(c, dtype=t) for c, t in zip(columns, types, strict=True)))

    def _seats_of(self, job: Job) -> Iterator[tuple[Any, ...]]:
        index, workload = self.index[job.id], self.instance.workloads[job.workload]
        if not job.running:
            places = [(k, _ANY, each) for k, each in enumerate(_waiting(job, workload))]
        elif self._over_gsla(self.before.placed[job.id]):
            places = []
        else:
            placed = self.before.placed[job.id]
            alone = [g for g in job.gpus or () if len(self.before.gpus[g].jobs) == 1]
            places = [(0, share, placed) for share in {share_code(placed.share[g]) for g in alone}]
        for way, share, placed in places:
            yield (
                index,
                self.place[job.workload],
                way,
                share,
                placed.growth,
                self._need_mib(placed),
                math.inf if job.gsla is None else job.gsla * (1 + _TOLERANCE),
                job.priority == "latency",
                job.running,
                job.workers,
            )

    def _over_gsla(self, placed: JobOnGpus) -> bool:
        gsla, effect = placed.job.gsla, self.before.effects.get(placed.job.id)
        over = gsla is not None and effect is not None and effect.bound > gsla * (1 + _TOLERANCE)
        return over or effect is None

    @cached_property
    def _in_several(self) -> Bools:
        """Which running jobs have several shares or already share a GPU, (jobs,)."""
        found = np.zeros(len(self.instance.jobs), dtype=bool)
        for name, placed in self.before.placed.items():
            numbers = {len(self.before.gpus[gpu].jobs) for gpu in placed.share}
            found[self.index[name]] = len(set(placed.share.values())) > 1 or numbers != {1}
        return found

    @cached_property
    def _may_share(self) -> Bools:
        """Which jobs may share the GPUs of the round in the way that they are shared, (jobs,)."""
        needs = (job.sharing for job in self.instance.jobs)
        return np.array([each is None or each == self.mode for each in needs], dtype=bool)

    @cached_property
    def room_mib(self) -> float:
        """Memory that the jobs on a GPU may need together."""
        sizes = [place.gpu.memory_mib for place in self.instance.places.values()]
        return max(sizes, default=0.0) - self.cluster.reserve_mib + 1e-6

    def _need_mib(self, placed: JobOnGpus) -> float:
        """Return the memory of a worker on a GPU of the round, all of which are equal."""
        gpus = (place.gpu for place in self.instance.places.values())
        return max((placed.memory_mib(self.cluster, gpu) for gpu in islice(gpus, 1)), default=0.0)

    @cached_property
    def idle(self) -> int:
        """The number of GPUs without a job."""
        return len(self.instance.places) - len(self.before.gpus)

    # -- entries ---------------------------------------------------------------------------------

    @cached_property
    def _most(self) -> float:
        """The most jobs that a GPU may hold."""
        own = (place.gpu.max_jobs or math.inf for place in self.instance.places.values())
        return min(min(own, default=0), self.cluster.max_jobs_per_gpu)

    def _known_sets(self) -> Iterator[SlowdownEntry]:
        """Yield the entries of three or more jobs that apply to the GPUs of the round."""
        known = self.instance.entries
        for entry in self.instance.slowdowns.sets.values():
            model, members, mode = entry.key
            if model is None and (self.model, members, mode) in known:
                continue
            holds = model in (None, self.model) and mode == self.mode
            if holds and entry.slowdown and len(members) <= self._most:
                yield entry

    def _within_shares(self, shares: Iterable[AnyShare]) -> bool:
        caps = [share for share in shares if share is not None and share != IDLE]
        return sum(caps) <= self.cluster.share_sum

    def _may_start(self, workload: int, code: int) -> bool:
        if code == BEST_EFFORT and self.workloads[workload].isolation is None:
            return False
        return code == NO_CAP or share_of(code) in self.cluster.shares

    @cached_property
    def sharings(self) -> Sequence[_Sharing]:
        """The known pairs from the side of their first members; see ``_allowed``."""
        return list(self._sharings())

    def _sharings(self) -> Iterator[_Sharing]:
        known = self.instance.slowdowns
        row = np.flatnonzero(self._applies()) if self._most >= 2 else np.empty(0, dtype=np.int64)
        place = np.array([self.place[name] for name in known.names], dtype=np.int64)
        workload, share = place[known.workload[row]], known.share[row]
        slow, upper, p99 = known.slowdown[row], known.upper[row], known.p99[row]
        # A gSLA holds until the job ends, alone at its share when the other has ended.
        alone = self._solo[workload, share]
        upper = np.where(np.isnan(upper), slow, upper)
        tail = np.maximum(np.where(np.isnan(p99), upper, p99), alone)
        columns = workload, share, slow, np.maximum(upper, alone), tail, known.power_w[row]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for (a, b), (s, t), (x, y), (u, v), (p, q), power_w in rows:
            yield _Sharing(a, b, (s, t), (x, y), (u, v), (p, q), power_w)
            if a == b and s != t:
                yield _Sharing(b, a, (t, s), (y, x), (v, u), (q, p), power_w)
        yield from self._declared_pairs()

    def _declared_pairs(self) -> Iterator[_Sharing]:
        """Yield the pairs that no entry names and whose slowdown the cluster's owner declares."""
        declared = self.cluster.assumed
        if declared is None or declared.pair is None or self._most < 2:
            return
        known, both = self.instance.entries, (declared.pair, declared.pair)
        for names in combinations_with_replacement(
            sorted({j.workload for j in self.instance.jobs}), 2
        ):
            members = tuple((name, NO_CAP) for name in names)
            if not any((model, members, self.mode) in known for model in (self.model, None)):
                one, other = (self.place[name] for name in names)
                yield _Sharing(one, other, (NO_CAP, NO_CAP), both, both, both, math.nan)

    def _applies(self) -> Bools:
        """Return which pairs may share a GPU of the round within its shares, (rows,)."""
        known = self.instance.slowdowns
        caps = np.where(known.share == BEST_EFFORT, 0, known.share).sum(axis=1)
        model = known.models.index(self.model) if self.model in known.models else -2
        of_mode = known.mode == MODES.index(self.mode)
        own, for_all = (known.model == model) & of_mode, (known.model == -1) & of_mode
        if own.any() and for_all.any():
            # An entry for the model comes before the one for all models.
            ends = np.sort(known.workload.astype(np.int64) * CODES + known.share, axis=1)
            key = ends[:, 0] * (len(known.names) * CODES) + ends[:, 1]
            for_all &= ~np.isin(key, key[own])
        may = ~np.isnan(known.slowdown).any(axis=1) & (caps <= self.cluster.share_sum)
        return np.asarray((own | for_all) & may)

    # -- pairs -----------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> _PairWorths:
        """Every pair of jobs that may share, with its best value."""
        every = np.arange(len(self.seats))
        found = _PairWorths(len(self.instance.jobs), self._looked_at(every))
        for i, j, k, table in self._seated(every):
            has_room = self._has_room[i] & self._has_room[j]
            mine, other = self.seats.take(i[has_room]), self.seats.take(j[has_room])
            row = k[has_room]
            growth = np.stack([mine.growth, other.growth])
            slowdown = table.slowdown[:, row] * growth
            value, may = self.definition.pairs(
                (mine, other), slowdown, table.shares[:, row], table.power_w[row]
            )
            first, second = mine.job[may], other.job[may]
            found.add(first, second, value[may], self._shares_in_part(first, second))
        return found

    @cached_property
    def _has_room(self) -> Bools:
        """Which seats belong to jobs that could get enough GPUs, (n,)."""
        seats = self.seats
        gang = ~seats.runs & (seats.size > 1)
        room = np.where(gang, self.idle, seats.size)
        which = np.flatnonzero(gang | seats.runs) if gang.any() else np.zeros(0, dtype=np.int64)
        joined: set[tuple[int, int]] = set()
        for i, j, _, _ in self._seated(which):
            mixed = np.flatnonzero(seats.runs[i] != seats.runs[j])
            ends = np.stack([i[mixed], j[mixed]])
            ends = np.where(seats.runs[ends[0]], ends[::-1], ends)
            joined.update(zip(*ends.tolist(), strict=True))
        for waiting, running in joined:
            room[waiting] += self._alone_at[int(seats.job[running]), int(seats.share[running])]
        return np.asarray(seats.size <= room)

    @cached_property
    def _alone_at(self) -> Counter[tuple[int, int]]:
        """The number of GPUs that each running job has for itself, by job and share."""
        return Counter(
            (self.index[gpu.jobs[0].job.id], share_code(gpu.shares[0]))
            for gpu in self.before.gpus.values()
            if len(gpu.jobs) == 1
        )

    def _of_workload(self, which: Ints) -> dict[int, Ints]:
        """Return some seats by workload."""
        of: dict[int, list[int]] = defaultdict(list)
        for seat, workload in zip(which.tolist(), self.seats.workload[which].tolist(), strict=True):
            of[workload].append(seat)
        return {workload: np.array(seats, dtype=np.int64) for workload, seats in of.items()}

    def _looked_at(self, which: Ints) -> int:
        """Return the number of pairs of these seats with known entries."""
        number = Counter(self.seats.workload[which].tolist())
        return sum(number[each.own] * number[each.other] for each in self.sharings)

    def _seated(self, which: Ints) -> Iterator[tuple[Ints, Ints, Ints, _Table]]:
        """Yield the pairs of these seats that may share, with their row in a table of entries."""
        of = self._of_workload(which)
        able = [each for each in self.sharings if each.own in of and each.other in of]
        ends = np.cumsum([len(of[each.own]) * len(of[each.other]) for each in able])
        for batch in np.split(np.arange(len(able)), np.flatnonzero(np.diff(ends // _AT_ONCE)) + 1):
            if len(batch):
                yield self._seated_by([able[k] for k in batch.tolist()], of)

    def _seated_by(
        self, sharings: Sequence[_Sharing], of: Mapping[int, Ints]
    ) -> tuple[Ints, Ints, Ints, _Table]:
        first, second, number = [], [], []
        for each in sharings:
            mine, others = of[each.own], of[each.other]
            first.append(np.repeat(mine, len(others)))
            second.append(np.tile(others, len(mine)))
            number.append(len(mine) * len(others))
        i, j = np.concatenate(first), np.concatenate(second)
        k = np.repeat(np.arange(len(sharings)), number)
        table = _Table.of(sharings, self._may_start)
        keep = np.flatnonzero(self._allowed(self.seats, i, j, k, table))
        return i[keep], j[keep], k[keep], table

    def _allowed(self, seats: SeatColumns, i: Ints, j: Ints, k: Ints, table: _Table) -> Bools:
        """Return which pairs of seats break no rule of one GPU; each pair of jobs appears once."""
        runs = seats.runs
        size, whole = seats.size, self.cluster.gang_sharing == "whole"
        keep = (seats.job[i] < seats.job[j]) | (seats.workload[i] != seats.workload[j])
        keep &= ~(runs[i] & runs[j])
        keep &= seats.memory_mib[i] + seats.memory_mib[j] <= self.room_mib
        keep &= (size[i] == size[j]) | (not whole)
        keep &= runs[i] | runs[j] | ((size[i] <= self.idle) & (size[j] <= self.idle))
        keep &= self._may_share[seats.job[i]] & self._may_share[seats.job[j]]
        for at, seat in enumerate((i, j)):
            share = seats.share[seat]
            fits = table.shares[at][k] == share
            keep &= np.where(share == _ANY, table.startable[at][k], fits)
            bound = np.where(seats.late[seat], table.tail[at][k], table.upper[at][k])
            keep &= bound * seats.growth[seat] <= seats.gsla[seat]
        return np.asarray(keep)

    # -- single jobs -----------------------------------------------------------------------------

    def _alone(self) -> Floats:
        """Return the value of each job with its GPUs to itself, -inf if that is not allowed."""
        value = np.full(len(self.instance.jobs), -np.inf)
        seats = self.seats
        fits = ~seats.runs & (seats.memory_mib <= self.room_mib) & (seats.size <= self.idle)
        rows = [
            (k, slowdown * float(seats.growth[k]), share)
            for k in np.flatnonzero(fits).tolist()
            for share, slowdown in self._slowdowns_alone(self.workloads[seats.workload[k]])
            if slowdown * seats.growth[k] <= seats.gsla[k]
        ]
        if rows:
            seat, slowdown, share = map(np.array, zip(*rows, strict=True))
            worth = self.definition.alone(seats.take(seat), slowdown, share)
            np.maximum.at(value, seats.job[seat], worth)
        decided = np.flatnonzero(self.decided)
        now = np.array(self.definition.now(decided.tolist()), dtype=np.float64)
        value[decided] = now - _ROUNDING * np.abs(now)
        return value

    def _slowdowns_alone(self, workload: Workload) -> Iterator[tuple[int, float]]:
        """Yield the shares at which a job may start alone, and its slowdown there."""
        yield NO_CAP, 1.0
        for share in self.cluster.shares if self.cluster.start_capped else ():
            if share == IDLE:
                yield from () if workload.isolation is None else ((share_code(share), 1.0),)
            elif self.mode == "time_sliced":
                continue
            elif {100, share} <= workload.throughput.keys() and self._within_shares([share]):
                yield share_code(share), workload.throughput[100] / workload.throughput[share]

    # -- sets ------------------------------------------------------------------------------------

    def _can_be_filled(self, entry: SlowdownEntry, held: Sequence[JobOnGpus]) -> bool:
        """Return whether waiting jobs could fill an entry together with the running jobs there."""
        gpu = next(iter(held[0].share.keys() & held[-1].share.keys())) if held else ""
        places = list(range(len(entry.workloads)))
        members = list(zip(entry.workloads, entry.shares, strict=True))
        taken: dict[int, JobOnGpus] = {}
        for placed in held:
            own = placed.job.workload, placed.share[gpu]
            at = next((k for k in places if members[k] == own and k not in taken), None)
            if at is None:
                return False
            taken[at] = placed
        used = sum(map(self._need_mib, taken.values()))
        if len(taken) == len(places) or not all(
            self._suffers(entry, k, each) for k, each in taken.items()
        ):
            return False
        free = [k for k in places if k not in taken]
        return self._filled(entry, free, tuple(each.job for each in held), used)

    def _filled(
        self, entry: SlowdownEntry, free: Sequence[int], jobs: tuple[Job, ...], used_mib: float
    ) -> bool:
        if used_mib > self.room_mib or (jobs and not self._suit(jobs)):
            return False
        if not free:
            return True
        # Of the candidates for a place, only the smallest are needed, as many as there are places.
        able = [each for each in self._takers(entry, free[0]) if each.job not in jobs]
        return any(
            self._filled(
                entry,
                free[1:],
                (*jobs, each.job),
                used_mib + self._need_mib(each),
            )
            for each in able[: len(entry.workloads)]
        )

    def _takers(self, entry: SlowdownEntry, place: int) -> list[JobOnGpus]:
        name, share = entry.workloads[place], entry.shares[place]
        if not self._may_start(self.place[name], share_code(share)):
            return []
        able = (each for each in self._waiting_by_name[name] if self._suffers(entry, place, each))
        return sorted(able, key=self._need_mib)

    def _suit(self, jobs: Collection[Job]) -> bool:
        """Return whether jobs that share could have as many GPUs as they need."""
        if any(job.sharing not in (None, self.mode) for job in jobs):
            return False
        workers = {job.workers for job in jobs}
        if self.cluster.gang_sharing == "whole" and len(workers) > 1:
            return False
        running = any(job.running for job in jobs)
        return max(workers) <= (len(self.instance.places) if running else self.idle)

    @cached_property
    def _waiting_by_name(self) -> dict[str, list[JobOnGpus]]:
        found: dict[str, list[JobOnGpus]] = defaultdict(list)
        for job in self.instance.jobs:
            if not job.running:
                found[job.workload] += _waiting(job, self.instance.workloads[job.workload])
        return found

    def _suffers(self, entry: SlowdownEntry, place: int, placed: JobOnGpus) -> bool:
        """Return whether a job accepts its slowdown in a place of a set, until it ends."""
        gsla, late = placed.job.gsla, placed.job.priority == "latency"
        slowdown = entry.slowdown or ()
        bound = entry.upper or slowdown
        if late and entry.p99 is not None:
            bound = entry.p99
        me = entry.workloads[place], share_code(entry.shares[place])
        left = self._together.left_of((self.kind, entry.key[1]))
        later = (known.of(me, late).bound for known in left if me in known.members)
        most = max(bound[place], float(self._solo[self.place[me[0]], me[1]]), *later)
        return gsla is None or most * placed.growth <= gsla * (1 + _TOLERANCE)


def _waiting(job: Job, workload: Workload) -> list[JobOnGpus]:
    """Return a waiting job at each of its sub-batches."""
    if workload.batch is None:
        return [JobOnGpus(job, workload, {}, None)]
    halves = (workload.batch.size >> k for k in range(workload.batch.size.bit_length()))
    return [JobOnGpus(job, workload, {}, half) for half in halves if workload.batch.allows(half)]


class _Table(NamedTuple):
    """Sharings as arrays, (2, k) each; the power of the GPU (k,)."""

    shares: Ints
    startable: Bools
    slowdown: Floats
    upper: Floats
    tail: Floats
    power_w: Floats

    @classmethod
    def of(cls, sharings: Sequence[_Sharing], may_start: Any) -> _Table:  # noqa: ANN401
        start = [
            (may_start(each.own, each.shares[0]), may_start(each.other, each.shares[1]))
            for each in sharings
        ]
        return cls(
            np.array([each.shares for each in sharings], dtype=np.int64).T,
            np.array(start, dtype=bool).T,
            np.array([each.slowdown for each in sharings]).T,
            np.array([each.upper for each in sharings]).T,
            np.array([each.tail for each in sharings]).T,
            np.array([each.power_w for each in sharings]),
        )


class _PairWorths:
    """The best values of pairs of n jobs, in a matrix if there are many, else in a list.

    Attributes
    ----------
    in_part : (int, int), optional
        Two jobs that could share some, but not all, GPUs of one of them.
    """

    def __init__(self, jobs: int, looked_at: int) -> None:
        self._jobs = jobs
        self._full: Floats | None = None
        if jobs**2 <= max(_SMALL, _FEW * looked_at):
            self._full = np.full((jobs, jobs), -np.inf)
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        self.in_part: tuple[int, int] | None = None

    def add(self, first: Ints, second: Ints, value: Floats, in_part: Bools) -> None:
        """Add pairs; of equal pairs the most valuable counts."""
        for k in np.flatnonzero(in_part)[:1].tolist():
            self.in_part = int(first[k]), int(second[k])
        first, second, value = _best(first, second, value)
        if self._full is None:
            self._parts.append((first, second, value))
        else:
            self._full[first, second] = np.maximum(self._full[first, second], value)

    @cached_property
    def matrix(self) -> Any:  # noqa: ANN401 - dense or sparse
        """The symmetric values; -inf or absent where two jobs may not share."""
        if self._full is not None:
            _mirror(self._full)
            return self._full
        none = np.zeros(0, dtype=np.int64)
        parts = zip((none, none, np.zeros(0)), *self._parts, strict=True)
        first, second, value = _best(*(np.concatenate(column) for column in parts))
        ends = np.append(first, second), np.append(second, first)
        return sp.csr_array((np.append(value, value), ends), shape=(self._jobs, self._jobs))

    def worth_more(self, least: float) -> Bools:
        """Return which jobs have a pair that is worth more, (jobs,)."""
        if self._full is not None:
            return np.asarray((self.matrix > least).any(axis=1))
        row = np.repeat(np.arange(self._jobs), np.diff(self.matrix.indptr))
        found = np.zeros(self._jobs, dtype=bool)
        found[row[self.matrix.data > least]] = True
        return found


def _best(first: Ints, second: Ints, value: Floats) -> tuple[Ints, Ints, Floats]:
    """Return every pair of jobs once, the lower index first, with its largest value."""
    first, second = np.minimum(first, second), np.maximum(first, second)
    order = np.lexsort((value, second, first))
    a, b = first[order], second[order]
    last = (np.diff(a, append=-1) != 0) | (np.diff(b, append=-1) != 0)
    return a[last], b[last], value[order][last]


def _mirror(matrix: Floats) -> None:
    """Copy the values above the diagonal below it."""
    for k in range(0, len(matrix), _TILE):
        rows = slice(k, k + _TILE)
        matrix[k:, rows] = np.maximum(matrix[k:, rows], matrix[rows, k:].T)
