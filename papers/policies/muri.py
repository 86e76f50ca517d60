"""Muri: groups of jobs with stages that use different resources at different times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Final, NamedTuple

import numpy as np

from dovetail.formulations.rules import iteration_time
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.papers.policies.rearrange import (
    Group,
    Rounds,
    alone_on,
    around_services,
    gpus_by_model,
)
from dovetail.solver.pairing.matching import match_pairs
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.services import movable
from dovetail.solver.policies.state import Job, Sharer, State

RESOURCES: Final = 4
"""Storage, CPU, GPU and network; also the largest number of jobs in a group."""

_REMEMBERED: Final = 64
_PRIORITIES: Final = ("srsf", "2d-las")

Jobs = tuple[Job, ...]


class GroupingKind(NamedTuple):
    """The key of jobs that are interchangeable for grouping.

    Attributes
    ----------
    workload : int
        Index into ``State.workloads``.
    limit : float
        ``Job.tail_limit``.
    model : int
        The GPU model of a running latency-critical job, which stays there; -1 for others.
    """

    workload: int
    limit: float
    model: int = -1


class Stages(NamedTuple):
    """One iteration of a workload alone.

    Attributes
    ----------
    iteration_s : float
        The duration.
    busy_s : tuple of 4 float
        How long it holds storage, CPU, GPU and network, in this order.
    """

    iteration_s: float
    busy_s: tuple[float, ...]


@dataclass
class Muri:
    """Interleave the jobs of highest priority, with as many per GPU as needed to fit them.

    Source: Zhao et al., "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM 2022):
    section 4.1 for the efficiency of a group, 4.2 for the rounds of matching, Algorithm 1; and the
    simulator of its artifact. The candidates are the jobs of highest priority that would fit if
    every GPU held the most jobs. While they ask for more GPUs than exist, jobs and groups with
    equally many workers are paired by a matching of the largest total efficiency, and the pairs
    with the smallest loss, (1 - efficiency) workers, are merged. Groups get GPUs in the order of
    their best member. The iteration time of a group whose members use the four resources in turn
    is the minimum, over their orders, of the sum of the longest stage of each step; its efficiency
    is the used fraction of the resources' time.

    The stages of a workload come from:

    - the iteration: Castor's eq. 3 if it has a batch, else 1 s;
    - storage: 0, since no field gives it; CPU: ``cpu_util`` times the iteration;
    - GPU: ``gpu_util``, else ``sm_active``, times the iteration, else ``step_s`` of the batch;
    - network: ``comm_s`` of the batch.

    If a workload of a group has neither a GPU metric nor a batch, the predicted slowdowns are used
    instead, multiplied if more than two share; each member is then busy for its whole iteration.
    An iteration of a group takes at least as long as the longest of its members. As in the
    artifact, jobs that together make less progress than one of them alone are no group, nor are
    jobs without predicted slowdowns, with an observed failure together, or that do not fit in
    memory. A running latency-critical job that is alone stays on its GPUs, as the first of a group
    that others may be merged with. Remaining GPUs go to single jobs by priority. Jobs start and
    stop only at the ends of rounds; while every job runs alone on GPUs of one model, the next
    round begins with the next event.

    The compiled matching takes a few milliseconds for hundreds of jobs.

    Attributes
    ----------
    priority : str
        ``srsf``: least remaining seconds times workers first (Muri-S); ``2d-las``: least attained
        service first, for unknown durations (Muri-L).
    round_s : float
        The length of a round in seconds; six minutes in the paper.

    Raises
    ------
    ValueError
        When an option is out of range.
    """

    priority: str = "srsf"
    round_s: float = 360.0
    _rounds: Rounds = field(init=False, repr=False)
    _efficiency: _Efficiency | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.priority not in _PRIORITIES:
            raise ValueError(f"priority must be one of {_PRIORITIES}, got {self.priority!r}")
        self._rounds = Rounds(self.round_s)

    def decide(self, state: State) -> Decision:
        """Start a new round if the last one is over."""
        return self._rounds.decide(state, self._groups)

    def _groups(self, state: State) -> list[Group]:
        jobs = [*movable(state), *state.pending.values()]
        queue = sorted(jobs, key=lambda job: (not job.latency, self._rank(state, job), job.number))
        if self._efficiency is None or self._efficiency.is_outdated(state):
            self._efficiency = _Efficiency(state)
        return _round(state, queue, self._efficiency)

    def _rank(self, state: State, job: Job) -> float:
        if self.priority == "srsf":
            return job.remaining(state.now) * job.workers
        return job.attained(state.now)


def stages(workload: Workload) -> Stages | None:
    """Return the stages of a workload, or None if its GPU use is unknown."""
    batch, metrics = workload.batch, workload.metrics
    whole = iteration_time(batch, batch.size) if batch else 1.0
    network = batch.comm_s if batch else 0.0
    use = None
    if metrics:
        use = metrics.sm_active if metrics.gpu_util is None else metrics.gpu_util
    if use is not None:
        gpu = use * whole
    elif batch:
        gpu = batch.step_s.fixed + batch.step_s.per_sample * batch.size
    else:
        return None
    cpu = ((metrics.cpu_util if metrics else None) or 0.0) * whole
    return Stages(whole, (0.0, cpu, gpu, network))


def interleaved_s(busy_s: Sequence[Sequence[float]]) -> float:
    """Return the iteration time of a group of at most four.

    Each member has one of four places. In step i the member at place p is at its stage i - p, and
    a step takes as long as its longest stage; the places minimise the total time of the four
    steps.
    """
    first, *others = busy_s
    steps = range(RESOURCES)

    def steps_s(places: Sequence[int]) -> float:
        placed = [(0, first), *zip(places, others, strict=True)]
        return math.fsum(max(stage[(i - p) % RESOURCES] for p, stage in placed) for i in steps)

    return min(map(steps_s, permutations(range(1, RESOURCES), len(others))))


def _round(state: State, queue: Sequence[Job], efficiency: _Efficiency) -> list[Group]:
    """Return the groups of a round, given the jobs in the order of priority."""
    gpus = gpus_by_model(state)
    most = min(RESOURCES, state.machines.fewest_jobs)
    services = [group.jobs[0] for group in around_services(state)]
    candidates = _candidates(queue, services, sum(gpus), most)
    held = sum(job.workers for job in services)
    groups = _merged(candidates, sum(gpus) + held, most, efficiency)
    place = {job.number: k for k, job in enumerate([*services, *queue])}
    placed = []
    for jobs in sorted(groups, key=lambda jobs: min(place[job.number] for job in jobs)):
        service = next((job for job in jobs if job.gpus and job.latency), None)
        if service is not None:
            placed.append(Group(jobs, state.machines.model[service.gpus[0]]))
            continue
        if len(jobs) == 1:
            placed += alone_on(state, jobs, gpus)
            continue
        models = [
            m for m in efficiency.models(efficiency.kinds(jobs)) if gpus[m] >= jobs[0].workers
        ]
        if models:
            model = max(models, key=lambda m: state.speed[m][jobs[0].workload])
            gpus[model] -= jobs[0].workers
            placed.append(Group(jobs, model))
    running = {job.number for group in placed for job in group.jobs}
    return placed + alone_on(state, [job for job in queue if job.number not in running], gpus)


def _candidates(
    queue: Sequence[Job], services: Sequence[Job], gpus: int, most: int
) -> dict[int, list[Jobs]]:
    """Return, by workers, the first jobs that would fit if every GPU held the most jobs.

    They include the running latency-critical jobs that others may join.
    """
    waiting: dict[int, list[Job]] = defaultdict(list)
    for job in queue:
        waiting[job.workers].append(job)
    taken: dict[int, int] = defaultdict(int)
    for job in services:
        taken[job.workers] += most - 1
    rank = {job.number: k for same in waiting.values() for k, job in enumerate(same)}
    for job in queue:
        workers = job.workers
        if rank[job.number] >= taken[workers] and workers <= gpus:
            gpus -= workers
            taken[workers] += most
    first: dict[int, list[Jobs]] = {
        w: [(job,) for job in same[: taken[w]]] for w, same in waiting.items()
    }
    for job in services:
        first.setdefault(job.workers, []).append((job,))
    return first


def _merged(
    groups: dict[int, list[Jobs]], gpus: int, most: int, efficiency: _Efficiency
) -> list[Jobs]:
    """Merge groups with equally many workers until all fit on the GPUs or none can be merged."""
    excess = sum(workers * len(same) for workers, same in groups.items()) - gpus
    while excess > 0:
        merges = [m for w, same in groups.items() for m in _matched(w, same, most, efficiency)]
        if not merges:
            break
        done: set[Jobs] = set()
        for _, workers, a, b in sorted(merges, key=lambda merge: merge[0]):
            if excess > 0:
                groups[workers].append(a + b)
                done |= {a, b}
                excess -= workers
        groups = {w: [jobs for jobs in same if jobs not in done] for w, same in groups.items()}
    return [jobs for same in groups.values() for jobs in same]


def _matched(
    workers: int, groups: Sequence[Jobs], most: int, efficiency: _Efficiency
) -> list[tuple[float, int, Jobs, Jobs]]:
    """Return the pairs of a most efficient matching, with the loss of each."""
    ordered = sorted(groups, key=efficiency.kinds)
    pairs = efficiency.matching(tuple(map(efficiency.kinds, ordered)), most)
    return [((1 - value) * workers, workers, ordered[a], ordered[b]) for a, b, value in pairs]


class _Efficiency:
    """The efficiency of groups by the kinds of their jobs, with a cache."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stages = [stages(workload) for workload in state.workloads]
        self._found: dict[tuple[GroupingKind, ...], Mapping[int, float]] = {}
        self._matchings: dict[
            tuple[tuple[GroupingKind, ...], ...], list[tuple[int, int, float]]
        ] = {}
        self._facts = (len(state.clashes), state.news, state.predicted)

    def is_outdated(self, state: State) -> bool:
        """Return whether failures, measurements or predictions have changed since it was made."""
        *counts, predicted = self._facts
        return counts != [len(state.clashes), state.news] or predicted is not state.predicted

    def kinds(self, jobs: Jobs) -> tuple[GroupingKind, ...]:
        """Return the kinds of the jobs of a group."""
        return tuple(sorted(map(self._kind, jobs)))

    def _kind(self, job: Job) -> GroupingKind:
        stays = job.latency and bool(job.gpus)
        model = self._state.machines.model[job.gpus[0]] if stays else -1
        return GroupingKind(job.workload, job.tail_limit, model)

    def matching(
        self, groups: tuple[tuple[GroupingKind, ...], ...], most: int
    ) -> list[tuple[int, int, float]]:
        """Return the pairs, with efficiency, of a matching of the largest total efficiency."""
        if groups not in self._matchings:
            if len(self._matchings) >= _REMEMBERED:
                self._matchings.clear()
            self._matchings[groups] = self._matched(groups, most)
        return self._matchings[groups]

    def _matched(
        self, groups: tuple[tuple[GroupingKind, ...], ...], most: int
    ) -> list[tuple[int, int, float]]:
        distinct = {kinds: k for k, kinds in enumerate(dict.fromkeys(groups))}
        table = np.full((len(distinct), len(distinct)), np.nan)
        for a, i in distinct.items():
            for b, j in distinct.items():
                if len(a) + len(b) <= most:
                    table[i, j] = self.of(tuple(sorted(a + b)))
        which = np.array([distinct[kinds] for kinds in groups], dtype=np.int64)
        value = table[np.ix_(which, which)]
        if len(groups) < 2 or np.isnan(value).all():
            return []
        mate = match_pairs(value, np.zeros(len(groups))).mate.tolist()
        return [(a, b, float(value[a, b])) for a, b in enumerate(mate) if a < b]

    def of(self, kinds: tuple[GroupingKind, ...]) -> float:
        """Return the efficiency on the best GPU model, or NaN if they are no group on any."""
        return max(self._by_model(kinds).values(), default=math.nan)

    def models(self, kinds: tuple[GroupingKind, ...]) -> list[int]:
        """Return the GPU models on which they are a group."""
        return list(self._by_model(kinds))

    def _by_model(self, kinds: tuple[GroupingKind, ...]) -> Mapping[int, float]:
        if kinds not in self._found:
            stays = [kind.model for kind in kinds if kind.model >= 0]
            every = range(len(self._state.machines.models))
            models = every if not stays else stays if len(stays) == 1 else []
            workloads = tuple(kind.workload for kind in kinds)
            values = {m: self._on(m, workloads) for m in models if self._may_share(m, kinds)}
            self._found[kinds] = {m: v for m, v in values.items() if v is not None}
        return self._found[kinds]

    def _may_share(self, model: int, kinds: tuple[GroupingKind, ...]) -> bool:
        state = self._state
        ways = [state.modes[kind.workload][0] for kind in kinds]
        return (
            state.machines.all_hold(model, ways)
            and all(
                (model, a, b) not in state.clashes and not math.isnan(self._slowdown(model, a, b))
                for (a, *_), (b, *_) in combinations(kinds, 2)
            )
            and state.tails_kept(model, [Sharer(kind.workload, kind.limit) for kind in kinds])
        )

    def _on(self, model: int, workloads: tuple[int, ...]) -> float | None:
        """Return the efficiency on a model, or None if sharing is slower than taking turns."""
        found = [self._stages[workload] for workload in workloads]
        if any(stage is None for stage in found):
            paces = self._predicted(model, workloads)
            busy = [1.0] * len(workloads)
        else:
            known = [stage for stage in found if stage is not None]
            longest = max(stage.iteration_s for stage in known)
            whole = max(longest, interleaved_s([stage.busy_s for stage in known]))
            paces = [stage.iteration_s / whole for stage in known]
            busy = [math.fsum(stage.busy_s) / stage.iteration_s for stage in known]
        if math.fsum(paces) < 1:
            return None
        return math.fsum(p * b for p, b in zip(paces, busy, strict=True)) / RESOURCES

    def _predicted(self, model: int, workloads: tuple[int, ...]) -> list[float]:
        return [
            1 / math.prod(self._slowdown(model, a, b) for j, b in enumerate(workloads) if j != i)
            for i, a in enumerate(workloads)
        ]

    def _slowdown(self, model: int, a: int, b: int) -> float:
        predicted = self._state.predicted
        return predicted.rows[model][predicted.caps_place[UNCAPPED]][a][b]
