"""Lucid: pack jobs by classes of GPU use, without predictions for pairs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, keeps_groups
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import Job, State

TINY, MEDIUM, JUMBO = 0, 1, 2
CAPACITY: Final = 2
"""The largest sum of the sharing scores of the two jobs on a GPU."""

_UTIL_MEDIUM, _UTIL_JUMBO = 0.25, 0.53
_SPEED_MEDIUM, _SPEED_JUMBO = 0.95, 0.85
_LONGER = 2.0


@dataclass(frozen=True)
class Lucid:
    """Shortest service first, with indolent packing of jobs with low sharing scores.

    Source: Hu et al., "Lucid" (ASPLOS 2023), and the simulator of its artifact. The queue is in
    the order of priority, estimated seconds times GPUs. Each job looks for a running job that is
    alone on its GPUs, in the order of their starts: it must have the same number of GPUs, the
    sharing scores must sum to at most 2, the memory must fit, and the running job's priority must
    be at least half of its own (so that a short job is not slowed by a long one). Otherwise it
    takes idle GPUs. Gangs on several nodes are not packed. No job is ever stopped. gSLAs are
    ignored.

    As Lucid's own models are not available:

    - the sharing score is an approximation by GPU use alone: Tiny (0) below 25 %, Medium (1) below
      53 %, else Jumbo (2), which the authors give as bounds for most jobs of these classes;
      Lucid's decision tree also uses memory use and mixed precision. A workload without
      ``gpu_util`` gets the label that the tree was fitted to, from its mean predicted speed with
      others: Tiny from 0.95, Medium from 0.85;
    - packing is off while load is light. Lucid forecasts arrivals; here the load is light while
      the queue asks for no more GPUs than are idle. As in the artifact, the first job that does
      not fit then blocks later ones;
    - the estimate of a duration is ``Job.work_s``;
    - a pair without a prediction may not share, as everywhere in Dovetail.
    """

    def decide(self, state: State) -> Decision:
        """Pack or start the jobs with the least service."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        queue = sorted(state.pending.values(), key=lambda job: (_priority(job), job.number))
        if sum(job.workers for job in queue) <= draft.idle_total:
            _start_alone(draft, queue)
        else:
            _pack(draft, queue)
        return draft.decision()


def sharing_scores(state: State) -> list[int]:
    """Return the sharing score of each workload: 0 Tiny, 1 Medium, 2 Jumbo."""
    speeds = 1 / state.predicted.slowdown[:, 0]
    return [
        _score_of_speed(speeds[:, k])
        if workload.metrics is None or workload.metrics.gpu_util is None
        else _score_of_util(workload.metrics.gpu_util)
        for k, workload in enumerate(state.workloads)
    ]


def _score_of_util(util: float) -> int:
    return JUMBO if util >= _UTIL_JUMBO else MEDIUM if util >= _UTIL_MEDIUM else TINY


def _score_of_speed(speeds: NDArray[np.float64]) -> int:
    known = speeds[~np.isnan(speeds)]
    mean = known.mean() if len(known) else 0.0
    return JUMBO if mean < _SPEED_JUMBO else MEDIUM if mean < _SPEED_MEDIUM else TINY


def _priority(job: Job) -> float:
    return job.work_s * job.workers


def _start_alone(draft: Draft, queue: list[Job]) -> None:
    for job in queue:
        gpus = idle_gpus(draft, job)
        if gpus is None:
            return
        draft.start(job, gpus)


def _pack(draft: Draft, queue: list[Job]) -> None:
    hosts = _LoneJobs(draft)
    for job in queue:
        gpus = hosts.gpus_for(job)
        if gpus is not None:
            draft.start(job, gpus)
            continue
        idle = idle_gpus(draft, job)
        if idle is not None:
            draft.start(job, idle)
            hosts.add(job, tuple(idle))


class _LoneJobs:
    """The jobs that are alone on their GPUs, by workers, in the order of their starts."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._scores = sharing_scores(draft.state)
        self._hosts: dict[int, list[tuple[Job, tuple[int, ...]]]] = defaultdict(list)
        self._hopeless: set[tuple[int, int, bool, int, float]] = set()
        for job in draft.state.running.values():
            self.add(job, job.gpus)

    def add(self, job: Job, gpus: tuple[int, ...]) -> None:
        """Add a job that others may join, if it is alone on GPUs of one node."""
        node = self._draft.state.machines.node
        alone = all(len(self._draft.residents(gpu)) == 1 for gpu in gpus)
        if alone and len({node[gpu] for gpu in gpus}) == 1:
            self._hosts[job.workers].append((job, gpus))
            self._hopeless.clear()

    def gpus_for(self, job: Job) -> tuple[int, ...] | None:
        """Return the GPUs of the first host that a job may join, and remove the host."""
        kind = job.workers, job.together, job.one_each, job.workload, job.tail_limit
        if kind in self._hopeless:
            return None
        hosts = self._hosts[job.workers]
        for k, (host, gpus) in enumerate(hosts):
            if self._may_join(job, host, gpus):
                del hosts[k]
                return gpus
        # Later jobs of this kind have lower priority, so none of these hosts takes them either.
        self._hopeless.add(kind)
        return None

    def _may_join(self, job: Job, host: Job, gpus: tuple[int, ...]) -> bool:
        draft = self._draft
        return (
            self._scores[job.workload] + self._scores[host.workload] <= CAPACITY
            and _priority(job) <= _LONGER * _priority(host)
            and keeps_groups(draft.state, job, gpus)
            and all(draft.has_room(gpu, job) for gpu in gpus)
            and draft.slowdowns(gpus[0], job) is not None
        )
