"""The objective ``completion``: seconds of weighted completion time that starting a job saves.

The queue is laid out on the GPUs as they are expected to become idle, each job alone. This forecast
says when a job starts if it does not start now, and what a second of a GPU is worth to the waiting
jobs (``prices``). With weight w, workers p, seconds alone r, forecast start t and P(x) the price of
a GPU from now until x, a pending job that is slowed by s gains

    w (t + r) + p (P(t + r) - P(t)) - w s r,

the cost of waiting less its own completion; a running job loses the amount by which its slowdown
increases

    w s r + p P(s r).

For two jobs that share, s r is the end in two phases: until the first of them ends, and after it
(Castor, 2025, equations 16 to 19). In groups of three and more, no job is assumed to speed up
except running jobs, which continue as before once all newcomers have ended. A group costs the price
of its GPU from the time at which the GPU would be idle until its last job ends. A gang ends with
its slowest worker: its smallest gain counts. A running job that no job joins gains 0. No job shares
beyond the end of the last job of the forecast; this does not apply to a running job that would end
later anyway.

If a joule has a price, a pending job gains the price of the energy it takes alone, and a group
costs the price of the energy that its GPU takes in addition to the energy of the running jobs
there: the power of all until the first ends, then the power of each of the others alone.

Value and optimum are exact for this definition; three things in it are estimates. The forecast
ignores sharing and arrivals, and uses each job's best GPU model only. A group ignores a gang's
other GPUs: the end of the co-runner on one of them speeds the gang up, though a co-runner on
another may still slow it, so the ends of gangs with several co-runners are too early. Only a
starting gang that must get different co-runners, because it has more workers than there are equal
GPUs, is assumed to be slowed until it ends. A share without a known throughput costs nothing alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dovetail.formulations.arrays import Floats, Ints, across
from dovetail.formulations.prices import ROUNDING, Asks, Compiler, Ends, GpuPrice, layout
from dovetail.formulations.rounds import Round, resident_power
from dovetail.formulations.values import JobValues, Rows

CRITICAL = 2 / 3
"""Part of the least time to the end of all work above which a job is critical for it."""

_LEAST_WEIGHT = 1e-9
_JOULES_PER_KWH = 3.6e6
_FAR_S = 3600.0
"""Assumed seconds to the next chance of a job if no running job's end brings one."""


def forecast_order(work: Floats, workers: Ints, weight: Floats, held: Floats, gpus: int) -> Ints:
    """Return the order in which waiting jobs are expected to start.

    First come the jobs that determine the end of all work: they need more than ``CRITICAL`` of the
    time in which all jobs could end at best, which is at least their GPU time divided by the GPUs
    and at least the time of the longest job (Graham, *Bounds for certain multiprocessing
    anomalies*, Bell System Technical Journal 45, 1966). If they started last, they would add their
    whole length to it. Then come the others in the order of weighted shortest GPU time.

    Parameters
    ----------
    work : (n,) float
        Seconds that each job needs alone.
    workers, weight : (n,)
        GPUs and weight of each job.
    held : (m, 2) float
        Seconds and GPUs of each running job.
    gpus : int
        The number of GPUs.
    """
    gpu_time = work * workers
    total = gpu_time.sum() + held.prod(axis=1).sum()
    longest = max(work.max(initial=0.0), held[:, 0].max(initial=0.0))
    critical = work >= CRITICAL * max(longest, total / max(1, gpus)) * (1 - ROUNDING)
    weighted = gpu_time / np.maximum(weight, _LEAST_WEIGHT)
    return np.lexsort((np.arange(len(work)), weighted, ~critical))


