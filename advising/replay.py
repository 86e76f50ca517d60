"""The jobs of the records once more, sharing GPUs.

Each job starts when it did, and as soon as it starts it is decided where, without knowing how long
it will run: beside running jobs if all of them may share, else on idle GPUs. A cap lasts from the
start of a job to its end, and a job only joins jobs that have one. As a cap costs time if nobody
joins, several ways are tried and the best one counts:

- *Pairs at halves.* A job starts at half of the SMs if it may share with any other and if half of
  the SMs alone slows it by no more than a rule says. Jobs that start at the same moment are
  matched so that they need the fewest GPUs.
- *Sets*, if more than two jobs may share a GPU: a job starts at the smallest share that its rule
  allows (``dovetail.advising.sets``), on the GPU where it adds the least to the sum of slowdowns;
  of equally good ones, where the least memory is left. Jobs that start at the same moment start in
  the order of their memory, the largest first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.matched import matched
from dovetail.advising.sets import RULES, Members, SharingSets, cap_choices, pools_of
from dovetail.advising.sharing import KindPairs, has_partner
from dovetail.advising.work import Bools, Floats, Ints, Work
from dovetail.formulations.budget import Budget

_HOUR_S: Final = 3_600.0
_NEAR: Final = 1e-9
"""Sums of slowdowns that differ by less are equal."""


@dataclass(frozen=True)
class Replayed:
    """What sharing would have come to.

    Attributes
    ----------
    gpu_hours : float
        GPU hours in use.
    most_gpus : int
        The most GPUs in use at once.
    shared_hours : mapping of tuple of int to float
        The GPU hours that kinds shared, the kinds in order: for two jobs as many were saved, for
        three twice as many, less what the slowdowns cost.
    mean_slowdown : float
        Of all jobs, weighted by their GPU hours.
    shares : (kinds,) int
        The share of each kind in per cent; 0 without a cap.
    """

    gpu_hours: float
    most_gpus: int
    shared_hours: dict[Members, float]
    mean_slowdown: float
    shares: Ints


def replay(
    work: Work,
    case: int,
    tables: Sequence[KindPairs],
    limit: float,
    most: int,
    budget: Budget,
) -> Replayed:
    """Replay the jobs in a case, in the way that saves most.

    Ways are the rules, what kinds share a GPU, and what may share in the case or in a more cautious
    one: jobs that join more often are not always the better for it.

    Parameters
    ----------
    work : Work
        The jobs.
    case : int
        The case, a position in ``CASES``.
    tables : sequence of KindPairs
        The pairs of kinds at halves in each case.
    limit : float
        The slowdown that owners accept.
    most : int
        The most jobs on a GPU.
    budget : Budget
        The time for it.

    Raises
    ------
    OutOfTimeError
        When the budget is spent.
    """
    pairs = _pair_ways(work, case, tables, limit, budget)
    able = has_partner(work, tables[case].allowed)
    choices = cap_choices(able, limit, most, [table.law for table in tables[: case + 1]])
    sets = (
        _ReplaySets(SharingSets(work, case, tables[case].law, shares, limit, most), work, case)
        for shares in choices
    )
    found = [_Replay(work, way, budget).run() for ways in (pairs, sets) for way in ways]
    return min(found, key=lambda each: each.gpu_hours)


def _pair_ways(
    work: Work,
    case: int,
    tables: Sequence[KindPairs],
    limit: float,
    budget: Budget,
) -> Iterator[_ReplayPairs]:
    """Yield which kinds may share and which have a cap from their start, each choice once."""
    halves = np.full(len(work.gpus), 50)
    alone, beside = tables[case].law.alone(halves), tables[case].slowdown
    none = np.zeros_like(tables[case].allowed)
    yield _ReplayPairs(none, np.zeros(len(work.gpus), np.bool_), beside, alone, budget)
    seen = set()
    for table in tables[: case + 1]:
        allowed, feared = table.allowed & tables[case].allowed, table.law.alone(halves)
        able = has_partner(work, allowed)
        for rule in RULES:
            with np.errstate(invalid="ignore"):
                capped = able & (feared <= min(rule, limit))
            key = capped.tobytes(), allowed[np.ix_(capped, capped)].tobytes()
            if capped.any() and key not in seen:
                seen.add(key)
                yield _ReplayPairs(allowed, capped, beside, alone, budget)


@dataclass(slots=True, eq=False)
class _ReplayedJob:
    """A running job with a cap: its kind, work left in seconds alone, and pace."""

    job: int
    kind: int
    left_s: float
    since_s: float
    slowdown: float = 1.0
    version: int = 0
    begun_s: float = 0.0


@dataclass(slots=True, eq=False)
class _ReplayPlace:
    """One or several GPUs that jobs hold together, and since when these jobs do."""

    gpus: int
    jobs: list[_ReplayedJob] = field(default_factory=list)
    members: Members = ()
    since_s: float = 0.0


class _Way(Protocol):
    """Which jobs have caps and share, and where these jobs start."""

    @property
    def shares(self) -> Ints:
        """The share of each kind in per cent; 0 without a cap."""

    def start(self, jobs: Sequence[_ReplayedJob], gpus: int, replayed: _Replay) -> None:
        """Let jobs start on new or on shared places, which may take more jobs from now on."""

    def slowdowns(self, members: Members) -> Iterable[float]:
        """Return the slowdown of each job of a set, or of one alone at its share."""

    def before(self, place: _ReplayPlace) -> None:
        """Hear of a place whose jobs will change."""

    def after(self, place: _ReplayPlace) -> None:
        """Hear of a place whose jobs have changed; some are left."""


class _ReplayPairs:
    """Two jobs share at halves; those that start together are matched."""

    def __init__(
        self,
        allowed: Bools,
        capped: Bools,
        beside: NDArray[np.float32],
        alone: Floats,
        budget: Budget,
    ) -> None:
        self._allowed, self._capped, self._beside = allowed, capped, beside
        self._both = np.where(allowed, beside + beside.T, np.inf)
        self._alone: list[float] = alone.tolist()
        self._budget = budget
        self._single: dict[int, dict[int, _ReplayPlace]] = defaultdict(dict)

    @property
    def shares(self) -> Ints:
        return np.where(self._capped, 50, 0)

    def slowdowns(self, members: Members) -> Iterable[float]:
        if len(members) == 1:
            return (self._alone[members[0]],)
        a, b = members
        return float(self._beside[a, b]), float(self._beside[b, a])

    def before(self, place: _ReplayPlace) -> None:
        if len(place.jobs) == 1:
            del self._single[place.gpus][place.jobs[0].job]

    def after(self, place: _ReplayPlace) -> None:
        if len(place.jobs) == 1:
            self._single[place.gpus][place.jobs[0].job] = place

    def start(self, jobs: Sequence[_ReplayedJob], gpus: int, replayed: _Replay) -> None:
        single = [*self._single[gpus].values()]
        if len(jobs) == 1:
            replayed.place(jobs[0], gpus, self._best(jobs[0], single))
            return
        of = [*(run.kind for run in jobs), *(place.jobs[0].kind for place in single)]
        kinds = np.array(of, np.int64)
        found = matched(kinds, len(jobs), self._allowed, self._beside, self._budget)
        mates = found.mate.tolist()
        for k, run in enumerate(jobs):
            if mates[k] >= len(jobs):
                replayed.place(run, gpus, single[mates[k] - len(jobs)])
            elif mates[k] >= k:
                place = replayed.place(run, gpus)
                if mates[k] > k:
                    replayed.place(jobs[mates[k]], gpus, place)

    def _best(self, run: _ReplayedJob, single: Sequence[_ReplayPlace]) -> _ReplayPlace | None:
        """Return the place of the running job beside which both are slowed least."""
        if not single:
            return None
        both = self._both[run.kind, [place.jobs[0].kind for place in single]]
        best = int(both.argmin())
        return single[best] if both[best] < np.inf else None


class _ReplaySets:
    """Any number of jobs share with caps of their kinds."""

    def __init__(self, sets: SharingSets, work: Work, case: int) -> None:
        self._sets = sets
        self._pool: list[int] = pools_of(work).tolist()
        self._mib: list[float] = np.nan_to_num(work.memory_mib[case]).tolist()
        self._open: dict[int, dict[Members, dict[int, _ReplayPlace]]] = defaultdict(dict)

    @property
    def shares(self) -> Ints:
        return self._sets.shares

    def slowdowns(self, members: Members) -> Iterable[float]:
        return self._sets.slowdowns(members)

    def before(self, place: _ReplayPlace) -> None:
        of_pool = self._open[self._pool[place.members[0]]]
        same = of_pool[place.members]
        del same[id(place)]
        if not same:
            del of_pool[place.members]

    def after(self, place: _ReplayPlace) -> None:
        of_pool = self._open[self._pool[place.members[0]]]
        of_pool.setdefault(place.members, {})[id(place)] = place

    def start(self, jobs: Sequence[_ReplayedJob], gpus: int, replayed: _Replay) -> None:
        for run in sorted(jobs, key=lambda each: (-self._mib[each.kind], each.job)):
            replayed.place(run, gpus, self._best(run.kind))

    def _best(self, kind: int) -> _ReplayPlace | None:
        """Return the place where a job adds least to the sum of slowdowns."""
        of_pool = self._open[self._pool[kind]]
        found, least = None, (np.inf, np.inf)
        for members, one in zip(of_pool, self._sets.joined(list(of_pool), kind), strict=True):
            if one is None:
                continue
            added = one.cost - sum(self._sets.slowdowns(members))
            key = round(added / _NEAR) * _NEAR, one.free_mib
            if key < least:
                found, least = members, key
        return None if found is None else next(iter(of_pool[found].values()))


class _Replay:
    """Jobs that have a cap, moment by moment. No other job shares, so those run as they did."""

    def __init__(self, work: Work, way: _Way, budget: Budget) -> None:
        self._work, self._way, self._budget = work, way, budget
        self._capped = way.shares[work.kind] > 0
        self._ends: list[tuple[float, int, int, _ReplayedJob]] = []
        self._place_of: dict[int, _ReplayPlace] = {}
        self._in_use = 0
        self._changes: list[tuple[float, int]] = []
        self._hours = self._weighted = self._held = 0.0
        self._now = float(work.begin_s.min())
        self._shared: dict[Members, float] = defaultdict(float)

    def run(self) -> Replayed:
        for at, jobs in self._starts():
            self._budget.check()
            self._finish_until(at)
            self._move_to(at)
            self._start([self._fresh(job, at) for job in jobs])
        self._finish_until(np.inf)
        return self._with_others()

    def _starts(self) -> Iterator[tuple[float, list[int]]]:
        """Yield the moments at which jobs with a cap start, and these jobs."""
        capped = np.flatnonzero(self._capped)
        order = capped[np.argsort(self._work.begin_s[capped], kind="stable")]
        begins = self._work.begin_s[order].tolist()
        for at, each in groupby(zip(begins, order.tolist(), strict=True), itemgetter(0)):
            yield at, [job for _, job in each]

    def _with_others(self) -> Replayed:
        """Return what the replay came to, with the jobs that have no cap and run as they did."""
        others = np.flatnonzero(~self._capped)
        gpus = self._work.gpus[self._work.kind[others]]
        begin_s, end_s = self._work.begin_s[others], self._work.end_s[others]
        held = float(gpus @ (end_s - begin_s))
        total = self._held + held
        mean = (self._weighted + held) / total if total else 1.0
        times = np.concatenate([[at for at, _ in self._changes], begin_s, end_s])
        changes = np.concatenate([[by for _, by in self._changes], gpus, -gpus])
        hours, most = self._hours + held / _HOUR_S, _most_at_once(times, changes)
        return Replayed(hours, most, dict(self._shared), mean, self._way.shares)

    def _fresh(self, job: int, at: float) -> _ReplayedJob:
        kind = int(self._work.kind[job])
        seconds = float(self._work.end_s[job] - self._work.begin_s[job])
        return _ReplayedJob(job, kind, seconds, at, begun_s=at)

    def _move_to(self, at: float) -> None:
        self._hours += self._in_use * (at - self._now) / _HOUR_S
        self._now = at

    def _start(self, runs: Sequence[_ReplayedJob]) -> None:
        by_gpus = defaultdict(list)
        for run in runs:
            by_gpus[int(self._work.gpus[run.kind])].append(run)
        for gpus, fresh in by_gpus.items():
            self._way.start(fresh, gpus, self)

    def place(
        self, run: _ReplayedJob, gpus: int, place: _ReplayPlace | None = None
    ) -> _ReplayPlace:
        """Let a job start beside others, or on idle GPUs, and return its place."""
        if place is None:
            place = _ReplayPlace(gpus)
            self._use(gpus)
        self._place_of[run.job] = place
        self._change(place, [*place.jobs, run])
        return place

    def _change(self, place: _ReplayPlace, jobs: list[_ReplayedJob]) -> None:
        """Let other jobs hold a place from now on."""
        if place.jobs:
            self._way.before(place)
        if len(place.jobs) > 1:
            together = place.gpus * (self._now - place.since_s) / _HOUR_S
            self._shared[place.members] += together
        place.jobs = sorted(jobs, key=lambda run: (run.kind, run.job))
        place.members = tuple(run.kind for run in place.jobs)
        place.since_s = self._now
        if not jobs:
            self._use(-place.gpus)
            return
        self._way.after(place)
        for run, slowdown in zip(place.jobs, self._way.slowdowns(place.members), strict=True):
            self._pace(run, slowdown)

    def _use(self, gpus: int) -> None:
        self._in_use += gpus
        self._changes.append((self._now, gpus))

    def _pace(self, run: _ReplayedJob, slowdown: float) -> None:
        """Let a job go on at another pace from now on."""
        run.left_s -= (self._now - run.since_s) / run.slowdown
        run.since_s, run.slowdown = self._now, slowdown
        run.version += 1
        end = self._now + max(run.left_s, 0.0) * run.slowdown
        heapq.heappush(self._ends, (end, run.job, run.version, run))

    def _finish_until(self, at: float) -> None:
        while self._ends and self._ends[0][0] <= at:
            end, _, version, run = heapq.heappop(self._ends)
            if version == run.version:
                self._move_to(end)
                self._finish(run)

    def _finish(self, run: _ReplayedJob) -> None:
        gpus = int(self._work.gpus[run.kind])
        alone_s = float(self._work.end_s[run.job] - self._work.begin_s[run.job])
        self._weighted += gpus * (self._now - run.begun_s)
        self._held += gpus * alone_s
        run.version += 1
        place = self._place_of.pop(run.job)
        self._change(place, [other for other in place.jobs if other is not run])


def _most_at_once(times_s: Floats, changes: Floats) -> int:
    """Return the most GPUs in use: what ends at a moment does so before what begins."""
    return int(np.cumsum(changes[np.lexsort((changes, times_s))]).max())
