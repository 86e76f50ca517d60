"""Shortest job first with partial GPU sharing: Castor, and its baseline without the benefit test.

Algorithm 1 of Castor (2025): the pending jobs are taken in the order of their remaining time. A job
gets idle GPUs if there are enough, else the GPUs of running jobs that a rule lets it join, the best
first, and idle GPUs for the remaining workers. A job that still lacks GPUs waits, and the next job
is tried.

Where the algorithm does not say: hosts and idle GPUs of one start are of one GPU model, the one on
which the job runs fastest; a gang whose hosts need different sub-batches takes the smallest of
them, since it has one batch; if the cluster lets gangs share only as a whole, a job joins only a
single host with the same number of workers; a gang whose workers stay together on nodes gets idle
GPUs only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.rules import Mode, room_mib
from dovetail.formulations.values import SHORTER_BY, mean_completion
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, idle_gpus_of
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class Castor:
    """SJF-BSBF: smallest job first with best sharing benefit first.

    Source: Castor (2025), section 5: Algorithm 1 for the queue and the GPUs, Algorithm 2 for the
    sub-batch of the joining job, theorem 1 to decide whether sharing now ends the pair earlier on
    average than one after the other. Running jobs are never stopped and keep their batch; at most
    two jobs share a GPU; gSLAs of batch jobs are ignored.

    The theorem is about a pair; a gang joins hosts that each pass it separately, as in Algorithm 1.
    Seconds are on the host's GPU model. A sub-batch slows a job until its end, beyond the shared
    part; a waiting job is evaluated at full batch.

    Attributes
    ----------
    sub_batch : bool
        Whether a joining job may accumulate gradients over smaller batches to fit; False is the
        paper without batch size scaling.
    """

    sub_batch: bool = True

    def decide(self, state: State) -> Decision:
        """Start the shortest jobs, on idle GPUs or with co-runners if that pays."""
        modes = max(map(len, state.modes)) if self.sub_batch else 1
        return _decision(state, _earliest_end, modes)


def _earliest_end(pairs: Pairs, hosts: Sequence[HostJob], slowdown_factor: Floats) -> Floats:
    """Return when each pair ends on average; infinite if one after the other ends sooner."""
    host_factor = np.array([[host.slowdown_factor] for host in hosts])
    one_by_one = pairs.hosting_left_s * host_factor + pairs.joining_left_s / 2
    at_once = mean_completion(
        (pairs.joining * slowdown_factor, pairs.hosting * host_factor),
        (slowdown_factor, host_factor),
        (pairs.joining_left_s, pairs.hosting_left_s),
    )
    return np.where(at_once < one_by_one * (1 - SHORTER_BY), at_once, np.inf)


@dataclass(frozen=True)
class SjfFfs:
    """Share with the first job that fits whenever idle GPUs are too few.

    Source: baseline 7 of Castor (2025), section 9.1, which says that it colocates greedily if idle
    resources are insufficient and, unlike Castor, does not test whether that pays. So it is
    Algorithm 1 without theorem 1: every pair that fits may share, in the order of the cluster's
    GPUs. A job joins at the largest batch that fits in memory. A pair without a prediction may not
    share, as everywhere in Dovetail.
    """

    def decide(self, state: State) -> Decision:
        """Start the shortest jobs, on idle GPUs or with the first jobs that have room."""
        return _decision(state, _first_fit, max(map(len, state.modes)))


def _first_fit(pairs: Pairs, hosts: Sequence[HostJob], slowdown_factor: Floats) -> Floats:
    """Return the position of the host; infinite if the slowdown of the pair is unknown."""
    order = np.array([[float(host.gpus[0])] for host in hosts])
    return np.where(np.isnan(pairs.joining + pairs.hosting), np.inf, order)


class PendingJobs(NamedTuple):
    """The P pending jobs, shortest first.

    Attributes
    ----------
    jobs : list of Job
    workload, workers : (P,) int
    left_s : (P,) float
        Remaining seconds of work of each.
    limit : (P,) float
        ``Job.tail_limit``.
    """

    jobs: list[Job]
    workload: Ints
    workers: Ints
    left_s: Floats
    limit: Floats


class HostJob(NamedTuple):
    """A running job with GPUs to itself that another job may join.

    Attributes
    ----------
    job : Job
    model : int
        Index of the model of its GPUs.
    slowdown_factor : float
        The factor of its sub-batch.
    gpus : list of int
        The GPUs that it has to itself.
    memory_mib, free_mib : float
        The memory of the smallest of these GPUs, and how much of it is free.
    """

    job: Job
    model: int
    slowdown_factor: float
    gpus: list[int]
    memory_mib: float
    free_mib: float


Rule = Callable[["Pairs", Sequence["HostJob"], Floats], Floats]
"""Returns a score for each host and pending job (H, P), given the slowdown factor of a mode of the
job (P,): the host's GPUs with the lowest score are taken first; infinite if they may not share."""