@dataclass(frozen=True)
class Forecast:
    """When waiting jobs start if each runs alone in its turn, and the resulting prices of GPUs.

    Attributes
    ----------
    start_s : (n,) float
        When each job is expected to start if it does not start now, in seconds from now.
    prices : GpuPrice
        The price of a GPU that the whole queue would pay.
    last_s : float
        When the last job is expected to end.
    claimed_s : float
        When the first job that must wait would start.
    """

    start_s: Floats
    prices: GpuPrice
    last_s: float
    claimed_s: float

    @classmethod
    def of(
        cls,
        asks: Asks,
        idle: int,
        busy_s: Floats,
        gpu_price: float = 0.0,
        run: Compiler | None = None,
    ) -> Forecast:
        """Return the forecast of a queue, in the expected order of starts.

        Parameters
        ----------
        asks : Asks
            The n waiting jobs.
        idle : int
            The number of GPUs that are idle now.
        busy_s : (m,) float
            Seconds until each other GPU is expected to be idle, ascending.
        gpu_price : float
            The least price of a GPU second.
        run : Compiler, optional
            Compiles the loops; by default they are plain Python.
        """
        seconds = np.asarray(asks.seconds, dtype=np.float64)
        starts = layout(np.concatenate([np.zeros(idle), busy_s]), asks, run)
        now = starts <= 0
        last = max(float((starts + seconds).max(initial=0.0)), float(busy_s.max(initial=0.0)))
        start = np.where(now, _next_chances(np.asarray(asks.workers), seconds, busy_s), starts)
        claimed = float(starts[starts > 0].min(initial=math.inf))
        return cls(start, GpuPrice(starts, asks, gpu_price, run), last, claimed)

    def take(self, which: Ints) -> Forecast:
        """Return the forecast of these jobs, at the same prices."""
        return replace(self, start_s=self.start_s[which])

    def last_to_share_s(self, gpu_price: float, energy_price: float) -> float:
        """Return the time beyond which no job shares at these prices."""
        return self.last_s * (1 + ROUNDING) if gpu_price == energy_price == 0 else math.inf

    def from_idle(self, end: Floats, gpu_price: float) -> Floats:
        """Return the price of an idle GPU until ``end``.

        Jobs that could use it now compete for it in this round. Other jobs pay for it only from the
        time at which the next of them would start.
        """
        before = np.minimum(end, self.claimed_s)
        later = self.prices.until(end) - self.prices.until(before)
        return np.asarray(later + gpu_price * before)


def _next_chances(workers: Ints, seconds: Floats, busy_s: Floats) -> Floats:
    """Return when enough GPUs become idle for jobs that leave the idle GPUs to others."""
    enough = workers <= len(busy_s)
    if not len(busy_s):
        return _FAR_S + seconds
    at = busy_s[np.minimum(workers, len(busy_s)) - 1]
    return np.where(enough, np.maximum(1.0, at), _FAR_S + seconds)


