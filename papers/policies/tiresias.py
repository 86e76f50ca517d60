"""Tiresias: discretised least attained service, preemptive, without knowing durations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter

from dovetail.formulations.rules import fit_together
from dovetail.papers.policies.rearrange import gpus_by_model
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Key, Queue
from dovetail.solver.policies.services import movable
from dovetail.solver.policies.state import Job, State

_INSTANT_S = 1e-6


@dataclass
class Tiresias:
    """Two queues by attained service (GPUs times seconds held); the high one goes first.

    Source: Gu et al., Tiresias, NSDI 2019, section 3.2 (Discretized 2D-LAS with K = 2). A job
    enters the high queue and leaves it when its service reaches the threshold. Within a queue,
    jobs are in the order of their first start, followed by jobs that never ran in the order of
    arrival, so no job preempts another of its queue. GPUs are assigned from the head of the high
    queue to the end of the low one; jobs that do not fit are skipped, and running jobs without
    GPUs are preempted.

    A job that has waited longer than ``promote`` times its run time, both since its first start or
    last promotion, returns to the high queue, with its service counted from zero.

    Deviations: gangs are placed by the fewest nodes; the paper's consolidation by the skew of a
    model's tensors needs data that traces lack. Decisions are made at events, not every few
    seconds.

    Parameters
    ----------
    threshold_gpu_s : float
        Attained service in GPU seconds at which a job is demoted (> 0). The default, 16 GPU hours,
        is that of Pollux's simulator (OSDI 2021), which Castor's experiments follow. The first
        limit of the authors' public simulator, 3,250, fits shorter jobs.
    promote : float
        The paper's PromoteKnob (> 0): a job that has waited longer than this times its run time
        returns to the high queue; infinite: no job is promoted, as in both of these simulators.
    """

    threshold_gpu_s: float = 57600.0
    promote: float = math.inf
    _queue: Queue = field(init=False, repr=False)
    _began_s: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    _counted: dict[int, tuple[float, float]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("threshold_gpu_s", "promote"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name):g}")
        self._queue = Queue(lambda job: self._key(job, job.waiting_since_s))

    def decide(self, state: State) -> Decision:
        """Assign GPUs from the heads of the two queues; preempt running jobs that get none."""
        if not state.pending:
            return NOTHING
        starving_s = self._promote(state)
        kept, chosen = self._hand_out(state)
        draft = Draft(state)
        stopped = [job for job in movable(state) if job.number not in kept]
        for job in stopped:
            draft.stop(job)
        for job in chosen:
            gpus = idle_gpus(draft, job)
            if gpus is not None:
                self._began_s.setdefault(job.number, state.now)
                draft.start(job, gpus)
        holding = [*(state.running[number] for number in kept), *chosen]
        moments = [self._demoted_s(job, state.now) for job in holding]
        moments += [self._promoted_s(job, state.now) for job in stopped]
        return draft.decision(self._wake(state.now, [*moments, starving_s]))

    def _hand_out(self, state: State) -> tuple[set[int], list[Job]]:
        """Return the numbers of the running jobs that stay, and the pending jobs to start."""
        free = gpus_by_model(state)
        running = sorted((self._key(job, state.now), job) for job in movable(state))
        kept: set[int] = set()
        chosen = []
        for _, job in merge(running, self._queue.entries(state), key=itemgetter(0)):
            model = _model_for(state, job, free)
            if model is None:
                continue
            free[model] -= job.workers
            if job.gpus:
                kept.add(job.number)
            else:
                chosen.append(job)
            if not any(free):
                break
        return kept, chosen

    def _key(self, job: Job, now: float) -> Key:
        if job.latency:
            return -1, job.arrival_s, job.number
        low = self._demoted_s(job, now) <= now + _INSTANT_S
        return low, self._began_s.get(job.number, math.inf), job.number

    def _demoted_s(self, job: Job, now: float) -> float:
        """Return when a job that runs, or would start now, reaches the threshold."""
        before = job.held_s - self._counted.get(job.number, (0.0, 0.0))[1]
        since = job.started_s if job.gpus else now
        return since + self.threshold_gpu_s / job.workers - before

    def _promoted_s(self, job: Job, now: float) -> float:
        """Return when a job of the low queue that waits, or waits from now on, is promoted.

        A job that ran for t since the time r has waited p * t when t + p * t have passed.
        """
        began = self._began_s.get(job.number, job.arrival_s)
        since, held = self._counted.get(job.number, (began, 0.0))
        return since + (job.held(now) - held) * (1 + self.promote)

    def _promote(self, state: State) -> float:
        """Promote the jobs that have waited too long; return the time of the next promotion."""
        soonest = math.inf
        if math.isinf(self.promote):
            return soonest
        for job in state.pending.values():
            if job.starts and self._key(job, job.waiting_since_s)[0] > 0:
                due = self._promoted_s(job, state.now)
                if due > state.now + _INSTANT_S:
                    soonest = min(soonest, due)
                else:
                    self._counted[job.number] = (state.now, job.held_s)
                    self._queue.renew(job)
        return soonest

    def _wake(self, now: float, moments: list[float]) -> float | None:
        """Return the next time at which a job changes its queue."""
        at = min([moment for moment in moments if moment > now + _INSTANT_S], default=math.inf)
        return None if math.isinf(at) else at


def _model_for(state: State, job: Job, free: list[int]) -> int | None:
    """Return the model of a running job, or the fastest for another; None if too few are free."""
    if job.gpus:
        own = state.machines.model[job.gpus[0]]
        return own if free[own] >= job.workers else None
    enough = [m for m, count in enumerate(free) if count >= job.workers and _holds(state, m, job)]
    return max(enough, key=lambda m: (state.speed[m][job.workload], -m), default=None)


def _holds(state: State, model: int, job: Job) -> bool:
    machines, way = state.machines, state.modes[job.workload][:1]
    offered = [machines.memory_mib[g] for g, m in enumerate(machines.model) if m == model]
    return sum([fit_together(way, mib) for mib in offered]) >= job.workers
