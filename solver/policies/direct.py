"""Rounds of ``completion`` in which only jobs of one GPU start, solved on tables.

At most two jobs share a GPU and none speeds up another, so a plan puts each waiting job alone on an
idle GPU, on one with another, or beside a running job. With prices for jobs, idle GPUs and running
jobs such that no such group is worth more than its prices, no plan is worth more than the sum of
all prices: the dual of the assignment of jobs to GPUs gives prices, and the groups that are not in
it are checked against them:

- *Pairs of waiting jobs.* If some are worth more and there is one idle GPU, its best use is found
  by trying in the order of what the prices allow.
- *Several jobs beside a running job of several GPUs,* whose loss counts once. Of those on its GPUs,
  the one that costs it most decides the loss.
- *Gangs.* At the pace of the slowest of its GPUs, a gang pays at least the prices of the cheapest.

Where these prices prove nothing, the round is solved as any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.completion import Forecast
from dovetail.formulations.programs.placement import tightest_first
from dovetail.formulations.rules import most_bound, room_mib
from dovetail.instances.slowdowns.shares import NO_CAP
from dovetail.solver.pairing.matching import match_pairs
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.joins import Joins, There, latency_of
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.queue_columns import QueueColumns
from dovetail.solver.policies.state import State
from dovetail.solver.policies.state_round import Host

MOST_JOBS = 100
"""The largest number of waiting jobs for which all pairs are compared."""

_MOST_TRIED = 30
"""Uses of an idle GPU that are tried."""

_TOLERANCE = 1e-9


class DirectStart(NamedTuple):
    """A waiting job that starts: its position, its GPUs and its share there."""

    job: int
    gpus: tuple[int, ...]
    share: int


class Starts(NamedTuple):
    """The starts of a best plan, and what it is worth."""

    seats: Sequence[DirectStart]
    value: float


def direct_starts(
    draft: Draft,
    jobs: QueueColumns,
    forecast: Forecast,
    hosts: Sequence[Host],
    book: BelievedSlowdowns,
    lent_s: Mapping[int, float],
    gpu_price: float,
    last_s: float,
) -> Starts | None:
    """Return the starts of a best plan for a round, or None if prices prove none.

    Parameters
    ----------
    draft : Draft
        The pool and the decision so far.
    jobs : QueueColumns
        The waiting jobs that take part.
    forecast : Forecast
        Their forecast.
    hosts : sequence of Host
        The running jobs that others may join.
    book : BelievedSlowdowns
        The estimates for jobs that share a GPU.
    lent_s : mapping of int to float
        The reserved GPUs, and the pool's time until which each is lent.
    gpu_price : float
        The least price of a GPU second.
    last_s : float
        No job shares beyond this time.
    """
    idle = draft.idle_gpus()
    if not _suits(draft.state, jobs, hosts, book) or not lent_s.keys().isdisjoint(idle):
        return None
    if len({draft.state.machines.gpu_type[gpu] for gpu in idle}) > 1:
        return None
    inputs = _Inputs(draft.state, jobs, forecast, book, last_s)
    beside = _Beside.of(inputs, hosts) if hosts else _Beside.none(len(jobs))
    on_idle = _OnIdle.of(inputs, idle[0], gpu_price) if idle else None
    plan = _best(beside, on_idle, len(idle))
    if plan is None or not _parts_are_proven(beside, plan):
        return None
    more = _added_by_gangs(inputs, beside, on_idle, plan, len(idle))
    if all(adds < plan.least for adds in more.values()):
        seats = _seats(draft, hosts, idle, beside, on_idle, plan)
        return Starts([DirectStart(job, (gpu,), share) for job, gpu, share in seats], plan.value)
    most = sum(max(0.0, adds) for adds in more.values())
    anywhere = not any(job.by_node for job in jobs.jobs.tolist())
    if on_idle is not None and anywhere:
        found = _with_gangs_alone(draft, inputs, hosts, beside, on_idle, more)
        if found is not None and found.value >= plan.value + most + plan.least + 2 * plan.slack:
            return found
    return None


def _suits(
    state: State, jobs: QueueColumns, hosts: Sequence[Host], book: BelievedSlowdowns
) -> bool:
    """Return whether the tables say all that a round of these jobs and hosts does."""
    machines = state.machines
    return (
        len(jobs) <= MOST_JOBS
        and not (book.sets or book.speeds_up or machines.rules.start_capped)
        and machines.fewest_jobs > 1
        and state.hosts is None
        and len(machines.gpu_types) == len(machines.models)
        and all(len(state.modes[workload]) == 1 for workload in set(jobs.workload.tolist()))
        and all(job.shares is None for host in hosts for job in host.jobs)
    )


class _Inputs(NamedTuple):
    """What all tables of a round are made of; no job shares beyond ``last_s``."""

    state: State
    jobs: QueueColumns
    forecast: Forecast
    book: BelievedSlowdowns
    last_s: float

    @property
    def single(self) -> Bools:
        """The jobs that need one GPU."""
        return np.asarray(self.jobs.workers == 1)

    @property
    def accepted(self) -> Floats:
        """The largest bound that each job accepts."""
        return np.asarray(most_bound(self.jobs.gsla))

    def memory_mib(self, model: int) -> tuple[Floats, float]:
        """Return the memory of a worker of each job on a GPU of a model, and that of the GPU.

        The GPUs of a model are all alike.
        """
        offered = np.array(self.state.machines.memory_by_model[model][1:])
        need = self.book.least_need_mib(self.jobs.workload, offered)[0]
        return need, float(room_mib(offered)[0])


class _Beside(NamedTuple):
    """What a job of one GPU is worth beside each running job, and its split; -inf if it may not.

    ``value`` and ``split`` are (hosts, jobs), and hosts with one GPU come with a price for it.
    """

    there: There | None
    joins: Joins | None
    worth: Floats
    value: Floats
    split: Ints

    @classmethod
    def none(cls, jobs: int) -> _Beside:
        """Return the tables without a host."""
        nothing = np.empty((0, jobs))
        return cls(None, None, nothing[None], nothing, nothing.astype(np.int64))

    @classmethod
    def of(cls, inputs: _Inputs, hosts: Sequence[Host]) -> _Beside:
        """Return the tables for these hosts."""
        state, jobs, forecast, book, last_s = inputs
        there = There.of(state, hosts)
        joins = Joins.of(state, there, jobs, forecast, book, last_s)
        worth = joins.gain + joins.paid + joins.lost
        may = ~np.isnan(worth) & inputs.single
        if state.machines.rules.gang_sharing == "whole":
            may &= (there.held == 1)[:, None]
        worth = np.where(may, worth, -np.inf)
        split = worth.argmax(axis=0)
        value = np.take_along_axis(worth, split[None], axis=0)[0]
        return cls(there, joins, worth, value, split)


class _OnIdle(NamedTuple):
    """What jobs are worth on an idle GPU, alone and with another; -inf if they may not start there.

    Attributes
    ----------
    gpu_price : float
        The least price of a GPU second.
    work_s : (jobs,) float
        When each ends alone.
    whole, alone : (jobs,) float
        What each is worth alone on as many as it needs, and only of those of one GPU.
    pair, split : (jobs, jobs)
        The worth of pairs of such jobs, the first before the second, and the best split.
    share : (splits, 2) int
        The shares of the splits.
    gain, end : (2, splits, jobs, jobs) float
        What both gain, NaN if they may not share, and when they end.
    """

    gpu_price: float
    work_s: Floats
    whole: Floats
    alone: Floats
    pair: Floats
    split: Ints
    share: Ints
    gain: Floats
    end: Floats

    @classmethod
    def of(cls, inputs: _Inputs, gpu: int, gpu_price: float) -> _OnIdle:
        """Return the tables for GPUs like this one."""
        state, jobs, forecast, book, last_s = inputs
        model = state.machines.model[gpu]
        speed = np.array(state.speed[model])[jobs.workload]
        memory, room = inputs.memory_mib(model)
        work, due = jobs.work_s / speed, forecast.start_s + jobs.seconds
        rent = jobs.workers * (forecast.prices.until(due) - forecast.prices.until(forecast.start_s))

        def price(end: Floats) -> Floats:
            return np.maximum(forecast.from_idle(end, gpu_price), 0.0)

        alone = jobs.weight * (due - work) + rent - jobs.workers * price(work)
        may = (memory <= room) & (inputs.accepted >= 1)
        alone = np.where(may, alone, -np.inf)
        pairs = book.together(model)
        cell = np.ix_(np.arange(2), np.arange(len(pairs.share)), jobs.workload, jobs.workload)
        slowdown = pairs.slowdown[cell]
        left = np.stack(np.broadcast_arrays(work[:, None], work[None]))[:, None]
        after = book.at_last[jobs.workload].T
        after = np.stack(
            np.broadcast_arrays(
                after[pairs.share[:, 0]][:, :, None], after[pairs.share[:, 1]][:, None]
            )
        )
        whole = slowdown * left
        first = whole.min(axis=0)
        end = np.minimum(whole, first + np.maximum(0.0, left - first / slowdown) * after)
        last = end.max(axis=0)
        gain = np.stack(
            [
                jobs.weight[:, None] * (due[:, None] - end[0]) + rent[:, None],
                jobs.weight * (due - end[1]) + rent,
            ]
        )
        fits = np.triu(memory[:, None] + memory <= room, 1) & (last <= last_s)
        accepted, latency = inputs.accepted, latency_of(jobs)
        if np.isfinite(accepted).any():
            upper, tail = pairs.upper[cell], pairs.tail[cell]
            for k, of in enumerate((np.s_[:, None], np.s_[None])):
                bound = np.where(latency[of], tail[k], upper[k]) if latency.any() else upper[k]
                fits &= bound <= accepted[of]
        gain = np.where(fits, gain, np.nan)
        worth = gain[0] + gain[1] - price(last)
        single = inputs.single
        worth = np.where(np.isnan(worth) | ~(single[:, None] & single), -np.inf, worth)
        nothing = np.full((1, len(jobs), len(jobs)), -np.inf)
        worth = worth if len(worth) else nothing
        split = worth.argmax(axis=0)
        pair = np.take_along_axis(worth, split[None], axis=0)[0]
        one = np.where(inputs.single, alone, -np.inf)
        return cls(gpu_price, work, alone, one, pair, split, pairs.share, gain, end)


class _OneGpuPlan(NamedTuple):
    """A best plan of jobs of one GPU, and prices that prove it.

    ``host`` is the host that each job joins, or -1; ``on_idle`` the jobs on each idle GPU in use.
    ``slack`` is how much the sum of the prices is above the value, and ``idle_price`` the price of
    an idle GPU.
    """

    host: Ints
    on_idle: Sequence[tuple[int, ...]]
    value: float
    slack: float
    idle_price: float
    host_price: Floats
    job_price: Floats

    @property
    def least(self) -> float:
        """The least that a gang must be worth beyond its prices to be of use."""
        return -self.slack - _TOLERANCE * (1 + abs(self.value))


def _best(beside: _Beside, on_idle: _OnIdle | None, idle: int) -> _OneGpuPlan | None:
    """Return a best plan of jobs of one GPU, at most one beside each host; None if not proven.

    Of plans of equal worth, it is one in which no job shares that could be alone on an idle GPU.
    """
    plan = _matched(beside, on_idle, idle)
    if plan is None or on_idle is None:
        return plan
    alone, host, used = on_idle.alone, plan.host.copy(), list(plan.on_idle)
    rounding = _TOLERANCE * (1 + abs(plan.value))
    for job in np.flatnonzero(host >= 0).tolist():
        if len(used) < idle and alone[job] >= beside.value[host[job], job] - rounding:
            host[job] = -1
            used.append((job,))
    for k, jobs in enumerate(plan.on_idle):
        if len(jobs) == 1 or len(used) == idle:
            continue
        if alone[list(jobs)].sum() >= on_idle.pair[jobs] - rounding:
            used[k] = jobs[:1]
            used.append(jobs[1:])
    return plan._replace(host=host, on_idle=used)


def _matched(beside: _Beside, on_idle: _OnIdle | None, idle: int) -> _OneGpuPlan | None:
    """Return any best plan of jobs of one GPU; None if not proven."""
    hosts, jobs = beside.value.shape
    pairs = on_idle is not None and bool((on_idle.pair > 0).any())
    if on_idle is not None and pairs and idle == 1:
        return _with_one_idle(beside.value, on_idle)
    rows = beside.value
    if on_idle is not None:
        alone = np.repeat(on_idle.alone[None], min(idle, jobs + 1), axis=0)
        rows = np.concatenate([rows, alone])
    row, prices, of_job = assigned(rows)
    idle_price = float(prices[hosts:].max(initial=0.0))
    if on_idle is not None and pairs:
        over = on_idle.pair - idle_price - of_job[:, None] - of_job
        if (over > _TOLERANCE * (1 + np.abs(on_idle.pair))).any():
            return None if (beside.value > 0).any() else _in_pairs(on_idle, idle, hosts)
    value = float(rows[row[row >= 0], np.flatnonzero(row >= 0)].sum())
    slack = max(0.0, float(prices.sum() + of_job.sum()) - value)
    started = [(job,) for job in np.flatnonzero(row >= hosts).tolist()]
    host = np.where(row < hosts, row, -1)
    return _OneGpuPlan(host, started, value, slack, idle_price, prices[:hosts], of_job)


def _in_pairs(on_idle: _OnIdle, idle: int, hosts: int) -> _OneGpuPlan | None:
    """Return a best plan on idle GPUs only, in pairs."""
    pair = np.maximum(on_idle.pair, on_idle.pair.T)
    able = np.flatnonzero((pair > 0).any(axis=1) | (on_idle.alone > 0))
    pair, alone = pair[np.ix_(able, able)], on_idle.alone[able]
    found = match_pairs(
        np.where(pair > 0, pair, -np.inf), np.where(alone > 0, alone, -np.inf), idle
    )
    (dual,) = found.certificate.main
    if found.status != "optimal" or len(dual.jobs) != len(able):
        return None
    of_job = np.zeros(len(on_idle.alone))
    of_job[able[dual.jobs]] = dual.potential
    mates = [(job, int(mate)) for job, mate in enumerate(found.mate.tolist()) if mate >= job]
    started = [tuple(sorted({int(able[job]), int(able[mate])})) for job, mate in mates]
    slack = max(0.0, idle * dual.price + dual.constant - found.value)
    nowhere = np.full(len(of_job), -1)
    return _OneGpuPlan(nowhere, started, found.value, slack, dual.price, np.zeros(hosts), of_job)


def _with_one_idle(value: Floats, on_idle: _OnIdle) -> _OneGpuPlan | None:
    """Return a best plan with one idle GPU; None if too many uses of it have to be tried."""
    jobs = value.shape[1]
    row, prices, of_job = assigned(value)
    base = float(prices.sum() + of_job.sum())
    over = on_idle.pair - of_job[:, None] - of_job
    np.fill_diagonal(over, on_idle.alone - of_job)
    order = np.argsort(-over, axis=None, kind="stable")
    best = -math.inf
    found: tuple[Ints, tuple[int, ...]] = row, ()
    for nth, place in enumerate([*order[:_MOST_TRIED].tolist(), -1]):
        most = max(0.0, float(over.flat[place])) if place >= 0 else 0.0
        if base + most <= best + _TOLERANCE * (1 + abs(best)):
            break
        if nth == _MOST_TRIED:
            return None
        use = tuple(dict.fromkeys(divmod(place, jobs))) if over.flat[place] > 0 else ()
        worth = 0.0
        if use:
            worth = float(on_idle.alone[use[0]] if len(use) == 1 else on_idle.pair[use])
        others = row
        if (row[list(use)] >= 0).any():
            left = value.copy()
            left[:, list(use)] = -np.inf
            others, *_ = assigned(left)
        joined = np.flatnonzero(others >= 0)
        total = worth + float(value[others[joined], joined].sum())
        if total > best:
            best, found = total, (others, use)
        if not use:
            break
    host, use = found
    idle_price = max(0.0, float(over.max()))
    slack = max(0.0, base + idle_price - best)
    return _OneGpuPlan(host, [use] if use else [], best, slack, idle_price, prices, of_job)


def assigned(worth: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the assignment of the largest total worth, and prices that prove it.

    The rows and columns each have a price >= 0, and none is worth more to another than both cost.

    Parameters
    ----------
    worth : (rows, columns) float
        Worth of each pair; those that are not above 0 are left out.

    Returns
    -------
    row : (columns,) int
        The row of each column, or -1.
    of_row, of_column : float
        The prices.
    """
    rows, columns = worth.shape
    if columns < rows:
        column, of_column, of_row = assigned(worth.T)
        row = np.full(columns, -1)
        taken = np.flatnonzero(column >= 0)
        row[column[taken]] = taken
        return row, of_row, of_column
    cost = np.zeros((rows, columns + rows + 1))
    cost[:, :columns] = -np.maximum(worth, 0.0)
    end = columns + rows
    of_row, of_column = np.zeros(rows), np.zeros(end + 1)
    holder = np.full(end + 1, -1)
    for k in range(rows):
        holder[end], at = k, end
        least, before = np.full(end + 1, np.inf), np.full(end + 1, end)
        passed = np.zeros(end + 1, dtype=bool)
        least[end] = 0.0
        while True:
            passed[at] = True
            over = cost[holder[at]] - of_row[holder[at]] - of_column
            nearer = ~passed & (over < least)
            nearer[end] = False
            least[nearer], before[nearer] = over[nearer], at
            there = np.where(passed, np.inf, least)
            there[end] = np.inf
            at = int(there.argmin())
            step = there[at]
            of_row[holder[passed]] += step
            of_column[passed] -= step
            least[~passed] -= step
            if holder[at] < 0:
                break
        while at != end:
            holder[at] = holder[before[at]]
            at = int(before[at])
    row = np.where(worth.max(axis=0, initial=-np.inf) > 0, holder[:columns], -1)
    taken = np.flatnonzero(row >= 0)
    row[taken[~(worth[row[taken], taken] > 0)]] = -1
    return row, -of_row, -of_column[:columns]