class Completion(JobValues):
    """The objective ``completion`` of a round (see the module's text).

    Parameters
    ----------
    compiled : Round
        The round; every job has ``remaining_s``.
    queue : Forecast, optional
        The forecast of the round's pending jobs in their order, with the prices of a queue that may
        be longer. By default the forecast of the round's own queue.
    gpu_price : float
        Seconds of completion time that a GPU second is worth if no job waits for it. If this and
        ``energy_price`` are 0, no sharing starts that would end later than the last job without it.
    energy_price : float
        Seconds of completion time that a kilowatt-hour is worth; if above 0, every power must be
        known.
    """

    name = "completion"
    judged_by = "completion"
    reads_remaining = True
    grouped = True
    timed = True
    relative = True
    by_kind = True
    category = "completion"
    rule = "they would end later than the forecast end of all jobs alone"

    def __init__(
        self,
        compiled: Round,
        queue: Forecast | None = None,
        gpu_price: float = 0.0,
        energy_price: float = 0.0,
    ) -> None:
        super().__init__(compiled)
        self._gpu_price = gpu_price
        self._joule_price = energy_price / _JOULES_PER_KWH
        self._forecast = queue or forecast(compiled, gpu_price)
        self._base = len(compiled.variants)
        jobs = compiled.jobs
        self._left = {m: jobs.remaining_s / compiled.speed[m] for m in compiled.models}
        self._hold = jobs.holds.astype(np.float64)
        pending = np.flatnonzero(~jobs.running)
        start, until = self._forecast.start_s, self._forecast.prices.until
        fastest = _fastest(compiled)
        self._due, self._rent = np.zeros(len(compiled)), np.zeros(len(compiled))
        self._due[pending] = start + fastest[pending]
        self._rent[pending] = jobs.workers[pending] * (until(self._due[pending]) - until(start))
        for job, (gpus, _, _) in jobs.held.items():
            model = compiled.models[compiled.machines.model[gpus[0]]]
            self._due[job] = compiled.slowdown_now[job] * self._left[model][job]
        self.by_itself = np.where(jobs.running, 0.0, self.weight * self._due + self._rent)
        self._last_s = self._forecast.last_to_share_s(gpu_price, energy_price)
        self._power_w = compiled.power_alone
        # For one worker; running jobs take their energy in any case.
        self._energy_j = np.where(jobs.running, 0.0, self._power_w * fastest)
        self._latest: tuple[Rows, Floats] | None = None

    def gain(self, job: Ints, slowdown: Floats, model: str) -> Floats:
        """Return the gain of each job at its slowdown as if it shared until it ends."""
        return self._gain_at(job, slowdown * self._left[model][job])

    def gains(self, rows: Rows) -> Floats:
        """Return the gain of each job of a group."""
        return self._gain_at(rows.job, self._ends(rows))

    def value(self, rows: Rows) -> Floats:
        """Return minus the price of the GPU of each group, NaN if the group would end too late."""
        compiled, job = self.round, rows.job
        end, running = self._ends(rows), compiled.jobs.running[job]
        last, until = across(np.maximum, end), self._forecast.prices.until
        price = np.empty(len(last))
        joined = across(np.logical_or, running)
        free = across(np.maximum, np.where(running[joined], end[joined], 0.0))
        price[joined] = until(last[joined]) - until(free)
        price[~joined] = self._forecast.from_idle(last[~joined], self._gpu_price)
        price = np.maximum(price, 0.0)  # interpolation may be off by rounding
        if self._joule_price:
            price += self._joule_price * self._added_energy(rows, end)
        late = last > compiled.classes.until_s[rows.gpu_class]
        if job.shape[1] > 1:
            # A running job that ends after all others even unchanged does not count.
            counts = ~running | (self._due[job] <= self._last_s)
            late |= across(np.logical_or, counts & (end > self._last_s))
        return np.where(late & ~across(np.logical_and, running), np.nan, -price)

    def ends(self, workload: Ints, share: Ints) -> Ends | None:
        """Return what decides the values of pairs on one GPU each, or None if more does.

        Parameters
        ----------
        workload : (k,) int
            Workloads.
        share : (s,) int
            The shares of ``Ends.after``.
        """
        compiled, jobs = self.round, self.round.jobs
        plain = (
            type(self).gains is Completion.gains
            and type(self).value is Completion.value
            and type(self).may_share is Completion.may_share
            and not self._joule_price
            and np.isinf(compiled.classes.until_s).all()
            and np.isnan(jobs.slowdown).all()
            and (jobs.workers == 1).all()
            and (jobs.holds <= 1).all()
        )
        if not plain:
            return None
        prices = self._forecast.prices
        return Ends(
            left=self._left[compiled.only_kind.model],
            due=self._due,
            rent=self._rent,
            hold=self._hold,
            after=compiled.at_last[np.ix_(workload, share)],
            times=prices.times,
            paid=prices.paid,
            floor=prices.floor,
            claimed=self._forecast.claimed_s,
            last=self._last_s,
        )

    def _gain_at(self, job: Ints, end: Floats) -> Floats:
        due, until = self._due[job], self._forecast.prices.until
        # Differences are taken first, so that an unchanged running job gains exactly 0.
        gain = self.weight[job] * (due - end) + self._rent[job]
        if self._hold[job].any():
            gain += self._hold[job] * (until(due) - until(end))
        if self._joule_price:
            gain += self._joule_price * self._energy_j[job] * self.round.jobs.workers[job]
        return np.asarray(gain)

    def _added_energy(self, rows: Rows, end: Floats) -> Floats:
        """Return the joules that each group takes in addition to those of its running jobs."""
        compiled, job = self.round, rows.job
        running = compiled.jobs.running[job]
        own = self._power_w[job]
        held = np.array(
            [
                resident_power(compiled, gpus[0]) if there else 0.0
                for gpus, there in zip(compiled.classes.gpus, compiled.classes.on, strict=True)
            ]
        )[rows.gpu_class]
        due = np.where(running, self._due[job], np.inf)
        before = _energy(np.where(running, own, 0.0), held, due)
        added = np.maximum(0.0, _energy(own, rows.power_w, end) - before)
        return np.where(running.all(axis=1), 0.0, added)

    def _ends(self, rows: Rows) -> Floats:
        """Return when each job of a group ends, seconds from now.

        The ends of the latest rows are cached: gains and value of the same rows are computed in
        turn.
        """
        if self._latest is None or self._latest[0] is not rows:
            self._latest = rows, self._ends_of(rows)
        return self._latest[1]

    def _ends_of(self, rows: Rows) -> Floats:
        job = rows.job
        model = self.round.classes.model[rows.gpu_class]
        if len(self.round.models) == 1:
            left = self._left[self.round.models[0]][job]
        else:
            left = np.empty(job.shape)
            for k, name in enumerate(self.round.models):
                left[model == k] = self._left[name][job[model == k]]
        whole = rows.slowdown * left
        jobs = self.round.jobs
        running = jobs.running[job]
        if job.shape[1] != 2:
            joined = across(np.maximum, np.where(running, 0.0, whole))[:, None]
            as_before = joined + (left - joined / rows.slowdown) * jobs.slowdown[job]
            return np.where(running & (joined < whole), np.fmin(whole, as_before), whole)
        first = across(np.minimum, whole)[:, None]
        rest = np.maximum(0.0, left - first / rows.slowdown)
        # A running job continues at its measured slowdown.
        measured = jobs.slowdown[job]
        alone = self.round.slowdowns_alone(job, rows.variant, rows.share)
        after = np.where(np.isnan(measured), alone, measured)
        end = np.minimum(whole, first + rest * after)
        # A gang with GPUs of several classes is slowed by its co-runners one after the other.
        spread = ~running & (
            (jobs.workers[job] > self.round.classes.alike[rows.gpu_class][:, None])
            | (rows.variant >= self._base)
        )
        # For a pair that already runs, the present slowdown is used.
        both_run = across(np.logical_and, running)[:, None]
        return np.where(spread | both_run, whole, end)


