"""Gavel: heterogeneity-aware time shares by linear programs, carried out in rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, hstack, vstack

from dovetail.formulations.arrays import Floats
from dovetail.formulations.rules import room_mib
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.papers.policies.rearrange import (
    Group,
    Rounds,
    alone_on,
    around_services,
    gpus_by_model,
)
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.services import movable, services_alone
from dovetail.solver.policies.state import Job, Sharer, State

_OBJECTIVES: Final = ("max-min", "makespan", "throughput", "finish-time", "fifo")
_OF_SINGLE_JOBS: Final = ("finish-time", "fifo")
_OF_PROGRESS: Final = ("makespan", "finish-time")
_DOUBLINGS: Final = 40
_BISECTIONS: Final = 10
_PARTNERS: Final = 16
_TIE: Final = 1e-3
_LEAST_SHARE: Final = 1e-6


class ProgramKind(NamedTuple):
    """The key of jobs that are interchangeable in the program.

    ``limit`` is ``Job.tail_limit``; ``number`` is the job's own under objectives for which no two
    jobs are interchangeable.
    """

    workload: int
    workers: int
    weight: float
    limit: float = math.inf
    number: int = -1


class JobsOnModel(NamedTuple):
    """One job, or two that share all their GPUs, on a GPU model, with their speeds there."""

    model: int
    kinds: tuple[ProgramKind, ...]
    speeds: tuple[float, ...]


@dataclass
class Gavel:
    """Time shares of jobs and pairs on each GPU model by a linear program, then rounds.

    Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning
    Workloads" (OSDI 2020): section 3 and 4 for the programs, 3.1 for space sharing, 5 for the
    rounds. With the time share X of each combination k of jobs on each GPU model j and the
    throughput T, each job m runs at T(m, X) = sum of T[m, k, j] X[k, j], where the shares of a job
    sum to at most 1 and no model has more GPUs than exist. The objectives:

    - ``max-min`` (least attained service): maximise the smallest T(m, X) workers / (weight T(m,
      equal)), relative to equal shares of all models;
    - ``makespan``: minimise the largest remaining work / T(m, X);
    - ``throughput``: maximise the sum of T(m, X) workers / T(m, equal);
    - ``finish-time`` (fairness after Themis): minimise the largest ratio of the time from a job's
      arrival to its end, if X stayed the same, to the time that it would take alone on 1/n of
      every GPU model, for n present jobs. It is solved by bisection over the ratio, one program
      per step;
    - ``fifo``: maximise the sum of T(m, X) / T(m, fastest) times the number of jobs that arrived
      with m or later.

    All but ``throughput`` and ``fifo`` may have several optima; one with high throughput is chosen
    (throughput has a weight of 1/1000). Each round goes to the combinations with the largest ratio
    of owed share to received rounds. Remaining GPUs then go to waiting jobs alone, those that held
    GPUs for the shortest time first. Latency-critical jobs get their GPUs before, keep running,
    and are joined according to the owed pairs. Jobs start and stop only at the ends of rounds: a
    job that arrives waits for the next round. While every job runs alone on GPUs of one model, the
    next round begins with the next event.

    To be fast with thousands of jobs, under the first three objectives jobs with the same
    workload, workers, weight and limit on their tail latency are one kind with one share, which
    its jobs use in turn, the least served first. For ``max-min`` and ``throughput`` the optimum is
    the same, since such jobs are interchangeable and the programs are convex; for ``makespan`` it
    is a relaxation in which the work of a kind is pooled, and the job with the most remaining work
    comes first. Under the other two every job is its own kind. Shortest job first, cost and
    hierarchies are left out.

    Pairs must have equally many workers (the paper's rule), fit in memory, have a predicted
    slowdown and no observed failure, and be faster together than one after the other; each kind
    proposes its 16 best pairs on each model.

    Attributes
    ----------
    objective : str
        ``max-min``, ``makespan``, ``throughput``, ``finish-time`` or ``fifo``.
    space_sharing : bool
        Whether pairs are in the program.
    round_s : float
        The length of a round in seconds; six minutes in the paper.

    Raises
    ------
    ValueError
        When an option is out of range.
    """

    objective: str = "max-min"
    space_sharing: bool = True
    round_s: float = 360.0
    _rounds: Rounds = field(init=False, repr=False)
    _owed: dict[JobsOnModel, float] = field(default_factory=dict, init=False, repr=False)
    _received: dict[JobsOnModel, int] = field(default_factory=dict, init=False, repr=False)
    _solved_for: object = field(default=None, init=False, repr=False)
    _last: Mapping[JobsOnModel, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.objective not in _OBJECTIVES:
            raise ValueError(f"objective must be one of {_OBJECTIVES}, got {self.objective!r}")
        self._rounds = Rounds(self.round_s)

    def decide(self, state: State) -> Decision:
        """Start a new round if the last one is over."""
        return self._rounds.decide(state, self._groups)

    def _groups(self, state: State) -> list[Group]:
        jobs = [*services_alone(state), *movable(state), *state.pending.values()]
        kinds = self._by_kind(state, sorted(jobs, key=lambda job: job.number))
        self._owe(self._shares_again(state, kinds))
        return self._round(state, kinds)

    def _by_kind(self, state: State, jobs: Sequence[Job]) -> dict[ProgramKind, list[Job]]:
        """Return the jobs of each kind in reverse order of their turns."""
        kinds: dict[ProgramKind, list[Job]] = defaultdict(list)
        for job in jobs:
            kinds[self._kind(job)].append(job)
        for same in kinds.values():
            same.sort(key=lambda job: self._turn(state, job), reverse=True)
        return kinds

    def _turn(self, state: State, job: Job) -> tuple[float, int]:
        if self.objective == "makespan":
            return -job.remaining(state.now), job.number
        return job.held(state.now), job.number

    def _shares_again(
        self, state: State, kinds: Mapping[ProgramKind, Sequence[Job]]
    ) -> Mapping[JobsOnModel, float]:
        """Return the shares, reusing those of the last round if the program is the same."""
        if self.objective in _OF_PROGRESS:
            return self._shares(state, kinds)
        counts = sorted((kind, len(same)) for kind, same in kinds.items())
        believed = (len(state.clashes), state.news, id(state.predicted))
        facts = (counts, _gpus(state), believed)
        if self._solved_for != facts:
            self._solved_for, self._last = facts, self._shares(state, kinds)
        return self._last

    def _shares(
        self, state: State, kinds: Mapping[ProgramKind, Sequence[Job]]
    ) -> dict[JobsOnModel, float]:
        """Return how many of each combination should run at the same time, on average."""
        found = combinations(state, kinds, self.space_sharing)
        if not found:
            return {}
        gpus = _gpus(state)
        equal = {kind: _equal_speed(state, kind, gpus) for kind in kinds}
        worth = self._worth(state, equal)
        value = np.array(
            [math.fsum(v * worth[k] for k, v in zip(c.kinds, c.speeds, strict=True)) for c in found]
        )
        count = {kind: len(same) for kind, same in kinds.items()}
        if self.objective == "finish-time":
            jobs = [job for (job,) in kinds.values()]
            shares = _fairest(state, found, jobs, equal, value)
        else:
            need = [self._need(state, kind, same, equal[kind]) for kind, same in kinds.items()]
            shares = _solved(found, count, gpus, need, value)
        return {c: share for c, share in zip(found, shares, strict=True) if share > _LEAST_SHARE}

    def _worth(self, state: State, equal: Mapping[ProgramKind, float]) -> dict[ProgramKind, float]:
        """Return the value of progress at rate 1 for each kind."""
        if self.objective != "fifo":
            return {kind: kind.workers / speed for kind, speed in equal.items()}
        fastest = [max(speeds) for speeds in zip(*state.speed, strict=True)]
        behind = range(len(equal), 0, -1)
        return {
            kind: later / fastest[kind.workload] for kind, later in zip(equal, behind, strict=True)
        }

    def _need(self, state: State, kind: ProgramKind, same: Sequence[Job], equal: float) -> float:
        """Return the reference for the progress of a kind."""
        if self.objective == "makespan":
            return math.fsum(job.remaining(state.now) for job in same)
        if self.objective in ("throughput", "fifo"):
            return 0.0
        return len(same) * kind.weight * equal / kind.workers

    def _owe(self, shares: Mapping[JobsOnModel, float]) -> None:
        """Add a round to the owed shares of combinations; drop combinations without a share."""
        self._owed = {c: self._owed.get(c, 0.0) + share for c, share in shares.items()}
        self._received = {c: self._received.get(c, 0) for c in shares}

    def _round(self, state: State, kinds: dict[ProgramKind, list[Job]]) -> list[Group]:
        left = gpus_by_model(state)
        groups = self._of_services(state, kinds, left)
        services = range(len(groups))
        heap = [self._entry(place, c) for place, c in enumerate(self._owed)]
        heapify(heap)
        while heap:
            _, place, c = heappop(heap)
            joined = self._join_service(c, kinds, groups, services)
            if not (joined or _start(c, kinds, groups, left)):
                continue
            self._received[c] += 1
            heappush(heap, self._entry(place, c))
        waiting = [job for same in kinds.values() for job in same]
        waiting.sort(key=lambda job: (job.held(state.now), job.number))
        return groups + alone_on(state, waiting, left)

    def _of_services(
        self, state: State, kinds: Mapping[ProgramKind, list[Job]], left: list[int]
    ) -> list[Group]:
        """Return latency-critical jobs that run or fit as groups, removed from ``kinds``."""
        waiting = [job for same in kinds.values() for job in same if job.latency and not job.gpus]
        waiting.sort(key=lambda job: job.number)
        groups = around_services(state) + alone_on(state, waiting, left)
        for group in groups:
            kinds[self._kind(group.jobs[0])].remove(group.jobs[0])
        return groups

    def _join_service(
        self,
        c: JobsOnModel,
        kinds: Mapping[ProgramKind, list[Job]],
        groups: list[Group],
        services: Sequence[int],
    ) -> bool:
        """Add a job to a lone service according to a combination; return whether one was added.

        ``services`` are the positions of latency-critical jobs in ``groups``.
        """
        if len(c.kinds) < 2:
            return False
        for k in services:
            first, *others = groups[k].jobs
            if others or groups[k].model != c.model:
                continue
            for own, other in (c.kinds, c.kinds[::-1]):
                if self._kind(first) == own and kinds[other]:
                    groups[k] = Group((first, kinds[other].pop()), c.model)
                    return True
        return False

    def _kind(self, job: Job) -> ProgramKind:
        number = job.number if self.objective in _OF_SINGLE_JOBS else -1
        return ProgramKind(job.workload, job.workers, job.weight, job.tail_limit, number)

    def _entry(self, place: int, c: JobsOnModel) -> tuple[float, int, JobsOnModel]:
        return -self._owed[c] / (self._received[c] + 1), place, c


def _start(
    c: JobsOnModel, kinds: Mapping[ProgramKind, list[Job]], groups: list[Group], left: list[int]
) -> bool:
    """Start a combination on its own GPUs; return whether its jobs and GPUs are available."""
    enough = all(len(kinds[kind]) >= c.kinds.count(kind) for kind in c.kinds)
    if not enough or left[c.model] < c.kinds[0].workers:
        return False
    groups.append(Group(tuple(kinds[kind].pop() for kind in c.kinds), c.model))
    left[c.model] -= c.kinds[0].workers
    return True


def _gpus(state: State) -> list[int]:
    """Return the number of GPUs of each model that the program assigns."""
    count = gpus_by_model(state)
    for group in around_services(state):
        count[group.model] += group.jobs[0].workers
    return count


def combinations(
    state: State, kinds: Mapping[ProgramKind, Sequence[Job]], pairs: bool
) -> list[JobsOnModel]:
    """Return the jobs alone and the pairs that may run on each GPU model."""
    found = []
    pairs = pairs and state.machines.fewest_jobs > 1
    for model, speed in enumerate(state.speed):
        fitting = [
            kind
            for kind in kinds
            if state.machines.some_hold(model, state.modes[kind.workload][:1])
        ]
        found += [JobsOnModel(model, (kind,), (speed[kind.workload],)) for kind in fitting]
        if pairs:
            found += _pairs(state, fitting, {k: len(kinds[k]) for k in fitting}, model)
    return found


def _pairs(
    state: State,
    kinds: Sequence[ProgramKind],
    count: Mapping[ProgramKind, int],
    model: int,
) -> list[JobsOnModel]:
    rows = state.predicted.rows[model][state.predicted.caps_place[UNCAPPED]]
    speed, offered = state.speed[model], state.machines.memory_by_model[model][0]
    needs = [state.modes[kind.workload][0].need_mib(offered) for kind in kinds]
    offers: dict[ProgramKind, list[tuple[float, JobsOnModel]]] = defaultdict(list)
    for k, a in enumerate(kinds):
        for b, need in zip(kinds[k:], needs[k:], strict=True):
            if a.workers != b.workers or (a == b and count[a] < 2):
                continue
            if needs[k] + need > room_mib(offered):
                continue
            if (model, a.workload, b.workload) in state.clashes:
                continue
            if not state.tails_kept(model, [Sharer(k.workload, k.limit) for k in (a, b)]):
                continue
            mine, theirs = rows[a.workload][b.workload], rows[b.workload][a.workload]
            together = 1 / mine + 1 / theirs
            if together > 1:
                speeds = speed[a.workload] / mine, speed[b.workload] / theirs
                pair = (-together, JobsOnModel(model, (a, b), speeds))
                offers[a].append(pair)
                offers[b].append(pair)
    best = (sorted(offered)[:_PARTNERS] for offered in offers.values())
    return list(dict.fromkeys(pair for chosen in best for _, pair in chosen))


def _fairest(
    state: State,
    found: Sequence[JobsOnModel],
    jobs: Sequence[Job],
    equal: Mapping[ProgramKind, float],
    value: Floats,
) -> Floats:
    """Return shares that minimise the largest finish-time ratio, by bisection; a kind is one job.

    A ratio is feasible if each job progresses at its remaining work over the time that the ratio
    leaves.
    """
    gpus = _gpus(state)
    count = dict.fromkeys(equal, 1)
    part = [min(1.0, max(1, sum(gpus)) / (len(jobs) * kind.workers)) for kind in equal]
    isolated_s = np.array([job.work_s for job in jobs]) / (np.array([*equal.values()]) * part)
    elapsed_s = np.array([state.now - job.arrival_s for job in jobs])
    left_s = np.array([job.remaining(state.now) for job in jobs])

    def held(ratio: float) -> tuple[bool, Floats]:
        need = left_s / (ratio * isolated_s - elapsed_s)
        shares = _solved(found, count, gpus, need.tolist(), value)
        return bool((_progress(found, equal, shares) >= need * (1 - 1e-6)).all()), shares

    low, step = float((elapsed_s / isolated_s).max()), 1.0
    kept, shares = held(low + step)
    for _ in range(_DOUBLINGS):
        if kept:
            break
        step *= 2
        kept, shares = held(low + step)
    for _ in range(_BISECTIONS):
        step /= 2
        kept, closer = held(low + step)
        if kept:
            shares = closer
        else:
            low += step
    return shares


def _progress(found: Sequence[JobsOnModel], kinds: Iterable[ProgramKind], shares: Floats) -> Floats:
    """Return the throughput T(m, X) of each kind."""
    total = dict.fromkeys(kinds, 0.0)
    for c, share in zip(found, shares.tolist(), strict=True):
        for kind, speed in zip(c.kinds, c.speeds, strict=True):
            total[kind] += speed * share
    return np.array([*total.values()])


def _solved(
    found: Sequence[JobsOnModel],
    count: Mapping[ProgramKind, int],
    gpus: Sequence[int],
    need: Sequence[float],
    value: Floats,
) -> Floats:
    """Solve the program: the share of each combination.

    Variables: the shares, and the smallest progress. Rows: the time of each kind, the GPUs of each
    model, and the progress of each kind, at least its need times the smallest. If no kind has a
    need, the program maximises the value of the shares only.
    """
    place = {kind: k for k, kind in enumerate(count)}
    member = [(place[kind], k) for k, c in enumerate(found) for kind in c.kinds]
    speed = [v for c in found for v in c.speeds]
    rows, columns = np.array(member).T
    shape = (len(place), len(found))
    time = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    pace = csr_array((speed, (rows, columns)), shape=shape)
    models = [c.model for c in found]
    taken = csr_array(
        ([float(c.kinds[0].workers) for c in found], (models, range(len(found)))),
        shape=(len(gpus), len(found)),
    )
    limits = vstack([time, taken])
    bound = np.array([*count.values(), *gpus], dtype=np.float64)
    if not any(need):
        return _most(value, limits, bound)
    needs = csr_array(np.array(need)[:, None] / max(need))
    matrix = vstack([hstack([limits, csr_array((len(bound), 1))]), hstack([-pace, needs])])
    gain = np.append(_TIE * value / max(1, sum(gpus)), float(len(need)))
    return _most(gain, matrix, np.append(bound, np.zeros(len(need))))[:-1]


def _most(gain: Floats, matrix: csr_array, bound: Floats) -> Floats:
    """Maximise gain x over x >= 0 with matrix x <= bound; HiGHS, without integer variables."""
    found = milp(-gain, constraints=LinearConstraint(matrix, ub=bound))
    return np.asarray(found.x, dtype=np.float64)


def _equal_speed(state: State, kind: ProgramKind, gpus: Sequence[int]) -> float:
    """Return a job's speed if it has the same share of every GPU."""
    speeds = [state.speed[model][kind.workload] for model in range(len(gpus))]
    return float(np.average(speeds, weights=gpus)) if sum(gpus) else 1.0