def _parts_are_proven(beside: _Beside, plan: _OneGpuPlan) -> bool:
    """Return whether no further job on the other GPUs of a host adds to the plan.

    The loss of a running job of several GPUs counts once: the largest of the losses there. Prices
    above the value by a slack prove only what is worth less than them by as much.
    """
    if beside.there is None or beside.joins is None or beside.value.shape[1] < 2:
        return True
    several = np.flatnonzero(beside.there.gpus > 1)
    if not len(several):
        return True
    joins, may = beside.joins, np.isfinite(beside.worth[:, several])
    adds = np.where(may, (joins.gain + joins.paid)[:, several] - plan.job_price, -np.inf)
    lost = np.where(may, joins.lost[:, several], -np.inf)
    best = np.maximum(adds.max(axis=0), 0.0)
    for k, host in enumerate(several.tolist()):
        if not (best[k] > 0).any():
            continue
        room, price = int(beside.there.gpus[host]), plan.host_price[host] - plan.slack
        for split, job in np.argwhere(may[:, k] & (adds[:, k] > -np.inf)).tolist():
            loses = lost[split, k, job]
            others = np.where((lost[:, k] >= loses).any(axis=0), best[k], 0.0)
            others[job] = 0.0
            more = np.sort(others)[-(room - 1) :].sum()
            worth = adds[split, k, job] + loses + more
            if more > 0 and worth > price + _TOLERANCE * (1 + abs(worth)):
                return False
    return True