def forecast(compiled: Round, gpu_price: float = 0.0) -> Forecast:
    """Return the forecast of a round's queue, in the order of its pending jobs."""
    jobs, machines = compiled.jobs, compiled.machines
    fastest = _fastest(compiled)
    pending = np.flatnonzero(~jobs.running)
    busy: dict[int, float] = {}
    held = []
    for job, (gpus, _, _) in jobs.held.items():
        left = jobs.remaining_s[job] / compiled.speed[machines.models[machines.model[gpus[0]]]][job]
        held.append((left, len(gpus)))
        for gpu in gpus:
            busy[gpu] = max(busy.get(gpu, 0.0), left * compiled.slowdown_now[job])
    order = forecast_order(
        fastest[pending],
        jobs.workers[pending],
        jobs.weight[pending],
        np.array(held, dtype=np.float64).reshape(-1, 2),
        len(machines),
    )
    queue = pending[order]
    asks = Asks(jobs.workers[queue], fastest[queue], jobs.weight[queue])
    idle = len(machines) - len(busy)
    found = Forecast.of(asks, idle, np.sort(np.array(list(busy.values()))), gpu_price)
    return found.take(np.argsort(order))


def _energy(own: Floats, together: Floats, end: Floats) -> Floats:
    """Return the energy of groups in joules until their last job ends, (n,).

    Parameters
    ----------
    own : (n, size) float
        Watts of each member alone; 0 if a place does not count.
    together : (n,) float
        Watts of all members together.
    end : (n, size) float
        When each ends, in seconds; inf if a place does not count.
    """
    first = end.min(axis=1)
    first = np.where(np.isinf(first), 0.0, first)
    rest = np.where(np.isinf(end), 0.0, end - first[:, None])
    return np.asarray(together * first + (own * rest).sum(axis=1))


def _fastest(compiled: Round) -> Floats:
    """Return the seconds that each job needs alone on the model that suits it best."""
    if not compiled.models:  # a live cluster may have no GPU yet
        return compiled.jobs.remaining_s
    speeds = [compiled.speed[model] for model in compiled.models]
    return np.asarray(compiled.jobs.remaining_s / np.max(speeds, axis=0))
