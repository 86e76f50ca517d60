"""Dovetail's own policy: all starts of a round chosen together, by their worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.budget import Budget
from dovetail.formulations.completion import Completion
from dovetail.formulations.values import EnergyValues, FewestValues, JobValues
from dovetail.instances.slowdowns.shares import NO_CAP, share_of
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.direct import direct_starts
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.patience import Patience
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision, RoundProof
from dovetail.solver.policies.prospects import worth_joining
from dovetail.solver.policies.queue_columns import QueueColumns, waiting_work
from dovetail.solver.policies.queue_forecast import ForecastQueue, believed_ends
from dovetail.solver.policies.state import Job, Reservation, State
from dovetail.solver.policies.state_round import Host, StateRound, joinable, may_join, outside
from dovetail.solver.policies.stops import StopRules, StopSearch
from dovetail.solver.registry import Auto
from dovetail.solver.stages import bounded
from dovetail.solver.types import Limits, relative_gap

_OBJECTIVES: Mapping[str, type[JobValues]] = {
    "completion": Completion,
    "energy": EnergyValues,
    "fewest": FewestValues,
}

_MOST_STOPS = 8
"""Waiting jobs for which others are stopped in one decision."""

_AGAIN_S = 1.0
"""Seconds until the next round if jobs start one by one beyond the capacity of hosts."""


class _Window(NamedTuple):
    """The waiting jobs that take part in a round.

    Attributes
    ----------
    jobs : (n,) int
        Their positions in the queue.
    hosts : sequence of Host
        The running jobs that some of them may join.
    judged : int
        The number of jobs at the head of the queue with a decision: the jobs of the window, and
        those between them that no GPU has room for.
    is_full : bool
        Whether other jobs could also take part.
    """

    jobs: Ints
    hosts: Sequence[Host]
    judged: int
    is_full: bool


@dataclass
class Dovetail:
    """Choose all starts of a round together, by the completion time that each saves.

    Every decision is a round under the objective ``completion`` (``formulations.completion``),
    solved as in ``dovetail.solve``, or on tables where prices prove the best plan
    (``solver.policies.direct``): jobs start alone on idle GPUs, together on them, or with running
    jobs. If GPUs are scarce, their price is what the waiting jobs would pay. Measurements
    of running pairs override predictions, gSLAs are checked against upper bounds, and no sharing
    starts that is expected to end later than the last job without it.

    Running jobs stay where they are, unless the round leaves jobs waiting and it pays to stop
    running ones for them (``solver.policies.stops``): the total completion time of a forecast must
    fall by more than what the stop costs (restart, lost work) and ``stop_margin`` times that, and
    the stop must break neither a gSLA nor another rule. Another round then decides on the freed
    GPUs; the stops are made only if the job for which they are meant starts in it.

    ``Decision.proof`` covers the jobs that took part in the rounds (``RoundProof.jobs``), including
    those that no GPU has room for, given the stops. Starts of overdue jobs come before the round.

    The wait is bounded. For a job that has waited for its patience P (``patience_s`` plus
    ``patience_stretch`` times its expected run time), the GPUs that are expected to be idle first
    are reserved, unless they are reserved for jobs that have waited longer; on them, only jobs
    start that are expected to end in time. So while at most a tenth of the GPUs is reserved, a job
    waits no longer than P plus the time until the jobs end that were on its GPUs then or were
    expected to end in time. If more jobs are overdue than fit into that tenth, they are served one
    after the other, the longest waiting first: with n jobs before it, and D the longest time that
    any job is on GPUs, a job waits at most P + (n + 1) D. A job that is stopped waits again; none
    is stopped that has waited longer than P in all.

    Attributes
    ----------
    objective : str
        ``completion``, or ``energy``: each round first places the most weight and then maximises
        the throughput per watt of all running jobs, like a plan under this objective, proven by
        Dinkelbach's method (``solver.stages.best_ratio``); or ``fewest``: each round first places
        the most weight and then minimises the cost of the GPUs in use (their number if the cluster
        gives no costs), so jobs join running ones before they take idle GPUs. With both, the prices
        must be 0, and jobs share whenever that lets more of them run.
    gpu_price : float
        Seconds of completion time that a GPU second is worth when no job waits for it. At 0, jobs
        run alone while GPUs are idle. At higher values they share if that saves enough GPU time,
        and may then end later than the last job would have.
    energy_price : float
        Seconds of completion time that a kilowatt-hour is worth. At 0, energy is ignored. At higher
        values jobs share if that takes less energy than running alone, and may end later.
    patience_s : float
        Seconds that a job of zero length waits before GPUs are reserved for it; infinite for never.
    patience_stretch : float
        Additional wait, as a multiple of the job's expected run time.
    window : int
        Number of waiting jobs in a round in addition to the number of idle GPUs: the first of the
        queue (``completion.forecast_order``) that some GPUs have room for. If all of them start,
        the next ones follow in another round.
    time_limit_s : float
        Time limit of the search in a round, s; then the best choice so far is taken, with its
        bound. In a simulation these are seconds of work on a nominal processor
        (``formulations.budget``), so that the history does not depend on the machine.
    preempt : bool
        Whether running jobs that resume from checkpoints may be stopped for waiting ones; only
        with ``objective=completion``.
    stop_margin : float
        Stops must gain more than this many times their cost, net of the cost: the seconds of
        restarts and lost work, times the weight of the stopped job.
    stops_apart_s : float
        Least seconds between two stops of a job, if that is more than its owner allows (an hour
        unless the owner says otherwise).

    Raises
    ------
    ValueError
        When an option is out of range.
    """

    objective: str = "completion"
    gpu_price: float = 0.0
    energy_price: float = 0.0
    patience_s: float = 86400.0
    patience_stretch: float = 10.0
    window: int = 32
    time_limit_s: float = 1.0
    preempt: bool = True
    stop_margin: float = 10.0
    stops_apart_s: float = 0.0
    _patience: Patience = field(init=False)
    _book: BelievedSlowdowns | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.objective not in _OBJECTIVES:
            raise ValueError(f"objective must be one of {(*_OBJECTIVES,)}, got {self.objective!r}")
        least_of = {
            "gpu_price": 0,
            "energy_price": 0,
            "patience_s": 0,
            "patience_stretch": 0,
            "window": 1,
            "time_limit_s": 0,
            "stop_margin": 0,
            "stops_apart_s": 0,
        }
        for name, least in least_of.items():
            value = getattr(self, name)
            finite = name in ("gpu_price", "energy_price")
            if not value >= least or (finite and math.isinf(value)):
                raise ValueError(f"{name} must be >= {least}, got {value}")
        if not self._timed and (self.gpu_price or self.energy_price):
            rule = f"must be 0 with objective={self.objective}"
            raise ValueError(f"gpu_price and energy_price {rule}")
        self._patience = Patience(self.patience_s, self.patience_stretch)

    @property
    def _timed(self) -> bool:
        """Whether the objective knows when jobs end."""
        return _OBJECTIVES[self.objective].timed

    def decide(self, state: State) -> Decision:
        """Return the starts with the largest total gain."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        draft.release(state.reserved_gpus)  # they are lent until a given time
        ends = believed_ends(state)
        reserved = self._patience.reserved(state, ends)
        lent_s = _serve_overdue(draft, ends, reserved)
        if not self._timed:  # no reserved GPU is lent
            lent_s = dict.fromkeys(lent_s, state.now)
        proof = self._start_windows(draft, ends, lent_s)
        stoppable_s = math.inf
        if self.preempt and self._timed:
            draft, proof, stoppable_s = self._stop(draft, ends, lent_s, proof)
        if not state.running and draft.idle_total == sum(state.idle_count):
            _start_first(draft, ForecastQueue.of(draft, ends, self.gpu_price).jobs)
        wake_s = self._patience.next_s(state)
        if not math.isinf(stoppable_s):
            wake_s = min(wake_s or math.inf, stoppable_s)
        if state.hosts is not None and 0 < draft.idle_total < sum(state.idle_count):
            # Beyond the capacity of a host, one more job may start in each round.
            wake_s = min(wake_s or math.inf, state.now + _AGAIN_S)
        return draft.decision(wake_s, proof)._replace(reserved=reserved)

    def _start_windows(
        self,
        draft: Draft,
        ends: dict[int, float],
        lent_s: Mapping[int, float],
    ) -> RoundProof | None:
        """Add the best starts of the first window, and of the next while all jobs of one start."""
        state, proof = draft.state, None
        while len(draft.queue):
            queue = ForecastQueue.of(draft, ends, self.gpu_price)
            window = self._window(draft, queue.columns, lent_s)
            before = len(draft.decision().starts)
            found = self._start_best(draft, queue, window, lent_s)
            for job, gpus, *_ in draft.decision().starts[before:]:
                speed = state.speed[state.machines.model[gpus[0]]][job.workload]
                ends[job.number] = state.now + float(waiting_work([job], state.now)[0]) / speed
            proof = found if proof is None else proof.followed_by(found)
            numbers = queue.columns.number[window.jobs].tolist()
            if not window.is_full or any(map(draft.waits, numbers)):
                break
        return proof

    def _stop(
        self,
        draft: Draft,
        ends: dict[int, float],
        lent_s: Mapping[int, float],
        proof: RoundProof | None,
    ) -> tuple[Draft, RoundProof | None, float]:
        """Stop jobs for those that still wait, as long as that pays, each time with a round.

        Returns the new draft and proof, and when more jobs may be stopped.
        """
        rules = StopRules(self.stop_margin, self.stops_apart_s, self._patience.of)
        for _ in range(_MOST_STOPS):
            search = StopSearch(draft, ends, lent_s, rules)
            stops = search.best()
            if stops is None:
                return draft, proof, search.next_s()
            trial, then = draft.copy(), dict(ends)
            for job in stops.jobs:
                trial.stop(job)
            more = self._start_windows(trial, then, lent_s)
            if trial.waits(stops.waiting.number):
                break  # the round has better starts for the GPUs
            if proof is not None and more is not None:
                # The jobs that still wait take part again.
                jobs = max(proof.jobs, len(draft.decision().starts) + more.jobs)
                proof = proof.followed_by(more)._replace(jobs=jobs)
            draft, ends = trial, then
        return draft, proof, math.inf

    def _window(self, draft: Draft, queue: QueueColumns, lent_s: Mapping[int, float]) -> _Window:
        """Return the first jobs of the queue that some GPUs have room for, and their hosts."""
        book = self._book
        if book is None or not book.is_of(draft.state):
            book = self._book = BelievedSlowdowns(draft.state)
        size = self.window + draft.idle_total
        all_alone = not book.speeds_up and self._all_alone(draft, queue, lent_s)
        hosts = [] if all_alone else joinable(draft, lent_s, book.most)
        gpus = np.array([len(host.gpus) for host in hosts], dtype=int)
        able, useful, seen = list[int](), np.zeros(len(hosts), dtype=bool), 0
        stopped = [job.number for job in draft.stops]
        while len(able) < size and seen < len(queue):
            some = queue.take(slice(seen, seen + size))
            joins = may_join(draft.state, some, hosts, book)
            room = draft.idle_total + gpus @ joins
            fits = np.flatnonzero((some.workers <= room) & ~np.isin(some.number, stopped))
            fits = fits[: size - len(able)]
            able += (seen + fits).tolist()
            useful |= joins[:, fits].any(axis=1)
            seen += len(some)
        taken = [host for host, wanted in zip(hosts, useful.tolist(), strict=True) if wanted]
        is_full = len(able) == size
        judged = able[-1] + 1 if is_full else len(queue)
        return _Window(np.array(able, dtype=np.int64), taken, judged, is_full)

    def _start_best(
        self,
        draft: Draft,
        queue: ForecastQueue,
        window: _Window,
        lent_s: Mapping[int, float],
    ) -> RoundProof:
        """Add the best starts of a window's jobs to the decision."""
        if not len(window.jobs):
            return RoundProof(0.0, 0.0, 0.0, window.judged)
        assert self._book is not None
        state, hosts, places = draft.state, window.hosts, window.jobs
        if self._timed and not self.energy_price:
            columns, forecast = queue.columns.take(places), queue.forecast.take(places)
            last_s = forecast.last_to_share_s(self.gpu_price, self.energy_price)
            best = direct_starts(
                draft, columns, forecast, hosts, self._book, lent_s, self.gpu_price, last_s
            )
            if best is not None:
                for job, gpus, share in best.seats:
                    shares = None if share == NO_CAP else (share_of(share),)
                    draft.start(columns.jobs[job], gpus, shares)
                return RoundProof(best.value, best.value, 0.0, window.judged)
            idle = draft.idle_total
            hosts, able = worth_joining(state, idle, columns, forecast, hosts, self._book, last_s)
            places = places[able]
            if not len(places):
                return RoundProof(0.0, 0.0, 0.0, window.judged)
        jobs = queue.jobs[places].tolist()
        of_state = StateRound(draft, jobs, hosts, self._book, lent_s)
        values: JobValues
        if self._timed:
            forecast = queue.forecast.take(places)
            values = Completion(of_state.round, forecast, self.gpu_price, self.energy_price)
        else:
            values = _OBJECTIVES[self.objective](of_state.round)
            values.outside = outside(draft, hosts, self._book, values)
        limit = None if math.isinf(self.time_limit_s) else self.time_limit_s
        limits = Limits(Budget.of(limit, draft.state.clock))
        at_paces = self._timed  # a heuristic, by worth alone
        choice = bounded(Auto(at_paces).solve(values, limits))
        of_state.carry_out(choice, draft)
        gap = relative_gap(choice.bound, choice.value)
        value, bound = values.sign * choice.value, values.sign * choice.bound
        return RoundProof(value, bound, gap, window.judged)

    def _all_alone(self, draft: Draft, queue: QueueColumns, lent_s: Mapping[int, float]) -> bool:
        """Return whether all jobs start alone on idle GPUs that are free of charge and equal.

        If no job speeds up another, none gains from joining a running job then, so running jobs
        need not take part, unless a co-runner may cost a job less than its cap or its sub-batch
        does.
        """
        return (
            not lent_s
            and self._timed
            and self.gpu_price == self.energy_price == 0
            and int(queue.workers.sum()) <= draft.idle_total
            and len(draft.state.machines.gpu_types) == 1
            and draft.state.hosts is None
            and all(job.shares is None and job.mode == 0 for job in draft.state.running.values())
        )