def _with_gangs_alone(
    draft: Draft,
    inputs: _Inputs,
    hosts: Sequence[Host],
    beside: _Beside,
    on_idle: _OnIdle,
    more: Mapping[int, float],
) -> Starts | None:
    """Return a plan in which gangs that add to the best one without them start alone."""
    trial, jobs, value = draft.copy(), inputs.jobs, 0.0
    alone, seats = on_idle.whole, list[DirectStart]()
    for gang in sorted(more, key=more.__getitem__, reverse=True):
        job = jobs.jobs[gang]
        gpus = idle_gpus(trial, job) if more[gang] > 0 and alone[gang] > 0 else None
        if gpus is not None:
            trial.start(job, gpus)
            seats.append(DirectStart(gang, tuple(gpus), NO_CAP))
            value += float(alone[gang])
    if not seats:
        return None
    idle = trial.idle_gpus()
    rest = _best(beside, on_idle if idle else None, len(idle))
    if rest is None:
        return None
    found = _seats(trial, hosts, idle, beside, on_idle, rest)
    seats += [DirectStart(job, (gpu,), share) for job, gpu, share in found]
    return Starts(seats, value + rest.value)


class _GangOptions(NamedTuple):
    """GPUs on which a worker of a gang could start, alike in each of n rows.

    Attributes
    ----------
    room : (n,) int
        The number of GPUs.
    end : (n,) float
        When the gang would end if all were such.
    until : (n,) float
        When the GPU would be idle without the gang.
    adds : (n,) float
        What the co-runner adds beyond its price and that of the GPU.
    part : (n,) float
        The part of the price beyond ``until`` that the gang pays.
    idle : (n,) bool
        Whether the GPU is idle.
    """

    room: Ints
    end: Floats
    until: Floats
    adds: Floats
    part: Floats
    idle: Bools


