"""Tesserae: packing by a matching, and moving few jobs by another, on top of a queue's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from scipy.optimize import linear_sum_assignment

from dovetail.formulations.arrays import Floats
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.papers.policies.rearrange import (
    Group,
    Rounds,
    alone_on,
    around_services,
    gpus_by_model,
)
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.services import movable
from dovetail.solver.policies.state import Job, Sharer, State

_ORDERS: Final = ("tiresias", "srtf")
_Sharing = tuple[int, float]
"""The key of interchangeable jobs for packing: workload and ``Job.tail_limit``."""


@dataclass
class Tesserae:
    """Assign GPUs in the order of a queue, then pack and place by matchings, in each round.

    Source: Bian et al., "Tesserae: Scalable Placement Policies for Deep Learning Workloads" (arXiv
    2508.04953, 2025), as described by its abstract; the text of the paper was not available, so
    the details are our own. A round has three steps:

    - jobs get their own GPUs in the order of the queue; jobs that do not fit are skipped;
    - packing: the placed jobs and the others are the two sides of a bipartite graph. Two jobs with
      equally many workers that fit in memory, with a predicted slowdown and no observed failure,
      have an edge if they run faster together than one after the other. Its weight is the gain of
      the pair: the sum of both normalised throughputs, minus one. The matching of the largest
      weight decides which jobs share;
    - migration: a second matching, of the groups of this round with the places of the last one,
      keeps the most workers in place.

    The choice of a parallelism strategy for language models is left out: jobs here have a fixed
    one.

    Attributes
    ----------
    order : str
        ``tiresias``: jobs with less attained service than ``threshold_gpu_s`` first, then by
        arrival. ``srtf``: the least estimated remaining time first.
    packing : bool
        Whether jobs are packed.
    threshold_gpu_s : float
        The threshold of ``tiresias`` in GPU seconds (> 0), by default that of the policy
        ``tiresias``.
    round_s : float
        The length of a round in seconds; Gavel's by default.

    Raises
    ------
    ValueError
        When an option is out of range.
    """

    order: str = "tiresias"
    packing: bool = True
    threshold_gpu_s: float = 57600.0
    round_s: float = 360.0
    _rounds: Rounds = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ValueError(f"order must be one of {_ORDERS}, got {self.order!r}")
        if not self.threshold_gpu_s > 0:
            raise ValueError(f"threshold_gpu_s must be > 0, got {self.threshold_gpu_s:g}")
        self._rounds = Rounds(self.round_s)

    def decide(self, state: State) -> Decision:
        """Start a new round if the last one is over."""
        return self._rounds.decide(state, self._groups)

    def _groups(self, state: State) -> list[Group]:
        jobs = [*movable(state), *state.pending.values()]
        jobs.sort(key=lambda job: (not job.latency, self._rank(state, job), job.number))
        placed = around_services(state) + alone_on(state, jobs, gpus_by_model(state))
        if not self.packing or state.machines.fewest_jobs < 2:
            return placed
        taken = {group.jobs[0].number for group in placed}
        return packed(state, placed, [job for job in jobs if job.number not in taken])

    def _rank(self, state: State, job: Job) -> float:
        if self.order == "srtf":
            return job.remaining(state.now)
        return float(job.attained(state.now) >= self.threshold_gpu_s)


def packed(state: State, placed: Sequence[Group], others: Sequence[Job]) -> list[Group]:
    """Return the groups of one with the partners of the heaviest matching added."""
    partner: dict[int, Job] = {}
    for workers in dict.fromkeys(job.workers for job in others):
        rows = [k for k, group in enumerate(placed) if group.jobs[0].workers == workers]
        columns = [job for job in others if job.workers == workers]
        gain = _gains(state, [placed[k] for k in rows], columns)
        for row, column in zip(*linear_sum_assignment(gain, maximize=True), strict=True):
            if gain[row, column] > 0:
                partner[rows[row]] = columns[column]
    return [
        group._replace(jobs=(*group.jobs, partner[k])) if k in partner else group
        for k, group in enumerate(placed)
    ]


def _gains(state: State, groups: Sequence[Group], others: Sequence[Job]) -> Floats:
    """Return the gain of each group of one with each other job, or 0 if they may not share."""
    kinds = list(dict.fromkeys(_sharing(job) for job in others))
    column = [kinds.index(_sharing(job)) for job in others]
    rows: dict[tuple[int, _Sharing], list[float]] = {}
    for group in groups:
        key = group.model, _sharing(group.jobs[0])
        if key not in rows:
            rows[key] = [_gain(state, group.model, key[1], kind) for kind in kinds]
    gain = np.array([rows[group.model, _sharing(group.jobs[0])] for group in groups])
    return np.asarray(gain.reshape(len(groups), len(kinds))[:, column], dtype=np.float64)


def _gain(state: State, model: int, mine: _Sharing, theirs: _Sharing) -> float:
    """Return the sum of two jobs' normalised throughputs on a GPU, minus one; 0: may not share."""
    a, b = mine[0], theirs[0]
    rows = state.predicted.rows[model][state.predicted.caps_place[UNCAPPED]]
    together = 1 / rows[a][b] + 1 / rows[b][a]
    fits = state.machines.all_hold(model, [state.modes[a][0], state.modes[b][0]])
    if not (fits and together > 1) or (model, a, b) in state.clashes:
        return 0.0
    kept = state.tails_kept(model, [Sharer(*mine), Sharer(*theirs)])
    return together - 1 if kept else 0.0


def _sharing(job: Job) -> _Sharing:
    return job.workload, job.tail_limit
