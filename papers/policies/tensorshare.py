"""TensorShare: pairs that keep both gSLAs by prediction, chosen when a job ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.rules import most_bound
from dovetail.formulations.values import LEAST_SENSITIVITY
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus, keeps_groups
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import Job, State


@dataclass
class TensorShare:
    """Proactive filtering and combination selection.

    Source: TensorShare (FGCS 2026), section 3.3. A job J_R looks for a partner in the queue: with
    the same number of workers, enough memory for both, and no broken gSLA by prediction. Of
    several the one with the lowest S1 or S2 is chosen; without one, J_R runs alone.

    J_R is the remaining job when the other of its combination ends or, if GPUs are idle, the first
    job of the queue. The paper leaves the following open; here:

    - the remaining jobs come before the idle GPUs, in the order of arrival;
    - a job without a partner keeps its GPUs to itself until it ends (dedicated use), since only
      the end of a partner makes it J_R; ``reconsider`` makes every job that runs alone a J_R at
      every event;
    - GPUs idle at any other event (an arrival, a repair) are treated as at the beginning;
    - the first job of the queue is the first with enough idle GPUs, so that a large gang at its
      head does not keep GPUs idle; no GPUs are reserved for it either;
    - the sensitivity of a job is the population standard deviation of its predicted slowdowns with
      each other job in the queue at the event, as in the objective ``sensitivity``: at least 0.01,
      and 1 if fewer than two are known.

    Running jobs are never stopped, and all run at their full batch.

    Attributes
    ----------
    selection : str
        ``s2``, the paper's choice: the lowest sum of slowdown over sensitivity; ``s1``: the lowest
        sum of slowdowns.
    dedicated_if_room : bool
        Whether jobs run alone while the queue asks for fewer GPUs than are idle; an option in the
        paper (footnote 6).
    reconsider : bool
        Whether a job without a partner may get one later instead of staying alone.

    Raises
    ------
    ValueError
        When ``selection`` is neither.
    """

    selection: str = "s2"
    dedicated_if_room: bool = False
    reconsider: bool = False
    _combined: set[int] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.selection not in ("s1", "s2"):
            raise ValueError(f"selection must be s1 or s2, got {self.selection!r}")

    def decide(self, state: State) -> Decision:
        """Give remaining jobs new partners, then fill idle GPUs from the queue."""
        left = self._left_alone(state)
        if not state.pending:
            return NOTHING
        draft, queue = Draft(state), _ArrivalQueue(state)
        for job in left:
            self._combine(draft, queue, job, job.gpus, queue.running_spread)
        spare = self.dedicated_if_room and queue.demand < draft.idle_total
        for k, job in enumerate(queue.jobs):
            if not draft.idle_total:
                break
            gpus = idle_gpus(draft, job) if queue.waits[k] else None
            if gpus is None:
                continue
            draft.start(job, gpus)
            queue.waits[k] = False
            if not spare:
                self._combine(draft, queue, job, gpus, queue.spread)
        return draft.decision()

    def _left_alone(self, state: State) -> list[Job]:
        """Return the running jobs that are J_R; a job without a partner stays alone."""
        self._combined &= state.running.keys()
        jobs = [
            job
            for number, job in state.running.items()
            if (self.reconsider or number in self._combined)
            and all(len(state.residents[gpu]) == 1 for gpu in job.gpus)
        ]
        self._combined.difference_update(job.number for job in jobs)
        return sorted(jobs, key=lambda job: job.number)

    def _combine(
        self, draft: Draft, queue: _ArrivalQueue, job: Job, gpus: Sequence[int], spread: Floats
    ) -> None:
        """Start the best partner of J_R with it, if there is one."""
        model = draft.state.machines.model[gpus[0]]
        pairs = queue.candidates(job, model)
        score = pairs.mine + pairs.theirs
        if self.selection == "s2":
            others = queue.spread[model, queue.workload[pairs.place]]
            score = pairs.mine / spread[model, job.workload] + pairs.theirs / others
        refused: set[tuple[int, float]] = set()
        for k in pairs.place[np.argsort(score, kind="stable")]:
            partner = queue.jobs[k]
            kind = partner.workload, partner.tail_limit
            if kind in refused or not keeps_groups(draft.state, partner, gpus):
                continue
            if all(draft.has_room(gpu, partner) for gpu in gpus):
                draft.start(partner, gpus)
                queue.waits[k] = False
                self._combined |= {job.number, partner.number}
                return
            refused.add(kind)


class _FeasiblePairs(NamedTuple):
    """The jobs of the queue that keep the gSLAs with J_R, with both slowdowns."""

    place: Ints
    mine: Floats
    theirs: Floats


class _ArrivalQueue:
    """The scheduling queue in the order of arrival, as arrays of length P.

    ``spread`` and ``running_spread`` are sensitivities by GPU model and workload, shape (M, W):
    for a job in the queue, and for one that is not.
    """

    def __init__(self, state: State) -> None:
        self.jobs = sorted(state.pending.values(), key=lambda job: job.number)
        self.workload = np.array([job.workload for job in self.jobs])
        self.waits = np.ones(len(self.jobs), dtype=np.bool_)
        self._workers = np.array([job.workers for job in self.jobs])
        self._gsla = most_bound(np.array([job.gsla for job in self.jobs]))
        self.demand = int(self._workers.sum())
        self._slowdown = state.predicted.slowdown[:, 0]
        count = np.bincount(self.workload, minlength=len(state.workloads)).astype(np.float64)
        self.running_spread = _spread(self._slowdown, np.broadcast_to(count, self._square))
        self.spread = _spread(self._slowdown, np.maximum(count - np.eye(len(count)), 0.0))

    @property
    def _square(self) -> tuple[int, ...]:
        return self._slowdown.shape[1:]

    def candidates(self, job: Job, model: int) -> _FeasiblePairs:
        """Return the candidates of J_R after proactive filtering, before the check of memory."""
        place = np.flatnonzero(self.waits & (self._workers == job.workers))
        mine = self._slowdown[model, job.workload, self.workload[place]]
        theirs = self._slowdown[model, self.workload[place], job.workload]
        kept = (mine <= most_bound(job.gsla)) & (theirs <= self._gsla[place])
        return _FeasiblePairs(place[kept], mine[kept], theirs[kept])


def _spread(slowdown: Floats, count: Floats) -> Floats:
    """Return the weighted standard deviation of each row of (M, W, W) slowdowns."""
    known = np.where(np.isnan(slowdown), 0.0, count)
    value = np.nan_to_num(slowdown)
    total = known.sum(axis=2)
    mean = (known * value).sum(axis=2) / np.maximum(total, 1.0)
    variance = (known * (value - mean[:, :, None]) ** 2).sum(axis=2) / np.maximum(total, 1.0)
    spread = np.maximum(np.sqrt(variance), LEAST_SENSITIVITY)
    return np.asarray(np.where(total > 1, spread, 1.0))
