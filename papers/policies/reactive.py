"""Reactive GPU sharing: share first, and remove a job if sharing turns out to be harmful."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import merge

from dovetail.formulations.rules import most_bound
from dovetail.papers.policies.unaware import start_spread
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.state import Job, State

_INSTANT_S = 1e-6

Sharings = Sequence[tuple[Job, float]]
"""Jobs with a gSLA that share, and the time since which they have had their present co-runners."""


@dataclass
class Reactive:
    """As unaware sharing, and a job is paused where a gSLA is seen to be violated.

    Source: "reactive GPU sharing" of TensorShare (FGCS 2026, section 4.1) after Gandiva (Xiao et
    al., OSDI 2018, section 3.2): jobs are packed without a prediction, their progress is
    monitored, and a harmful packing is undone. Neither says which job is removed. Here it is the
    last to start among those that share a GPU with the violated one; it is queued again and kept
    apart from these jobs. It may immediately start elsewhere.

    A violation is a measured slowdown (speed alone on that GPU model over present progress) above
    the job's gSLA; jobs without one are never violated. A gang that spans nodes is compared with
    its speed on one node.

    Parameters
    ----------
    observe_s : float
        Seconds for which jobs run together before their slowdown is used (> 0).
    apart_s : float
        Seconds for which a paused job is kept apart from the jobs that it was paused for (>= 0);
        infinite = forever, as Gandiva remembers harmful packings.
    """

    observe_s: float = 60.0
    apart_s: float = math.inf
    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))
    _apart: dict[tuple[int, int], float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.observe_s > 0:
            raise ValueError(f"observe_s must be > 0, got {self.observe_s:g}")
        if not self.apart_s >= 0:
            raise ValueError(f"apart_s must be >= 0, got {self.apart_s:g}")

    def decide(self, state: State) -> Decision:
        """Pause jobs if a gSLA is violated, then start jobs from the head of the queue."""
        draft = Draft(state)
        sharings = list(_sharings(state))
        paused = self._pause(draft, sharings)
        if paused or state.pending:
            waiting = merge(paused, self._queue.jobs(state), key=lambda job: job.number)
            start_spread(draft, waiting, partial(self._may_join, draft))
        return draft.decision(self._wake(draft, sharings))

    def _pause(self, draft: Draft, sharings: Sharings) -> list[Job]:
        """Stop one job of every violated sharing, but no service, and return them by number."""
        state = draft.state
        paused: dict[int, Job] = {}
        for job, since in sharings:
            if since + self.observe_s > state.now + _INSTANT_S or not _violated(state, job):
                continue
            others = _beside(state, job)
            if paused.keys().isdisjoint([job.number, *others]):
                batch = [each for each in (job, *others.values()) if not each.latency]
                if not batch:
                    continue
                last = max(batch, key=lambda o: (o.started_s, o.number))
                self._keep_apart(last, _beside(state, last), state.now)
                draft.stop(last)
                paused[last.number] = last
        return [paused[number] for number in sorted(paused)]

    def _keep_apart(self, job: Job, others: dict[int, Job], now: float) -> None:
        for other in others:
            self._apart[job.number, other] = self._apart[other, job.number] = now + self.apart_s

    def _may_join(self, draft: Draft, job: Job, gpu: int) -> bool:
        now = draft.state.now
        return all(
            self._apart.get((job.number, other.number), -math.inf) <= now
            for other in draft.residents(gpu)
        )

    def _wake(self, draft: Draft, sharings: Sharings) -> float | None:
        """Return when the next co-runners will have been observed for long enough."""
        now = draft.state.now
        begun = [since for _, since in sharings]
        starts = draft.decision().starts
        if any(len(draft.residents(gpu)) > 1 for start in starts for gpu in start.gpus):
            begun.append(now)
        moments = [since + self.observe_s for since in begun]
        return min([at for at in moments if at > now + _INSTANT_S], default=None)


def _sharings(state: State) -> Iterator[tuple[Job, float]]:
    """Yield the jobs with a gSLA that share, and since when with the present co-runners."""
    for job in state.running.values():
        if math.isfinite(job.gsla):
            others = _beside(state, job)
            if others:
                yield (
                    job,
                    max([_under_way_s(other, state.now) for other in (job, *others.values())]),
                )


def _under_way_s(job: Job, now: float) -> float:
    """Return when a job started to run, or when it will if it is being restored."""
    return job.since_s if job.since_s > now else job.started_s


def _beside(state: State, job: Job) -> dict[int, Job]:
    return {
        other.number: other
        for gpu in job.gpus
        for other in state.residents[gpu]
        if other is not job
    }


def _violated(state: State, job: Job) -> bool:
    alone = state.speed[state.machines.model[job.gpus[0]]][job.workload]
    return alone / job.rate > most_bound(job.gsla)
