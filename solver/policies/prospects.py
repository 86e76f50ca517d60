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
from dovetail.solver.policies.joins import Joins, There
from dovetail.solver.policies.queue_columns import QueueColumns
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
    last_s: float,
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
    last_s : float
        No job shares beyond this time.

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
    there = There.of(state, hosts)
    most = _Most.of(there, jobs, forecast, Joins.of(state, there, jobs, forecast, book, last_s))
    if not most.useful(jobs.workers, idle, there.gpus, most.shared).any():
        return [], fits
    useful = most.useful(jobs.workers, idle, there.gpus, most.own)
    able = fits | useful.any(axis=0)
    if useful[:, jobs.workers > 1].any():
        return hosts, able
    return [hosts[k] for k in np.flatnonzero(useful.any(axis=1)).tolist()], able


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
    def of(cls, there: There, jobs: QueueColumns, forecast: Forecast, joins: Joins) -> _Most:
        """Return the bounds for these jobs."""
        held, rent = there.held[:, None], joins.rent
        paid, lost = joins.paid, joins.lost
        rounding = jobs.weight * (joins.due + joins.end) + np.abs(rent) - paid - lost
        return cls(
            jobs.weight * forecast.start_s + rent,
            np.fmax.reduce(joins.gain + _ROUNDING * rounding, axis=0),
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
