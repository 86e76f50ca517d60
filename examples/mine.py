"""A policy and an objective of your own: ``python:mine.SmallFirst``, ``python:mine.Fair``."""

import numpy as np

from dovetail import JobValues
from dovetail.solver.policies import Decision, State
from dovetail.solver.policies.draft import Draft


class SmallFirst:
    """Jobs of the fewest GPUs first, each on idle GPUs of its own."""

    def decide(self, state: State) -> Decision:
        """Start what fits."""
        draft = Draft(state)
        for job in sorted(state.pending.values(), key=lambda job: job.workers):
            idle = [gpu for gpu in range(len(state.machines)) if draft.is_idle(gpu)]
            if len(idle) >= job.workers:
                draft.start(job, idle[: job.workers])
        return draft.decision()


class Fair(JobValues):
    """Maximise the sum over placed jobs of log(1 + weight x rate)."""

    def gain(self, job, slowdown, model):
        """Return what a job is worth at a slowdown."""
        return np.log1p(super().gain(job, slowdown, model))