def _serve_overdue(
    draft: Draft, ends: dict[int, float], reserved: Mapping[int, Reservation]
) -> dict[int, float]:
    """Start overdue jobs whose GPUs are idle; return until when the GPUs of the others are lent."""
    state, lent_s = draft.state, dict[int, float]()
    for number, kept in reserved.items():
        job = state.pending.get(number)
        idle = all(draft.is_idle(gpu) for gpu in kept.gpus)
        if job is not None and idle and draft.hosts_bear(job, kept.gpus):
            draft.start(job, kept.gpus)
            speed = state.speed[state.machines.model[kept.gpus[0]]][job.workload]
            ends[number] = state.now + job.remaining(state.now) / speed
            continue
        machines, lent = state.machines, set(kept.gpus)
        if idle and state.hosts is not None:
            # Their hosts are busy with other jobs: no more start there until this job can.
            lent.update(*(machines.node_gpus[machines.node[gpu]] for gpu in kept.gpus))
        lent_s.update(dict.fromkeys(lent, kept.until_s))
    return lent_s


def _start_first(draft: Draft, jobs: Iterable[Job]) -> None:
    """Start the first job that fits, whatever its worth: otherwise nothing would ever happen."""
    for job in jobs:
        gpus = idle_gpus(draft, job)
        if gpus is not None:
            draft.start(job, gpus)
            return
