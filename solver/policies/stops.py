"""Stops of running jobs for waiting ones: which are lawful, and which pay.

*The law.* A job may be stopped

- if it resumes from checkpoints (``Job.checkpoint_s``), is not just being restarted, and neither is
  latency-critical nor shares a GPU with such a job;
- if its last stop is ``Job.stops_apart_s`` ago: an hour, unless its owner allows another time;
- if its gSLA has room for the stop. With G the gSLA, t the seconds since it was put on its GPUs, d
  the seconds alone that its work takes from then up to its last checkpoint, and R the seconds of a
  restart:

      t + R <= G d.

  So each stay on GPUs pays for the restart after it, and as a job never runs slower than G, it
  holds GPUs for at most G times its length alone, whatever that is. A gSLA is thus about the time
  on GPUs, including restarts and work that is done twice; to wait again is part of the completion
  time only.

*The worth.* The queue is laid out on the GPUs as they are expected to become idle, each job alone,
in the order of weighted shortest GPU time: once as it is, and once with the stopped jobs in the
queue, their restarts and lost work included, and the job for which they are stopped first. The
difference of the total weighted completion times is the gain. It must exceed the weighted seconds
of restarts and lost work, which it already contains, by a margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.formulations.prices import ROUNDING, layout
from dovetail.solver.pairing.compilation import ready
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_columns import QueueColumns
from dovetail.solver.policies.queue_forecast import busy_until
from dovetail.solver.policies.services import held_by_services
from dovetail.solver.policies.state import Job

_MOST_TRIED: Final = 8
"""Waiting jobs for which stops are tried before none is made."""


class _Unit(NamedTuple):
    """Running jobs that share GPUs with each other, and with no others.

    Attributes
    ----------
    jobs : tuple of Job
        The jobs.
    gpus : frozenset of int
        Their GPUs.
    place : (float, int)
        GPU time and number of the one that goes first in the queue.
    """

    jobs: tuple[Job, ...]
    gpus: frozenset[int]
    place: tuple[float, int]


class Stops(NamedTuple):
    """A waiting job, and the running ones that are stopped for it."""

    waiting: Job
    jobs: tuple[Job, ...]


class StopRules(NamedTuple):
    """What a policy demands of stops beyond the law.

    Attributes
    ----------
    margin : float
        A stop must gain more than this many times its cost, net of the cost.
    apart_s : float
        Least seconds between two stops of a job, if that is more than its owner allows.
    patience : callable
        Returns the seconds after which a job has waited, in all its waits, too long to be stopped.
    """

    margin: float
    apart_s: float
    patience: Callable[[Job], float]


def stoppable_from_s(job: Job, speed: float, now: float, apart_s: float = 0.0) -> float:
    """Return from when a running job may be stopped if it goes on at its present rate.

    Latency-critical jobs beside it are not considered.

    Parameters
    ----------
    job : Job
        A running job.
    speed : float
        The largest speed that its workload has on any GPU.
    now : float
        The pool's time.
    apart_s : float
        Least seconds between two stops, if that is more than the job's own.

    Returns
    -------
    float
        A time; infinity if it may not be stopped.
    """
    if job.latency or math.isinf(job.checkpoint_s):
        return math.inf
    start_s = max(now, job.since_s)
    if job.starts > 1:
        start_s = max(start_s, job.waiting_since_s + max(job.stops_apart_s, apart_s))
    if math.isinf(job.gsla):
        return start_s
    taken_s = now - job.started_s + job.restart_s
    kept = job.done(now) - job.lost(now) - job.resumed_s
    if taken_s <= job.gsla * kept / speed * (1 + ROUNDING):
        return start_s
    earned = job.gsla * job.rate / speed - 1  # a second
    if earned <= 0:
        return math.inf
    saved = job.done(now) - job.checkpoint_s - job.resumed_s
    return max(start_s, now + (taken_s - job.gsla * saved / speed) / earned)


class StopSearch:
    """The stops that pay after a round, and when more of them will be lawful.

    Jobs that share GPUs are stopped together or not at all, so that no other job changes its pace.

    Parameters
    ----------
    draft : Draft
        The pool and the decision so far.
    ends : mapping
        When jobs on GPUs are expected to end, by number.
    closed : collection of int
        GPUs whose jobs are not stopped and that get none of these starts, such as reserved ones.
    rules : StopRules
        What the policy demands.
    """

    def __init__(
        self, draft: Draft, ends: Mapping[int, float], closed: Collection[int], rules: StopRules
    ) -> None:
        state = draft.state
        self._draft, self._state, self._ends, self._rules = draft, state, ends, rules
        self._closed = closed
        queue = draft.queue
        if draft.stops:
            queue = queue.take(~np.isin(queue.number, [job.number for job in draft.stops]))
        self._waiting = queue.in_order()

    def best(self) -> Stops | None:
        """Return stops for the first waiting job for which some pay; None if none do."""
        now_s = self._state.now
        units = [unit for unit, at_s in self._moments if at_s <= now_s]
        if not units:
            return None
        outlook = _Outlook(self._draft, self._ends)
        first = self._waiting
        for k, job in enumerate(first.jobs[:_MOST_TRIED]):
            place = float(first.gpu_time[k]), job.number
            later = [unit for unit in units if place < unit.place]
            for chosen in self._choices(job, later):
                jobs = tuple(one for unit in chosen for one in unit.jobs)
                cost = math.fsum(one.weight * (one.restart_s + one.lost(now_s)) for one in jobs)
                if outlook.gain(job, jobs) > self._rules.margin * cost:
                    return Stops(job, jobs)
        return None

    def next_s(self) -> float:
        """Return when the next job may be stopped, of those that a waiting job goes before."""
        now_s = self._state.now
        return min([at_s for _, at_s in self._moments if at_s > now_s], default=math.inf)

    @cached_property
    def _moments(self) -> list[tuple[_Unit, float]]:
        """The units that may be stopped, the last in the queue first, and from when each may be.

        They are on open GPUs, a waiting job goes before them, and they have no service.
        """
        from_s = self._from_s()
        if not from_s:
            return []
        state, kept = self._state, held_by_services(self._state)
        starting = {gpu for start in self._draft.decision().starts for gpu in start.gpus}
        found, seen = list[tuple[_Unit, float]](), set[int]()
        for number in from_s:
            if number in seen:
                continue
            job = state.running[number]
            unit, at = {number: job}, [job]
            while at:
                beside = [other for gpu in at.pop().gpus for other in state.residents[gpu]]
                at += [other for other in beside if other.number not in unit]
                unit.update((other.number, other) for other in beside)
            seen.update(unit)
            gpus = frozenset([gpu for one in unit.values() for gpu in one.gpus])
            if (
                all(one in from_s for one in unit)
                and kept.isdisjoint(unit)
                and not any(gpu in self._closed or gpu in starting for gpu in gpus)
            ):
                place = min((from_s[one][1], one) for one in unit)
                at_s = max(from_s[one][0] for one in unit)
                found.append((_Unit(tuple(unit.values()), gpus, place), at_s))
        return sorted(found, key=lambda each: each[0].place, reverse=True)

    def _choices(self, job: Job, units: Sequence[_Unit]) -> Iterator[Sequence[_Unit]]:
        """Yield for each GPU model the units that would leave a job enough GPUs.

        That is the smallest one that suffices; if none does, those that come last in the queue.
        """
        machines = self._state.machines
        need_mib = self._state.modes[job.workload][0].memory_mib
        fits = [need_mib <= room for room in machines.gpu_room_mib]
        idle = [gpu for gpu in self._draft.idle_gpus() if gpu not in self._closed]
        for model in range(len(machines.models)):
            ok = [fit and each == model for fit, each in zip(fits, machines.model, strict=True)]
            missing = job.workers - sum(ok[gpu] for gpu in idle)
            freed = [sum([ok[gpu] for gpu in unit.gpus]) for unit in units]
            enough = [k for k, gpus in enumerate(freed) if gpus >= missing]
            if missing <= 0 or sum(freed) < missing:
                continue
            if enough:
                yield [units[min(enough, key=freed.__getitem__)]]
                continue
            some = list[int]()
            for k, gpus in enumerate(freed):
                if gpus and sum(freed[j] for j in some) < missing:
                    some.append(k)
            for k in list(some):
                if sum(freed[j] for j in some) - freed[k] >= missing:
                    some.remove(k)
            yield [units[k] for k in some]

    def _from_s(self) -> dict[int, tuple[float, float]]:
        """Return when running jobs may be stopped by law and rules, and their GPU times.

        Only jobs that a waiting job goes before and that may be stopped at some time are named.
        """
        if not len(self._waiting):
            return {}
        now_s, rules = self._state.now, self._rules
        running = self._draft.staying_columns
        first_s, first = float(self._waiting.gpu_time[0]), int(self._waiting.number[0])
        after = running.gpu_time > first_s
        after |= (running.gpu_time == first_s) & (running.number > first)
        found = {}
        for k in np.flatnonzero(after).tolist():
            job = running.jobs[k]
            if now_s - job.arrival_s - job.held(now_s) <= rules.patience(job):
                speed = float(self._state.best_speed[job.workload])
                at_s = stoppable_from_s(job, speed, now_s, rules.apart_s)
                if at_s < math.inf:
                    found[job.number] = at_s, float(running.gpu_time[k])
        return found


class _Outlook:
    """The completion times that are expected with and without stops."""

    def __init__(self, draft: Draft, ends: Mapping[int, float]) -> None:
        self._state, self._ends = draft.state, ends
        self._waiting, self._idle = draft.queue.in_order(), draft.idle_total
        self._until_s = busy_until(draft, ends)
        self._run = ready(len(self._waiting))
        self._as_it_is = self._total(self._waiting, self._until_s, self._idle)

    def gain(self, job: Job, stopped: Sequence[Job]) -> float:
        """Return the weighted seconds of completion time that stops for a job save."""
        until_s = self._until_s.copy()
        freed = sorted({gpu for one in stopped for gpu in one.gpus})
        until_s[freed] = -np.inf
        queue = self._waiting.joined([self._waiting, QueueColumns.of(self._state, stopped)])
        after = queue.number != job.number  # this job leads
        queue = queue.take(np.lexsort((queue.number, queue.gpu_time, after)))
        total = self._total(queue, until_s, self._idle + len(freed))
        undisturbed = math.fsum(
            one.weight * (self._ends[one.number] - self._state.now) for one in stopped
        )
        return self._as_it_is + undisturbed - total

    def _total(self, queue: QueueColumns, until_s: Floats, idle: int) -> float:
        """Return the total weighted completion time of jobs that start in this order."""
        busy_s = np.sort(until_s[until_s > -np.inf]) - self._state.now
        starts = layout([0.0] * idle + busy_s.tolist(), queue.asks(), self._run)
        return float((queue.weight * (starts + queue.seconds)).sum())
