"""Horus: sharing decided by GPU utilisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from dovetail.papers.policies.coscheml import utilisation
from dovetail.papers.policies.open_gpus import OpenGpus
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.state import Job, State

_MEMORY_WEIGHT = 1.3
_OVERCOMMITTED_WEIGHT = 1.6


@dataclass(frozen=True)
class Horus:
    """Place each job, in the order of arrival, on the GPUs with the lowest projected cost.

    Source: Yeung et al., Horus, IEEE TPDS 33(1), 2022. The cost of a GPU is that of the authors'
    public simulator: 1.3 times the fraction of its memory that would be in use, plus the distance
    of the projected utilisation from 100 %, weighted 1.6 times above it, plus the number of jobs
    on it. So an idle GPU is always preferred, and jobs of high utilisation share last.

    Utilisation is that of the solo profile (``gpu_util``, or else ``sm_active``); the paper
    predicts it from the computation graph, which traces lack. Horus+, whose queues are found by
    clustering, is left out. The first job that fits nowhere blocks later ones. Each worker of a
    gang takes its own GPU, the cheapest of one model.

    Parameters
    ----------
    most_util : float
        The largest projected utilisation at which a GPU is shared (> 0); 1 keeps jobs of high
        utilisation apart, as TensorShare (2026, section 4.1) describes Horus. Infinite, as in the
        simulator, only makes them expensive.
    """

    most_util: float = math.inf
    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))

    def __post_init__(self) -> None:
        if not self.most_util > 0:
            raise ValueError(f"most_util must be > 0, got {self.most_util:g}")

    def decide(self, state: State) -> Decision:
        """Start jobs from the head of the queue until one does not fit."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        open_gpus = OpenGpus(draft)
        for job in self._queue.jobs(state):
            gpus = idle_gpus(draft, job)
            if gpus is None:
                offer = open_gpus.cheapest(job, partial(self._cost, state))
                if offer is None:
                    break
                gpus = offer[1]
            open_gpus.start(job, gpus)
        return draft.decision()

    def _cost(self, state: State, job: Job, residents: Sequence[Job], gpu: int) -> float:
        together = [job, *residents]
        util = sum([utilisation(state, other.workload) for other in together])
        if residents and util > self.most_util:
            return math.inf
        used = state.used_mib(gpu, together) / state.machines.memory_mib[gpu]
        distance = (util - 1) * _OVERCOMMITTED_WEIGHT if util > 1 else 1 - util
        return _MEMORY_WEIGHT * used + distance + len(residents)