def _decision(state: State, rule: Rule, modes: int) -> Decision:
    """Decide by Algorithm 1; ``rule`` chooses partners in one of the first ``modes``."""
    if not state.pending:
        return NOTHING
    return _Round(state, rule, modes).decision()


class _Round:
    """One pass through the queue."""

    def __init__(self, state: State, rule: Rule, modes: int) -> None:
        self._state = state
        self._rule = rule
        self._mode_count = modes
        self._draft = Draft(state)
        self._queue = _queue(state)
        self._hosts: list[HostJob] = []
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
        """Return the first job at or after a position for which some model has enough GPUs."""
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
        if job.by_node:
            return
        speed = self._state.speed
        models = range(len(self._state.machines.models))
        for model in sorted(models, key=lambda m: -speed[m][job.workload]):
            if self._join(place, job, model):
                return

    def _join(self, place: int, job: Job, model: int) -> bool:
        """Start a job with the best hosts of a model; False if it lacks GPUs."""
        taken: list[int] = []
        mode = 0
        for h in self._best(place, model):
            mode = max(mode, int(self._modes[h][place]))
            taken += self._hosts[h].gpus[: job.workers - len(taken)]
            if len(taken) == job.workers:
                break
        # The rule tested each host at the sub-batch needed for that host.
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
        """Offer jobs that have GPUs to themselves as hosts for pending jobs."""
        if self._state.machines.fewest_jobs < 2:
            return
        hosts = [host for held in running if (host := self._as_host(*held)) is not None]
        if not hosts:
            return
        scores, modes = self._offers(hosts)
        self._hosts += hosts
        self._scores += list(scores)
        self._modes += list(modes)
        for host, score in zip(hosts, scores, strict=True):
            self._room[host.model] += len(host.gpus) * (score < np.inf)

    def _offers(self, hosts: Sequence[HostJob]) -> tuple[Floats, Ints]:
        """Return the best score of each host and pending job, and its mode, (H, P) each."""
        state, queue = self._state, self._queue
        pairs = Pairs.of(state, queue, hosts)
        offered, free = np.array([[host.memory_mib, host.free_mib] for host in hosts]).T[..., None]
        scores = np.full(pairs.joining.shape, np.inf)
        modes = np.zeros(scores.shape, dtype=np.int64)
        for k in range(self._mode_count):
            need, part, slowdown_factor = _mode(state, queue, k)
            fits = need + part * np.maximum(offered, 0.0) <= free
            score = self._rule(pairs, hosts, slowdown_factor)
            better = fits & (slowdown_factor <= pairs.most_factor) & (score < scores)
            scores[better], modes[better] = score[better], k
        if state.machines.rules.gang_sharing == "whole":
            scores[~self._whole(hosts)] = np.inf
        return scores, modes

    def _as_host(self, job: Job, held: Sequence[int], mode: int) -> HostJob | None:
        """Return a job as a host on the GPUs that it has to itself, or None if there are none."""
        machines = self._state.machines
        draft = self._draft
        gpus = [gpu for gpu in held if len(draft.residents(gpu)) == 1 and not draft.is_kept(gpu)]
        if not gpus:
            return None
        way = self._state.modes[job.workload][mode]
        least = min([machines.memory_mib[gpu] for gpu in gpus])
        free = room_mib(least - way.need_mib(least))
        return HostJob(job, machines.model[gpus[0]], way.slowdown_factor, gpus, least, free)

    def _whole(self, hosts: Sequence[HostJob]) -> Bools:
        workers = np.array([h.job.workers if len(h.gpus) == h.job.workers else -1 for h in hosts])
        return np.asarray(workers[:, None] == self._queue.workers)

    def _leave(self, taken: set[int]) -> None:
        """Remove GPUs that now have a second job from their hosts."""
        for h, host in enumerate(self._hosts):
            left = [gpu for gpu in host.gpus if gpu not in taken]
            lost = len(host.gpus) - len(left)
            if lost:
                self._room[host.model] -= lost * (self._scores[h] < np.inf)
                self._hosts[h] = host._replace(gpus=left)


