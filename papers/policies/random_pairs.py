"""Random order and random co-runners: the baseline of all comparisons."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from dovetail.papers.policies.open_gpus import OpenGpus, on_nodes
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, in_groups
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Key, Queue
from dovetail.solver.policies.state import Job, State


@dataclass
class RandomPairs:
    """Start jobs in random order; a job without idle GPUs joins random jobs that leave room.

    Source: none; the baseline that every method must beat. The first job that fits nowhere blocks
    later ones. A gang joins random GPUs of one model, one by one.

    Parameters
    ----------
    seed : int
        Seed of all draws.
    """

    seed: int = 0
    _random: random.Random = field(init=False, repr=False)
    _queue: Queue = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._queue = Queue(self._lot)

    def decide(self, state: State) -> Decision:
        """Start jobs in random order, on idle GPUs if there are enough, else on random ones."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        open_gpus = OpenGpus(draft)
        for job in self._queue.jobs(state):
            gpus = idle_gpus(draft, job) or self._any(draft, open_gpus, job)
            if gpus is None:
                break
            open_gpus.start(job, gpus)
        return draft.decision()

    def _lot(self, job: Job) -> Key:
        return self._random.random(), job.number

    def _any(self, draft: Draft, open_gpus: OpenGpus, job: Job) -> list[int] | None:
        model = draft.state.machines.model
        by_model: dict[int, list[int]] = defaultdict(list)
        for alike in open_gpus.open_to(job):
            by_model[model[alike[0]]] += alike
        enough = [gpus for gpus in by_model.values() if len(gpus) >= job.workers]
        if not enough:
            return None
        gpus = self._random.choice(enough)
        if job.by_node:
            usable = on_nodes(draft.state.machines.node, gpus, lambda _: self._random.random())
            return in_groups(job, usable, job.workers)
        return self._random.sample(gpus, job.workers)
