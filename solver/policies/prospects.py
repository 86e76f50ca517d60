"""Running jobs that no waiting job gains from joining: they need not take part in a round.

This bounds what jobs gain under the objective ``completion`` if at most two share a GPU and none
speeds up another. Then no GPU has a value above 0 and no running job gains, so a plan is worth no
more than what its starting jobs gain, less what each pays for its own GPUs. If a job pays more for
a GPU than it gains, no best plan starts it there: without it no other job gains less. It also pays
for what a running job loses on its only GPU; what a job on several GPUs loses may be due to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.completion import Forecast
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.queue_columns import (
    QueueColumns,
    floats_of,
    ints_of,
    remaining_work,
)
from dovetail.solver.policies.state import State
from dovetail.solver.policies.state_round import Host

_ROUNDING = 1e-9


def worth_joining(
    state: State,
    idle: int,
    jobs: QueueColumns,
    forecast: Forecast,
    hosts: Sequence[Host],
    book: BelievedSlowdowns,
) -> tuple[Sequence[Host], Bools]:
    """Return the hosts and jobs that matter in a round that maximises ``completion``.

    The price of energy is 0. All hosts matter if a waiting gang may gain: how gangs spread over
    some GPUs of others is searched at a few paces, which depend on all hosts.

    Parameters
    ----------
    state : State
        The pool.
    idle : int
        The number of idle GPUs.
    jobs : QueueColumns
        The waiting jobs of the round.
    forecast : Forecast
        Their forecast.
    hosts : sequence of Host
        The running jobs that they may join.
    book : BelievedSlowdowns
        The estimates for jobs that share a GPU.

    Returns
    -------
    hosts : sequence of Host
        Some of the hosts, in their order.
    able : (n,) bool
        The jobs that some best plan may start.
    """
    fits = jobs.workers <= idle
    if not hosts:
        return hosts, fits
    capped = any(job.shares is not None for host in hosts for job in host.jobs)
    if book.sets or book.speeds_up or capped or state.hosts is not None:
        return hosts, np.ones(len(jobs), dtype=bool)
    there = _There.of(state, hosts)
    most = _Most.of(there, jobs, forecast, book)
    if not most.useful(jobs.workers, idle, there.gpus, most.shared).any():
        return [], fits
    useful = most.useful(jobs.workers, idle, there.gpus, most.own)
    able = fits | useful.any(axis=0)
    if useful[:, jobs.workers > 1].any():
        return hosts, able
    return [hosts[k] for k in np.flatnonzero(useful.any(axis=1)).tolist()], able


class _There(NamedTuple):
    """Running jobs without a cap, the only ones on the GPUs of their hosts, (n,) each.

    ``gpus`` is how many of their ``held`` GPUs may be joined, ``now`` their measured slowdown,
    ``factor`` that of their sub-batch, and ``speed`` that of all workloads there, (n, workloads).
    """

    model: Ints
    workload: Ints
    weight: Floats
    held: Ints
    gpus: Ints
    left_s: Floats
    now: Floats
    factor: Floats
    speed: Floats

    @classmethod
    def of(cls, state: State, hosts: Sequence[Host]) -> _There:
        """Return the running jobs of these hosts, one each."""
        of, jobs = state.machines.model, [host.jobs[0] for host in hosts]
        model = np.array([of[host.gpus[0]] for host in hosts], dtype=np.int64)
        workload, speed = ints_of("workload", jobs), np.array(state.speed)[model]
        own = speed[np.arange(len(jobs)), workload]
        return cls(
            model=model,
            workload=workload,
            weight=floats_of("weight", jobs),
            held=ints_of("workers", jobs),
            gpus=np.array([len(host.gpus) for host in hosts], dtype=np.int64),
            left_s=remaining_work(jobs, state.now) / own,
            now=own / floats_of("rate", jobs),
            factor=np.array([state.modes[job.workload][job.mode].slowdown_factor for job in jobs]),
            speed=speed,
        )


class _Most(NamedTuple):
    """What waiting jobs (columns) gain and pay at most if they join running jobs (rows).

    Attributes
    ----------
    alone : (jobs,) float
        What each gains alone on idle GPUs.
    gain : (hosts, jobs) float
        What each gains, counted once; NaN if the two may not share.
    own : (hosts, jobs) float
        What it pays for each GPU, at most 0, whatever other jobs do.
    shared : (hosts, jobs) float
        The same with an equal part of what a running job loses for each of its GPUs.
    """

    alone: Floats
    gain: Floats
    own: Floats
    shared: Floats

    @classmethod
    def of(
        cls, there: _There, jobs: QueueColumns, forecast: Forecast, book: BelievedSlowdowns
    ) -> _Most:
        """Return the bounds for these jobs; they start in the mode that slows them least."""
        until, start_s = forecast.prices.until, forecast.start_s
        due = start_s + jobs.seconds
        rent = jobs.workers * (until(due) - until(start_s))
        now, left, factor = there.now[:, None], there.left_s[:, None], there.factor[:, None]
        held, gpus = there.held[:, None], there.gpus[:, None]
        theirs, mine = book.beside_uncapped(there.model, there.workload, jobs.workload)
        # As in a round, a measured slowdown is the least with others, too (``candidates.listing``).
        parted = np.maximum(theirs * factor, now)
        theirs = np.where(gpus < held, parted, theirs * np.maximum(factor, now))
        least = book.least_modes[jobs.workload, 1]
        mine = mine * least
        work = jobs.work_s / there.speed[:, jobs.workload]
        first = np.minimum(theirs * left, mine * work)
        end = np.minimum(theirs * left, first + np.maximum(0.0, left - first / theirs) * now)
        after = least * book.at_last.min(axis=1)[jobs.workload]
        last = np.minimum(mine * work, first + np.maximum(0.0, work - first / mine) * after)
        last = np.where(jobs.workers > gpus, mine * work, last)
        lost = there.weight[:, None] * (now * left - end) + held * (until(now * left) - until(end))
        lost = np.minimum(0.0, lost)
        paid = np.minimum(0.0, until(end) - until(np.maximum(end, last)))
        gain = jobs.weight * (due - last) + rent
        gain += _ROUNDING * (jobs.weight * (due + last) + np.abs(rent) - paid - lost)
        return cls(
            jobs.weight * start_s + rent,
            np.fmax.reduce(gain, axis=0),
            np.fmax.reduce(paid + np.where(held == 1, lost, 0.0), axis=0),
            np.fmax.reduce(paid + lost / held, axis=0),
        )

    def useful(self, workers: Ints, idle: int, gpus: Ints, paid: Floats) -> Bools:
        """Return where jobs may gain at least what they pay, (hosts, jobs); nowhere if too few."""
        may = self.gain + paid >= 0
        for k in np.flatnonzero((workers > 1) & may.any(axis=0)).tolist():
            able = np.flatnonzero(may[:, k])
            room = np.append(gpus[able], idle)
            gain, pays = np.append(self.gain[able, k], self.alone[k]), np.append(paid[able, k], 0.0)
            may[able, k] = idle >= workers[k] or _gains(int(workers[k]), room, gain, pays)
        return may


def _gains(workers: int, room: Ints, gain: Floats, paid: Floats) -> bool:
    """Return whether a gang may gain on GPUs of some kinds, ``room`` of each.

    It gains no more than on the GPU on which it gains least: at best the last one that it needs of
    those on which it gains most. It pays at least for those on which it pays least.
    """
    if room.sum() < workers:
        return False
    most, least = np.argsort(-gain), np.argsort(-paid)
    last = int(np.searchsorted(np.cumsum(room[most]), workers))
    taken = np.diff(np.minimum(np.cumsum(room[least]), workers), prepend=0)
    return bool(gain[most[last]] + taken @ paid[least] >= 0)
