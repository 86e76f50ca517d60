"""Shortest job first with partial GPU sharing: the frame of Castor and of its baseline.

Algorithm 1 of Castor (2025): the pending jobs in the order of their remaining time; idle GPUs if
there are enough for the job; else the GPUs of running jobs that a rule lets it join, the best
first, and idle GPUs for the workers that are left. A job that still lacks GPUs waits, and the
next is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.rules import room_mib
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, idle_gpus_of
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import Job, State

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Queue(NamedTuple):
    """The P pending jobs, shortest first.

    Attributes
    ----------
    jobs : list of Job
    workload, workers : (P,) int
    left_s : (P,) float
        Seconds of work that each needs still.
    limit : (P,) float
        ``Job.tail_limit``.
    """

    jobs: list[Job]
    workload: Ints
    workers: Ints
    left_s: Floats
    limit: Floats


class Host(NamedTuple):
    """A running job that has GPUs to itself, which another may join.

    Attributes
    ----------
    job : Job
    mode : int
        Index into ``State.modes`` of its workload.
    model : int
        Of its GPUs.
    gpus : list of int
        Those that it has to itself.
    free_mib : float
        The least memory that is free on one of these.
    """

    job: Job
    mode: int
    model: int
    gpus: list[int]
    free_mib: float


class Offers(NamedTuple):
    """What a rule answers for H hosts and P pending jobs.

    Attributes
    ----------
    score : (H, P) float
        The lower, the sooner the host's GPUs are taken; infinite = they may not share.
    mode : (H, P) int
        The mode in which the pending job would join.
    """

    score: Floats
    mode: Ints


Rule = Callable[[State, Queue, Sequence[Host]], Offers]


def share_shortest_first(state: State, rule: Rule) -> Decision:
    """Decide by Algorithm 1 of Castor, with ``rule`` for who joins whom.

    Where the algorithm is silent: hosts and idle GPUs of one start are of one GPU model, the one
    on which the job runs fastest; a gang whose hosts ask for different sub-batches takes the
    smallest of them, since it has one batch; where the cluster lets gangs share only as a whole,
    a job joins only one host of as many workers.
    """
    if not state.pending:
        return NOTHING
    return _Round(state, rule).decision()


class _Round:
    """One pass through the queue."""

    def __init__(self, state: State, rule: Rule) -> None:
        self._state = state
        self._rule = rule
        self._draft = Draft(state)
        self._queue = _queue(state)
        self._hosts: list[Host] = []
        self._scores: list[Floats] = []
        self._modes: list[Ints] = []
        self._room = np.zeros((len(state.machines.models), len(self._queue.jobs)))
        self._host([(job, job.gpus, job.mode) for job in state.running.values()])

    def decision(self) -> Decision:
        place = self._next(0)
        while place is not None:
            self._place(place)
            place = self._next(place + 1)
        return self._draft.decision()

    def _next(self, place: int) -> int | None:
        """Return the first job from a place on for which some model has GPUs enough."""
        idle = self._idle_by_model()
        enough = (self._room[:, place:] + idle[:, None]).max(axis=0, initial=0.0)
        found = np.flatnonzero(enough >= self._queue.workers[place:])
        return place + int(found[0]) if len(found) else None

    def _idle_by_model(self) -> Ints:
        machines, draft = self._state.machines, self._draft
        if len(machines.models) == 1:
            return np.array([draft.idle_total])
        idle = [
            gpu for n, count in enumerate(draft.idle_count) if count for gpu in draft.idle_on(n)
        ]
        models = np.array([machines.model[gpu] for gpu in idle], dtype=np.int64)
        return np.bincount(models, minlength=len(machines.models))

    def _place(self, place: int) -> None:
        job = self._queue.jobs[place]
        gpus = idle_gpus(self._draft, job)
        if gpus is not None:
            self._draft.start(job, gpus)
            self._host([(job, gpus, 0)])
            return
        speed = self._state.speed
        models = range(len(self._state.machines.models))
        for model in sorted(models, key=lambda m: -speed[m][job.workload]):
            if self._join(place, job, model):
                return

    def _join(self, place: int, job: Job, model: int) -> bool:
        """Start a job beside the best hosts of a model; False if it lacks GPUs."""
        taken: list[int] = []
        mode = 0
        for h in self._best(place, model):
            mode = max(mode, int(self._modes[h][place]))
            taken += self._hosts[h].gpus[: job.workers - len(taken)]
            if len(taken) == job.workers:
                break
        # The rule looked at each host at the sub-batch that this one asks for.
        if mode and not all(self._draft.has_room(gpu, job, mode) for gpu in taken):
            return False
        rest = idle_gpus_of(self._draft, job, job.workers - len(taken), model, mode)
        if rest is None:
            return False
        self._draft.start(job, [*taken, *rest], mode=mode)
        self._leave(set(taken))
        self._host([(job, rest, mode)])
        return True

    def _best(self, place: int, model: int) -> list[int]:
        scores = [
            (self._scores[h][place], h) for h, o in enumerate(self._hosts) if o.model == model
        ]
        return [h for score, h in sorted(scores) if score < np.inf]

    def _host(self, running: Sequence[tuple[Job, Sequence[int], int]]) -> None:
        """Let the pending jobs join jobs on GPUs, in modes, where these are by themselves."""
        if self._state.machines.rules.max_jobs_per_gpu < 2:
            return
        hosts = [host for held in running if (host := self._as_host(*held)) is not None]
        if not hosts:
            return
        offers = self._rule(self._state, self._queue, hosts)
        if self._state.machines.rules.gang_sharing == "whole":
            offers.score[~self._whole(hosts)] = np.inf
        self._hosts += hosts
        self._scores += list(offers.score)
        self._modes += list(offers.mode)
        for host, score in zip(hosts, offers.score, strict=True):
            self._room[host.model] += len(host.gpus) * (score < np.inf)

    def _as_host(self, job: Job, held: Sequence[int], mode: int) -> Host | None:
        """Return a job as a host on those of its GPUs that it has to itself, if there are any."""
        machines = self._state.machines
        gpus = [gpu for gpu in held if len(self._draft.residents(gpu)) == 1]
        if not gpus:
            return None
        need = self._state.modes[job.workload][mode].memory_mib
        free = min([machines.memory_mib[gpu] for gpu in gpus]) - need
        return Host(job, mode, machines.model[gpus[0]], gpus, room_mib(free))

    def _whole(self, hosts: Sequence[Host]) -> Bools:
        workers = np.array([h.job.workers if len(h.gpus) == h.job.workers else -1 for h in hosts])
        return np.asarray(workers[:, None] == self._queue.workers)

    def _leave(self, taken: set[int]) -> None:
        """Take GPUs that have a second job now from their hosts."""
        for h, host in enumerate(self._hosts):
            left = [gpu for gpu in host.gpus if gpu not in taken]
            lost = len(host.gpus) - len(left)
            if lost:
                self._room[host.model] -= lost * (self._scores[h] < np.inf)
                self._hosts[h] = host._replace(gpus=left)


def _queue(state: State) -> Queue:
    left = {number: job.remaining(state.now) for number, job in state.pending.items()}
    jobs = sorted(state.pending.values(), key=lambda job: (left[job.number], job.number))
    return Queue(
        jobs,
        np.array([job.workload for job in jobs]),
        np.array([job.workers for job in jobs]),
        np.array([left[job.number] for job in jobs]),
        np.array([job.tail_limit for job in jobs]),
    )


class Pairs(NamedTuple):
    """What is believed of H hosts and P pending jobs on the host's GPUs, all (H, P).

    Attributes
    ----------
    joining, hosting : float
        Slowdown of the pending job and of the host at full batch; NaN = they may not share.
    joining_left_s, hosting_left_s : float
        Seconds that each needs still alone on such a GPU.
    most_stretch : float
        The largest factor of a sub-batch at which the pending job keeps its gSLA if it is
        latency-critical; 0 where it would break the host's.
    """

    joining: Floats
    hosting: Floats
    joining_left_s: Floats
    hosting_left_s: Floats
    most_stretch: Floats

    @classmethod
    def of(cls, state: State, queue: Queue, hosts: Sequence[Host]) -> Pairs:
        """Return the pairs; those that were seen to run out of memory may not share."""
        believed = _without_clashes(state)
        speed = np.array(state.speed)
        model = np.array([host.model for host in hosts])[:, None]
        workload = np.array([host.job.workload for host in hosts])[:, None]
        left = np.array([host.job.remaining(state.now) for host in hosts])[:, None]
        return cls(
            believed[model, queue.workload, workload],
            believed[model, workload, queue.workload],
            queue.left_s / speed[model, queue.workload],
            np.broadcast_to(left / speed[model, workload], (len(hosts), len(queue.jobs))),
            _most_stretch(state, queue, hosts),
        )


def _most_stretch(state: State, queue: Queue, hosts: Sequence[Host]) -> Floats:
    limit = np.array([[host.job.tail_limit] for host in hosts])
    if np.isinf(limit).all() and np.isinf(queue.limit).all():
        return np.full((len(hosts), len(queue.jobs)), np.inf)
    tails = state.tails[:, 0]
    model = np.array([[host.model] for host in hosts])
    workload = np.array([[host.job.workload] for host in hosts])
    stretch = np.array([[state.modes[host.job.workload][host.mode].stretch] for host in hosts])
    joining, hosting = (
        tails[model, queue.workload, workload],
        tails[model, workload, queue.workload],
    )
    kept = np.isinf(limit) | (hosting * stretch <= limit)
    most = np.where(np.isinf(queue.limit), np.inf, queue.limit / joining)
    return np.where(kept, most, 0.0)


def joining_mode(state: State, queue: Queue, mode: int) -> tuple[Floats, Floats]:
    """Return memory and stretch of each pending job's mode; infinite where it has fewer."""
    none = (np.inf, np.inf)
    rows = [ways[mode][1:] if mode < len(ways) else none for ways in state.modes]
    table = np.array(rows, dtype=np.float64)[queue.workload]
    return table[:, 0], table[:, 1]


def fits(need_mib: Floats, hosts: Sequence[Host]) -> Bools:
    """Tell which jobs of the given need fit beside which hosts, as (H, P)."""
    free = np.array([host.free_mib for host in hosts])[:, None]
    return np.asarray(need_mib <= free)


def _without_clashes(state: State) -> Floats:
    believed = state.predicted.slowdown[:, 0]
    if not state.clashes:
        return believed
    believed = believed.copy()
    for model, workload, other in state.clashes:
        believed[model, workload, other] = np.nan
    return believed
