"""The jobs of the records once more, sharing GPUs.

Each job starts when it did, and as soon as it starts it is decided where, without knowing how long
it will run: beside a running job that has a GPU to itself, if the two may share at halves, else on
idle GPUs. Jobs that start at the same moment are matched so that they need the fewest GPUs. A cap
lasts from the start of a job to its end, and a co-runner only joins a job that has one. A job
starts at half of the SMs if it may share with any other and if half of the SMs alone slows it by at
most a quarter. As that costs time if nobody joins, a stricter rule may save more: the best way
counts.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.matched import fewest_gpus
from dovetail.advising.sharing import KindPairs, has_partner
from dovetail.advising.work import Bools, Floats, Work
from dovetail.formulations.budget import Budget

RULES: Final = (1.0, 1.1, 1.25)
"""The largest slowdowns that are tried for a job that has a cap and no co-runner."""

_HOUR_S: Final = 3_600.0


@dataclass(frozen=True)
class Replayed:
    """What sharing would have come to.

    Attributes
    ----------
    gpu_hours : float
        GPU hours in use.
    most_gpus : int
        The most GPUs in use at once.
    shared_hours : mapping of (int, int) to float
        The GPU hours that two kinds shared, the lower kind first: as many were saved, less what
        the slowdowns cost.
    mean_slowdown : float
        Of all jobs, weighted by their GPU hours.
    """

    gpu_hours: float
    most_gpus: int
    shared_hours: dict[tuple[int, int], float]
    mean_slowdown: float


def replay(
    work: Work, case: int, tables: Sequence[KindPairs], limit: float, budget: Budget
) -> Replayed:
    """Replay the jobs in a case, in the way that saves most.

    Ways are the rules, and pairs that may share in the case or in a more cautious one: jobs that
    join more often are not always the better for it.

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
    budget : Budget
        The time for it.

    Raises
    ------
    OutOfTimeError
        When the budget is spent.
    """
    alone, beside = tables[case].at_half, tables[case].slowdown
    found = [
        _Replay(work, allowed, capped, beside, alone, budget).run()
        for allowed, capped in _ways(work, case, tables, limit)
    ]
    return min(found, key=lambda each: each.gpu_hours)


def _ways(
    work: Work, case: int, tables: Sequence[KindPairs], limit: float
) -> Iterator[tuple[Bools, Bools]]:
    """Yield which kinds may share and which have a cap from their start, each choice once."""
    yield np.zeros_like(tables[case].allowed), np.zeros(len(work.gpus), np.bool_)
    seen = set()
    for table in tables[: case + 1]:
        allowed = table.allowed & tables[case].allowed
        able = has_partner(work, allowed)
        for rule in RULES:
            with np.errstate(invalid="ignore"):
                capped = able & (table.at_half <= min(rule, limit))
            key = capped.tobytes(), allowed[np.ix_(capped, capped)].tobytes()
            if capped.any() and key not in seen:
                seen.add(key)
                yield allowed, capped


@dataclass(slots=True, eq=False)
class _ReplayedJob:
    """A running job with a cap: kind, work left in seconds alone, pace, and co-runner."""

    job: int
    kind: int
    left_s: float
    since_s: float
    slowdown: float = 1.0
    partner: _ReplayedJob | None = None
    version: int = 0
    begun_s: float = field(default=0.0)


class _Replay:
    """Jobs that have a cap, moment by moment. No other job shares, so those run as they did."""

    def __init__(
        self,
        work: Work,
        allowed: Bools,
        capped: Bools,
        beside: NDArray[np.float32],
        alone: Floats,
        budget: Budget,
    ) -> None:
        self._work, self._budget = work, budget
        self._allowed, self._capped, self._beside = allowed, capped, beside
        self._alone = np.where(self._capped, alone, 1.0)
        self._both = np.where(allowed, beside + beside.T, np.inf)
        self._ends: list[tuple[float, int, int, _ReplayedJob]] = []
        self._single: dict[int, dict[int, _ReplayedJob]] = defaultdict(dict)
        self._in_use = 0
        self._changes: list[tuple[float, int]] = []
        self._hours = self._weighted = self._held = 0.0
        self._now = float(work.begin_s.min())
        self._shared: dict[tuple[int, int], float] = defaultdict(float)

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
        capped = np.flatnonzero(self._capped[self._work.kind])
        order = capped[np.argsort(self._work.begin_s[capped], kind="stable")]
        begins = self._work.begin_s[order].tolist()
        for at, each in groupby(zip(begins, order.tolist(), strict=True), itemgetter(0)):
            yield at, [job for _, job in each]

    def _with_others(self) -> Replayed:
        """Return what the replay came to, with the jobs that have no cap and run as they did."""
        others = np.flatnonzero(~self._capped[self._work.kind])
        gpus = self._work.gpus[self._work.kind[others]]
        begin_s, end_s = self._work.begin_s[others], self._work.end_s[others]
        held = float(gpus @ (end_s - begin_s))
        total = self._held + held
        mean = (self._weighted + held) / total if total else 1.0
        times = np.concatenate([[at for at, _ in self._changes], begin_s, end_s])
        changes = np.concatenate([[by for _, by in self._changes], gpus, -gpus])
        return Replayed(
            self._hours + held / _HOUR_S, _most_at_once(times, changes), dict(self._shared), mean
        )

    def _fresh(self, job: int, at: float) -> _ReplayedJob:
        kind = int(self._work.kind[job])
        seconds = float(self._work.end_s[job] - self._work.begin_s[job])
        return _ReplayedJob(job, kind, seconds, at, begun_s=at)

    def _move_to(self, at: float) -> None:
        self._hours += self._in_use * (at - self._now) / _HOUR_S
        self._now = at

    def _start(self, runs: Sequence[_ReplayedJob]) -> None:
        """Start jobs at this moment: matched with each other and with running ones, or alone."""
        by_gpus = defaultdict(list)
        for run in runs:
            by_gpus[int(self._work.gpus[run.kind])].append(run)
        for gpus, fresh in by_gpus.items():
            single = self._single[gpus]
            for run, other in self._matched(fresh, [*single.values()]):
                if other is None:
                    self._use(gpus)
                    single[run.job] = run
                    self._pace(run, self._alone[run.kind])
                else:
                    self._join(gpus, run, other, other.job in single)

    def _matched(
        self, fresh: list[_ReplayedJob], single: list[_ReplayedJob]
    ) -> Iterator[tuple[_ReplayedJob, _ReplayedJob | None]]:
        """Yield each new job, or one of two, with its co-runner."""
        if len(fresh) == 1:
            yield fresh[0], self._best(fresh[0], single)
            return
        runs = [*fresh, *single]
        kinds = np.array([run.kind for run in runs], np.int64)
        new = np.arange(len(runs)) < len(fresh)
        mate = fewest_gpus(kinds, self._allowed, self._beside, self._budget, new).mate
        for k, run in enumerate(fresh):
            other = int(mate[k])
            if other >= k:
                yield run, runs[other] if other > k else None

    def _best(self, run: _ReplayedJob, single: list[_ReplayedJob]) -> _ReplayedJob | None:
        """Return the running job beside which both are slowed least."""
        if not single:
            return None
        both = self._both[run.kind, [other.kind for other in single]]
        best = int(both.argmin())
        return single[best] if both[best] < np.inf else None

    def _join(self, gpus: int, run: _ReplayedJob, other: _ReplayedJob, running: bool) -> None:
        if running:
            del self._single[gpus][other.job]
        else:
            self._use(gpus)
        run.partner, other.partner = other, run
        self._pace(run, self._beside[run.kind, other.kind])
        self._pace(other, self._beside[other.kind, run.kind])

    def _use(self, gpus: int) -> None:
        self._in_use += gpus
        self._changes.append((self._now, gpus))

    def _pace(self, run: _ReplayedJob, slowdown: float) -> None:
        """Let a job go on at another pace from now on."""
        run.left_s -= (self._now - run.since_s) / run.slowdown
        run.since_s, run.slowdown = self._now, float(slowdown)
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
        other = run.partner
        if other is None:
            del self._single[gpus][run.job]
            self._use(-gpus)
            return
        pair = (min(run.kind, other.kind), max(run.kind, other.kind))
        together = self._now - max(run.begun_s, other.begun_s)
        self._shared[pair] += gpus * together / _HOUR_S
        run.partner = other.partner = None
        self._single[gpus][other.job] = other
        self._pace(other, self._alone[other.kind])


def _most_at_once(times_s: Floats, changes: Floats) -> int:
    """Return the most GPUs in use: what ends at a moment does so before what begins."""
    return int(np.cumsum(changes[np.lexsort((changes, times_s))]).max())
