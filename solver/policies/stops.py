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

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.prices import ROUNDING, Asks, layout
from dovetail.solver.pairing.compilation import ready
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_columns import QueueColumns
from dovetail.solver.policies.services import held_by_services
from dovetail.solver.policies.state import Job

_MOST_TRIED: Final = 8
"""Waiting jobs for which stops are tried before none is made."""


class _StopUnit(NamedTuple):
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
        self._found: list[_StopUnit] = []
        queue = draft.queue
        if draft.stops:
            queue = queue.take(~np.isin(queue.number, [job.number for job in draft.stops]))
        self._waiting = queue.in_order()

    def best(self) -> Stops | None:
        """Return stops for the first waiting job for which some pay; None if none do."""
        now_s, outlook, first = self._state.now, None, self._waiting
        for k, job in enumerate(first.jobs[:_MOST_TRIED]):
            place = float(first.gpu_time[k]), job.number
            for chosen in self._choices(job, place):
                jobs = tuple(one for unit in chosen for one in unit.jobs)
                cost = math.fsum(one.weight * (one.restart_s + one.lost(now_s)) for one in jobs)
                outlook = outlook or _Outlook(self._draft, self._ends)
                if outlook.gain(job, jobs) > self._rules.margin * cost:
                    return Stops(job, jobs)
        return None

    def next_s(self) -> float:
        """Return when the next job may be stopped, of those that a waiting job goes before."""
        now_s, running = self._state.now, self._state.running
        later = [number for number, (at_s, *_) in self._from_s.items() if at_s > now_s]
        units = [self._together(running[number]) for number in later]
        return min([self._lawful_s(unit) for unit in units], default=math.inf)

    def _units_after(self, place: tuple[float, int]) -> Iterator[_StopUnit]:
        """Yield the units that may be stopped now and come after a place, the last one first."""
        k = 0
        while True:
            if k == len(self._found):
                unit = next(self._in_turn, None)
                if unit is None:
                    return
                self._found.append(unit)
            if self._found[k].place <= place:
                return
            yield self._found[k]
            k += 1

    @cached_property
    def _in_turn(self) -> Iterator[_StopUnit]:
        """The units that may be stopped now, the last one in the queue first."""
        places = [(gpu_time, number) for number, (_, gpu_time, _) in self._from_s.items()]
        passed = set[int]()
        for place in sorted(places, reverse=True):
            passed.add(place[1])
            unit = self._together(self._state.running[place[1]])
            if unit.keys() <= passed and self._lawful_s(unit) <= self._state.now:
                first = min(unit, key=lambda number: self._from_s[number][2])
                jobs = tuple((self._together(unit[first]) if len(unit) > 1 else unit).values())
                gpus = frozenset([gpu for one in jobs for gpu in one.gpus])
                yield _StopUnit(jobs, gpus, place)

    def _together(self, job: Job) -> dict[int, Job]:
        """Return the jobs of the unit of a running job, by number."""
        unit, at = {job.number: job}, [job]
        if all(len(self._state.residents[gpu]) == 1 for gpu in job.gpus):
            return unit
        while at:
            beside = [other for gpu in at.pop().gpus for other in self._state.residents[gpu]]
            at += [other for other in beside if other.number not in unit]
            unit.update((other.number, other) for other in beside)
        return unit

    def _lawful_s(self, unit: Mapping[int, Job]) -> float:
        """Return from when a unit may be stopped; infinity if it may not.

        A waiting job must go before all its jobs, none may be kept by a service, and its GPUs must
        be open.
        """
        from_s = [self._from_s[one][0] if one in self._from_s else math.inf for one in unit]
        at_s = max(from_s)
        if at_s == math.inf or not self._services.isdisjoint(unit):
            return math.inf
        gpus = [gpu for one in unit.values() for gpu in one.gpus]
        closed = any(gpu in self._closed or gpu in self._starting for gpu in gpus)
        return math.inf if closed else at_s

    @cached_property
    def _services(self) -> frozenset[int]:
        return held_by_services(self._state)

    @cached_property
    def _starting(self) -> set[int]:
        """The GPUs on which the decision starts jobs."""
        return {gpu for start in self._draft.decision().starts for gpu in start.gpus}

    @cached_property
    def _idle(self) -> list[int]:
        return [gpu for gpu in self._draft.idle_gpus() if gpu not in self._closed]

    def _choices(self, job: Job, place: tuple[float, int]) -> Iterator[Sequence[_StopUnit]]:
        """Yield for each GPU model the units that would leave a job at a place enough GPUs.

        That is the smallest one that suffices; if none does, those that come last in the queue.
        """
        machines = self._state.machines
        room_mib, of, need_mib = machines.gpu_room_mib, machines.model, self._state.need_mib

        def fits(gpu: int, model: int) -> bool:
            return of[gpu] == model and need_mib(gpu, job.workload, 0) <= room_mib[gpu]

        for model in range(len(machines.models)):
            missing = job.workers - sum([fits(gpu, model) for gpu in self._idle])
            if missing <= 0:
                continue
            units, freed = list[_StopUnit](), list[int]()
            for unit in self._units_after(place):
                gpus = sum([fits(gpu, model) for gpu in unit.gpus])
                units.append(unit)
                freed.append(gpus)
                if gpus == missing:
                    break
            enough = [k for k, gpus in enumerate(freed) if gpus >= missing]
            if enough:
                yield [units[min(enough, key=freed.__getitem__)]]
                continue
            if sum(freed) < missing:
                continue
            some = list[int]()
            for k, gpus in enumerate(freed):
                if gpus and sum(freed[j] for j in some) < missing:
                    some.append(k)
            for k in list(some):
                if sum(freed[j] for j in some) - freed[k] >= missing:
                    some.remove(k)
            yield [units[k] for k in some]

    @cached_property
    def _from_s(self) -> dict[int, tuple[float, float, int]]:
        """From when running jobs may be stopped by law and rules, their GPU times and positions.

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
                    found[job.number] = at_s, float(running.gpu_time[k]), k
        return found


class _Outlook:
    """The completion times that are expected with and without stops."""

    def __init__(self, draft: Draft, ends: Mapping[int, float]) -> None:
        self._state, self._ends = draft.state, ends
        self._waiting = draft.queue.in_order()
        self._until_s = draft.busy_until(ends)
        self._run = ready(len(self._waiting))
        self._idle, order = draft.idle_total, np.arange(len(self._waiting))
        self._as_it_is = self._total(self._waiting, order, self._until_s, self._idle)
        self._with: dict[tuple[int, ...], tuple[QueueColumns, Floats]] = {}

    def gain(self, job: Job, stopped: Sequence[Job]) -> float:
        """Return the weighted seconds of completion time that stops for a job save."""
        numbers = tuple([one.number for one in stopped])
        if numbers not in self._with:
            added = QueueColumns.of(self._state, stopped)
            until_s = self._until_s.copy()
            until_s[[gpu for one in stopped for gpu in one.gpus]] = -np.inf
            self._with[numbers] = self._waiting.joined([self._waiting, added]).in_order(), until_s
        queue, until_s = self._with[numbers]
        freed = len({gpu for one in stopped for gpu in one.gpus})
        order = np.arange(len(queue))
        lead = int(np.flatnonzero(queue.number == job.number)[0])
        order[1 : lead + 1], order[0] = order[:lead].copy(), lead
        total = self._total(queue, order, until_s, self._idle + freed)
        undisturbed = math.fsum(
            one.weight * (self._ends[one.number] - self._state.now) for one in stopped
        )
        return self._as_it_is + undisturbed - total

    def _total(self, queue: QueueColumns, order: Ints, until_s: Floats, idle: int) -> float:
        """Return the total weighted completion time of jobs that start in this order."""
        busy_s = np.sort(until_s[until_s > -np.inf]) - self._state.now
        free_s = np.concatenate([np.zeros(idle), busy_s])
        seconds, weight = queue.seconds[order], queue.weight[order]
        starts = layout(free_s, Asks(queue.workers[order], seconds, weight), self._run)
        return float((weight * (starts + seconds)).sum())
