"""What waiting jobs gain and cost beside running jobs, and together, as tables.

These are the terms of the objective ``completion`` (``formulations.completion``) if at most two
jobs share a GPU: at each split of the shares, for each running job and each waiting one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.completion import Forecast
from dovetail.formulations.rules import Mode, most_bound, room_mib
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.queue_columns import (
    QueueColumns,
    floats_of,
    ints_of,
    remaining_work,
)
from dovetail.solver.policies.state import State
from dovetail.solver.policies.state_round import Host


class There(NamedTuple):
    """Running jobs without a cap, the only ones on the GPUs of their hosts, (n,) each.

    ``gpus`` is how many of their ``held`` GPUs may be joined, ``now`` their measured slowdown,
    ``factor`` and ``memory_mib`` those of their sub-batch (on the largest GPU of the model, which
    offers ``offered_mib``), ``accepted`` the largest bound that they accept, and ``speed`` that of
    all workloads there, (n, workloads).
    """

    model: Ints
    workload: Ints
    weight: Floats
    held: Ints
    gpus: Ints
    left_s: Floats
    now: Floats
    factor: Floats
    memory_mib: Floats
    offered_mib: Floats
    accepted: Floats
    latency: Bools
    speed: Floats

    @classmethod
    def of(cls, state: State, hosts: Sequence[Host]) -> There:
        """Return the running jobs of these hosts, one each."""
        of, jobs = state.machines.model, [host.jobs[0] for host in hosts]
        model = np.array([of[host.gpus[0]] for host in hosts], dtype=np.int64)
        workload, speed = ints_of("workload", jobs), np.array(state.speed)[model]
        own = speed[np.arange(len(jobs)), workload]
        modes = [state.modes[job.workload][job.mode] for job in jobs]
        offered = [state.machines.memory_by_model[k][1] for k in model.tolist()]
        return cls(
            model=model,
            workload=workload,
            weight=floats_of("weight", jobs),
            held=ints_of("workers", jobs),
            gpus=np.array([len(host.gpus) for host in hosts], dtype=np.int64),
            left_s=remaining_work(jobs, state.now) / own,
            now=own / floats_of("rate", jobs),
            factor=np.array([mode.slowdown_factor for mode in modes], dtype=np.float64),
            memory_mib=np.array(list(map(Mode.need_mib, modes, offered)), dtype=np.float64),
            offered_mib=np.array(offered, dtype=np.float64),
            accepted=most_bound(floats_of("gsla", jobs)),
            latency=np.array([job.latency for job in jobs], dtype=bool),
            speed=speed,
        )


class Joins(NamedTuple):
    """Waiting jobs that join running ones, (splits, hosts, jobs) each.

    ``gain`` is NaN where the two may not share.

    Attributes
    ----------
    share : (splits,) int
        The share at which each would start.
    gain : float
        What it gains, counted once, in the mode that slows it least.
    paid : float
        What it pays for each GPU beyond the end of the running job, at most 0.
    lost : float
        What the running job loses, counted once, at most 0.
    due, rent : (jobs,) float
        When each ends if it does not start now, and the price of its GPUs until then.
    end, theirs : float
        When the two end.
    """

    share: Ints
    gain: Floats
    paid: Floats
    lost: Floats
    due: Floats
    rent: Floats
    end: Floats
    theirs: Floats

    @classmethod
    def of(
        cls,
        state: State,
        there: There,
        jobs: QueueColumns,
        forecast: Forecast,
        book: BelievedSlowdowns,
        last_s: float,
    ) -> Joins:
        """Return the tables of these jobs, none of which shares beyond ``last_s``."""
        until, start_s = forecast.prices.until, forecast.start_s
        due = start_s + jobs.seconds
        rent = jobs.workers * (until(due) - until(start_s))
        now, left, factor = there.now[:, None], there.left_s[:, None], there.factor[:, None]
        held, gpus = there.held[:, None], there.gpus[:, None]
        share, theirs, mine = book.beside_uncapped(there.model, there.workload, jobs.workload)
        # As in a round, a measured slowdown is the least with others, too (``candidates.listing``).
        parted = np.maximum(theirs * factor, now)
        theirs = np.where(gpus < held, parted, theirs * np.maximum(factor, now))
        least = book.least_factor[jobs.workload]
        mine = mine * least
        work = jobs.work_s / there.speed[:, jobs.workload]
        whole = mine * work
        first = np.minimum(theirs * left, whole)
        end = np.minimum(theirs * left, first + np.maximum(0.0, left - first / theirs) * now)
        after = (least * book.at_last[jobs.workload].T[share])[:, None]
        last = np.minimum(whole, first + np.maximum(0.0, work - first / mine) * after)
        last = np.where(jobs.workers > gpus, whole, last)
        may = _may_share(there, jobs, book)
        may &= np.maximum(np.where(now * left <= last_s, end, -np.inf), last) <= last_s
        lost = there.weight[:, None] * (now * left - end) + held * (until(now * left) - until(end))
        paid = np.minimum(0.0, until(end) - until(np.maximum(end, last)))
        gain = np.where(may, jobs.weight * (due - last) + rent, np.nan)
        return cls(share, gain, paid, np.minimum(0.0, lost), due, rent, last, end)


def _may_share(there: There, jobs: QueueColumns, book: BelievedSlowdowns) -> Bools:
    """Return who may share by memory and gSLAs in the best mode, (splits, hosts, jobs)."""
    factor = book.least_factor[jobs.workload]
    need_mib = there.memory_mib[:, None] + book.least_need_mib(jobs.workload, there.offered_mib)
    may = (need_mib <= room_mib(there.offered_mib)[:, None])[None]
    asked, latency = most_bound(jobs.gsla), latency_of(jobs)
    for tails in (False, True):
        mine, theirs = latency == tails, there.latency == tails
        mine, theirs = mine & np.isfinite(asked), theirs & np.isfinite(there.accepted)
        if not (mine.any() or theirs.any()):
            continue
        bounds = book.bounds_beside_uncapped(there.model, there.workload, jobs.workload, tails)
        upper = np.maximum(bounds[0] * there.factor[:, None], there.now[:, None])
        may = may & (~theirs[:, None] | (upper <= there.accepted[:, None]))
        may &= ~mine | (bounds[1] * factor <= asked)
    return np.asarray(may)


def latency_of(jobs: QueueColumns) -> Bools:
    """Return which jobs are latency-critical."""
    return np.array([job.latency for job in jobs.jobs.tolist()], dtype=bool)