def _added_by_gangs(
    inputs: _Inputs, beside: _Beside, on_idle: _OnIdle | None, plan: _OneGpuPlan, idle: int
) -> dict[int, float]:
    """Return how much more than its prices each gang is worth at most, by its position.

    At the pace of each seat, a gang takes the cheapest seats that are no slower.
    """
    jobs, forecast = inputs.jobs, inputs.forecast
    until = forecast.prices.until
    found = {}
    for gang in np.flatnonzero(~inputs.single).tolist():
        workers = int(jobs.workers[gang])
        with_hosts = _beside_hosts(beside, plan, gang)
        on_gpus = _on_idle_gpus(jobs, on_idle, plan, gang, idle) if on_idle is not None else None
        parts = [each for each in (with_hosts, on_gpus) if each is not None]
        if not parts:
            break
        seats = _GangOptions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        due = forecast.start_s[gang] + jobs.seconds[gang]
        rent = workers * float(until(due) - until(forecast.start_s[gang]))
        pace = np.unique(seats.end)
        gain = jobs.weight[gang] * (due - pace) + rent
        last = np.maximum(seats.until, pace[:, None])
        price = until(last) - until(seats.until)
        if on_idle is not None:
            price = np.where(seats.idle, forecast.from_idle(last, on_idle.gpu_price), price)
        pays = seats.adds - seats.part * np.maximum(price, 0.0)
        pays = np.where(seats.end <= pace[:, None], pays, -np.inf)
        order = np.argsort(-pays, axis=1)
        pays, room = np.take_along_axis(pays, order, axis=1), seats.room[order]
        room = np.where(np.isfinite(pays), room, 0)
        taken = np.diff(np.minimum(np.cumsum(room, axis=1), workers), axis=1, prepend=0)
        paid = (taken * np.where(taken > 0, pays, 0.0)).sum(axis=1)
        adds = np.where(taken.sum(axis=1) == workers, gain + paid, -np.inf)
        found[gang] = float(adds.max(initial=-np.inf))
    return found