def _queue(state: State) -> PendingJobs:
    left = {number: job.remaining(state.now) for number, job in state.pending.items()}
    jobs = sorted(state.pending.values(), key=lambda job: (left[job.number], job.number))
    return PendingJobs(
        jobs,
        np.array([job.workload for job in jobs]),
        np.array([job.workers for job in jobs]),
        np.array([left[job.number] for job in jobs]),
        np.array([job.tail_limit for job in jobs]),
    )


class Pairs(NamedTuple):
    """The estimates for H hosts and P pending jobs on the host's GPUs, all (H, P).

    Attributes
    ----------
    joining, hosting : float
        Slowdown of the pending job and of the host at full batch; NaN if they may not share.
    joining_left_s, hosting_left_s : float
        Remaining seconds of each alone on such a GPU.
    most_factor : float
        The largest factor of a sub-batch at which the pending job keeps its gSLA if it is
        latency-critical; 0 if it would break the host's.
    """

    joining: Floats
    hosting: Floats
    joining_left_s: Floats
    hosting_left_s: Floats
    most_factor: Floats

    @classmethod
    def of(cls, state: State, queue: PendingJobs, hosts: Sequence[HostJob]) -> Pairs:
        """Return the pairs; pairs that have run out of memory may not share."""
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


def _most_stretch(state: State, queue: PendingJobs, hosts: Sequence[HostJob]) -> Floats:
    limit = np.array([[host.job.tail_limit] for host in hosts])
    if np.isinf(limit).all() and np.isinf(queue.limit).all():
        return np.full((len(hosts), len(queue.jobs)), np.inf)
    tails = state.tails[:, 0]
    model = np.array([[host.model] for host in hosts])
    workload = np.array([[host.job.workload] for host in hosts])
    slowdown_factor = np.array([[host.slowdown_factor] for host in hosts])
    joining, hosting = (
        tails[model, queue.workload, workload],
        tails[model, workload, queue.workload],
    )
    kept = np.isinf(limit) | (hosting * slowdown_factor <= limit)
    most = np.where(np.isinf(queue.limit), np.inf, queue.limit / joining)
    return np.where(kept, most, 0.0)


def _mode(state: State, queue: PendingJobs, mode: int) -> tuple[Floats, Floats, Floats]:
    """Return the memory of each pending job in a mode, and its slowdown factor.

    The memory is in MiB and as a part of what the GPU offers; MiB and factor are infinite for jobs
    without the mode.
    """
    none = Mode(None, np.inf, np.inf)
    rows = [ways[mode] if mode < len(ways) else none for ways in state.modes]
    table = [(way.memory_mib, way.memory_part, way.slowdown_factor) for way in rows]
    need, part, slowdown_factor = np.array(table, dtype=np.float64)[queue.workload].T
    return need, part, slowdown_factor


def _without_clashes(state: State) -> Floats:
    believed = state.predicted.slowdown[:, 0]
    if not state.clashes:
        return believed
    believed = believed.copy()
    for model, workload, other in state.clashes:
        believed[model, workload, other] = np.nan
    return believed