def _beside_hosts(beside: _Beside, plan: _OneGpuPlan, gang: int) -> _GangOptions | None:
    """Return the seats of a gang beside running jobs.

    What a running job of several GPUs loses counts once, and may be due to others. If these are
    worth no more than its price without this loss, each worker pays for its part.
    """
    there, joins = beside.there, beside.joins
    if there is None or joins is None:
        return None
    may = np.isfinite(beside.worth)
    others = np.where(may, joins.gain + joins.paid - plan.job_price, 0.0).max(axis=0)
    own = np.maximum(others, 0.0).sum(axis=1) <= plan.host_price
    one, lost = there.held == 1, joins.lost[:, :, gang]
    adds = np.where(one, lost - plan.host_price, np.where(own, lost / there.held, 0.0))
    split, host = np.nonzero(~np.isnan(joins.gain[:, :, gang]))
    return _GangOptions(
        there.gpus[host],
        joins.end[split, host, gang],
        joins.theirs[split, host, gang],
        adds[split, host],
        np.ones(len(host)),
        np.zeros(len(host), dtype=bool),
    )


def _on_idle_gpus(
    jobs: QueueColumns, on_idle: _OnIdle, plan: _OneGpuPlan, gang: int, idle: int
) -> _GangOptions:
    """Return the seats of a gang on idle GPUs: alone, and with each other job.

    Two gangs that start together pay half the price each.
    """
    before, after = np.s_[:, :gang, gang], np.s_[:, gang, gang + 1 :]
    own = np.concatenate([on_idle.end[1][before], on_idle.end[0][after]], axis=1)
    end = np.concatenate([on_idle.end[0][before], on_idle.end[1][after]], axis=1)
    gain = np.concatenate([on_idle.gain[0][before], on_idle.gain[1][after]], axis=1)
    split, place = np.nonzero(~np.isnan(gain))
    other = place + (place >= gang)
    single = jobs.workers[other] == 1
    adds = gain[split, place] - plan.job_price[other] - plan.idle_price
    adds = np.where(single, adds, -plan.idle_price / 2)
    return _GangOptions(
        np.append(np.where(single, 1, jobs.workers[other]), idle),
        np.append(own[split, place], on_idle.work_s[gang]),
        np.append(np.where(single, end[split, place], 0.0), 0.0),
        np.append(adds, -plan.idle_price),
        np.append(np.where(single, 1.0, 0.5), 1.0),
        np.ones(len(other) + 1, dtype=bool),
    )


def _seats(
    draft: Draft,
    hosts: Sequence[Host],
    idle: Sequence[int],
    beside: _Beside,
    on_idle: _OnIdle | None,
    plan: _OneGpuPlan,
) -> Iterator[tuple[int, int, int]]:
    """Yield each job of a plan with its GPU and share.

    GPUs come from the nodes that have the fewest of them.
    """
    free = tightest_first(idle, draft.state.machines.node)
    for jobs in plan.on_idle:
        gpu = next(free)
        if len(jobs) == 1:
            yield jobs[0], gpu, NO_CAP
            continue
        assert on_idle is not None
        shares = on_idle.share[on_idle.split[jobs]].tolist()
        yield from ((job, gpu, share) for job, share in zip(jobs, shares, strict=True))
    for job in np.flatnonzero(plan.host >= 0).tolist():
        assert beside.joins is not None
        host = plan.host[job]
        gpu = next(tightest_first(hosts[host].gpus, draft.state.machines.node))
        yield job, gpu, int(beside.joins.share[beside.split[host, job]])
