"""What single jobs and pairs are worth by the definition of the objective; for certificates.

The objectives for which matchings have certificates are computed here from the instance again,
without formulations and search. A user's own objective is defined by its class, which is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Final

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.values import JobValues, Rows
from dovetail.instances.checking.completion import AloneForecast
from dovetail.instances.checking.facts import Occupancy
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.shares import CODES

_ROUNDING = 1e-12
"""Relative difference that is allowed between two computations of a value."""

_TOLERANCE = 1e-9
"""Relative tolerance of times."""


@dataclass(frozen=True)
class SeatColumns:
    """Columns of seats, (n,) each; ``share`` is ``ANY`` for waiting jobs.

    ``way`` is the position of the sub-batch among those of a waiting job, the full batch first.
    """

    job: Ints
    workload: Ints
    way: Ints
    share: Ints
    growth: Floats
    memory_mib: Floats
    gsla: Floats
    late: Bools
    runs: Bools
    size: Ints

    def take(self, which: Ints) -> SeatColumns:
        """Return the selected seats."""
        return SeatColumns(*(getattr(self, each.name)[which] for each in fields(self)))

    def __len__(self) -> int:
        return len(self.job)


class Definition:
    """The values of the jobs of a round on GPUs of one model, by the definition of the objective.

    Parameters
    ----------
    values : JobValues
        The objective in the round.
    before : Occupancy
        The running jobs.

    Attributes
    ----------
    pairs_only : bool
        Whether at most two jobs may share a GPU.
    relative : bool
        Whether only starting jobs have a value.
    """

    pairs_only: bool = False
    relative: bool = False

    def __init__(self, values: JobValues, before: Occupancy) -> None:
        self.round = values.round
        self.values = values
        self.before = before
        self.jobs = self.round.instance.jobs
        self.model = next((p.gpu.model for p in self.round.instance.places.values()), "")
        self.weight = np.array([job.weight for job in self.jobs], dtype=np.float64)

    def gain(self, job: Ints, slowdown: Floats) -> Floats:
        """Return the gains of jobs at slowdowns."""
        raise NotImplementedError

    def now(self, jobs: Sequence[int]) -> list[float]:
        """Return the values of running jobs if no job joins them."""
        effects = [self.before.effects[self.jobs[k].id] for k in jobs]
        slowdown = np.array([effect.slowdown for effect in effects])
        gains: list[float] = self.gain(np.array(jobs, dtype=np.int64), slowdown).tolist()
        return gains

    def alone(self, seats: SeatColumns, slowdown: Floats, share: Ints) -> Floats:
        """Return the values of waiting jobs on GPUs of their own."""
        return lowered(self.gain(seats.job, slowdown))

    def pairs(
        self, seats: tuple[SeatColumns, SeatColumns], slowdown: Floats, share: Ints, power_w: Floats
    ) -> tuple[Floats, Bools]:
        """Return the values of pairs, and which the rule of the objective allows.

        Slowdowns and shares are (2, n), the power of the GPU (n,).
        """
        gains = [self.gain(each.job, s) for each, s in zip(seats, slowdown, strict=True)]
        return lowered(*gains), np.ones(slowdown.shape[1], dtype=bool)


class _Rates(Definition):
    """``throughput``."""

    def gain(self, job: Ints, slowdown: Floats) -> Floats:
        return np.asarray(self.weight[job] * (self.speed[job] / slowdown))

    @cached_property
    def speed(self) -> Floats:
        workloads = self.round.instance.workloads
        of = (workloads[job.workload].speed for job in self.jobs)
        return np.array([speed.get(self.model, 1.0) for speed in of])

    @cached_property
    def remaining_s(self) -> Floats:
        return np.array([job.remaining_s or 0.0 for job in self.jobs])


class _RatesOverRemaining(_Rates):
    """``jct``."""

    pairs_only = True

    def gain(self, job: Ints, slowdown: Floats) -> Floats:
        rate = self.speed[job] / slowdown
        rate = rate / np.where(self.remaining_s[job] > 0, self.remaining_s[job], 1.0)
        return np.asarray(self.weight[job] * rate)

    def pairs(
        self, seats: tuple[SeatColumns, SeatColumns], slowdown: Floats, share: Ints, power_w: Floats
    ) -> tuple[Floats, Bools]:
        worth, _ = super().pairs(seats, slowdown, share, power_w)
        return worth, self._shortens(seats, slowdown)

    def _shortens(self, seats: tuple[SeatColumns, SeatColumns], slowdown: Floats) -> Bools:
        """Return which pairs end earlier on average if they share (Castor, theorem 1)."""
        left = np.stack([self.remaining_s[each.job] for each in seats])
        growth = np.stack([each.growth for each in seats])
        runs = np.stack([each.runs for each in seats])
        end = slowdown * left
        last = end.argmax(axis=0)
        every = np.arange(end.shape[1])
        first_end = end.min(axis=0)
        rest = left[last, every] - first_end / slowdown[last, every]
        shared = (2 * first_end + rest * growth[last, every]) / 2
        in_turn = np.where(runs, left * growth, left)
        leader = np.where(runs.any(axis=0), runs.argmax(axis=0), left.argmin(axis=0))
        turn = in_turn[leader, every] + in_turn[1 - leader, every] / 2
        return np.asarray(shared < turn * (1 - _TOLERANCE))


class _SavedTime(_Rates):
    """``completion``."""

    relative = True

    def __init__(self, values: JobValues, before: Occupancy) -> None:
        super().__init__(values, before)
        self._forecast = forecast = AloneForecast(before)
        self._left_s = self.remaining_s / self.speed
        self._solo = slowdowns_alone(tuple(self.round.instance.workloads.values()))
        self._end_s, self._rent = np.zeros(len(self.jobs)), np.zeros(len(self.jobs))
        for k, job in enumerate(self.jobs):
            if not job.running:
                self._end_s[k], self._rent[k] = forecast.end_s[job.id], forecast.rent(job)
            elif effect := before.effects.get(job.id):
                self._end_s[k] = effect.slowdown * self._left_s[k]
                self._rent[k] = job.workers * forecast.price(self._end_s[k])

    def now(self, jobs: Sequence[int]) -> list[float]:
        return [0.0] * len(jobs)

    def alone(self, seats: SeatColumns, slowdown: Floats, share: Ints) -> Floats:
        end = slowdown * self._left_s[seats.job]
        gain = self.weight[seats.job] * (self._end_s[seats.job] - end)
        return lowered(gain, self._rent[seats.job], -seats.size * self._price_from_idle(end))

    def pairs(
        self, seats: tuple[SeatColumns, SeatColumns], slowdown: Floats, share: Ints, power_w: Floats
    ) -> tuple[Floats, Bools]:
        left = np.stack([self._left_s[each.job] for each in seats])
        whole = slowdown * left
        first = whole.min(axis=0)
        each_alone = zip(seats, share, strict=True)
        after = np.stack([self._solo[each.workload, s] * each.growth for each, s in each_alone])
        end = np.minimum(whole, first + np.maximum(0.0, left - first / slowdown) * after)
        terms: list[Floats] = []
        for each, ends in zip(seats, np.asarray(end, dtype=np.float64), strict=True):
            terms.append(self.weight[each.job] * (self._end_s[each.job] - ends))
            held: Floats = np.where(each.runs, each.size * self._price(ends), 0.0)
            terms.append(self._rent[each.job] - held)
        last, size = end.max(axis=0), seats[0].size
        runs = np.stack([each.runs for each in seats])
        running = np.where(runs, end, 0.0).max(axis=0)
        beyond = self._price(last) - self._price(running)
        price = np.where(runs.any(axis=0), beyond, self._price_from_idle(last))
        terms.append(np.asarray(-price * size, dtype=np.float64))
        return lowered(*terms), last <= self._forecast.last_s * (1 + _TOLERANCE)

    def _price(self, until_s: Floats) -> Floats:
        return np.interp(until_s, self._forecast.times_s, self._forecast.paid)

    def _price_from_idle(self, until_s: Floats) -> Floats:
        return self._price(until_s) - self._price(np.minimum(until_s, self._forecast.claimed_s))


class _OfClass(Definition):
    """A user's own objective: what its class says."""

    def __init__(self, values: JobValues, before: Occupancy) -> None:
        super().__init__(values, before)
        self.pairs_only, self.relative = values.pairs_only, values.relative
        # A job that may be joined has equal GPUs.
        self._class = np.zeros(len(self.jobs), dtype=np.int64)
        classes = self.round.classes
        for k, there in enumerate(classes.on):
            self._class[[resident.job for resident in there]] = k
        free = (k for k, there in enumerate(classes.on) if not there)
        self._class[~self.round.jobs.running] = next(free, 0)

    def gain(self, job: Ints, slowdown: Floats) -> Floats:
        return np.asarray(self.values.gain(job, slowdown, self.model))

    def now(self, jobs: Sequence[int]) -> list[float]:
        return [0.0] * len(jobs) if self.relative else super().now(jobs)

    def alone(self, seats: SeatColumns, slowdown: Floats, share: Ints) -> Floats:
        power_w = self.round.power_alone[seats.job]
        worth, may = self._worth((seats,), slowdown[None], share[None], power_w)
        return np.where(may, worth, -np.inf)

    def pairs(
        self, seats: tuple[SeatColumns, SeatColumns], slowdown: Floats, share: Ints, power_w: Floats
    ) -> tuple[Floats, Bools]:
        return self._worth(seats, slowdown, share, power_w)

    def _worth(
        self, seats: Sequence[SeatColumns], slowdown: Floats, share: Ints, power_w: Floats
    ) -> tuple[Floats, Bools]:
        rows = Rows(
            self._class_of(seats),
            np.stack([each.job for each in seats], axis=1),
            np.stack([self.round.first_variant[each.job] + each.way for each in seats], axis=1),
            share.T,
            slowdown.T,
            power_w,
        )
        value = self.values.value(rows)
        may = ~np.isnan(value)
        if len(seats) > 1 and self.values.has_rule:
            may &= self.values.may_share(rows)
        return lowered(*self.values.gains(rows).T, np.nan_to_num(value) * seats[0].size), may

    def _class_of(self, seats: Sequence[SeatColumns]) -> Ints:
        """Return the class of each group: that of its running job, or of free GPUs."""
        found = self._class[seats[0].job]
        for each in seats[1:]:
            found = np.where(each.runs, self._class[each.job], found)
        return found


_BY_NAME: Final[Mapping[str, type[Definition]]] = {
    "throughput": _Rates,
    "jct": _RatesOverRemaining,
    "completion": _SavedTime,
}


def definition(values: JobValues, before: Occupancy) -> Definition:
    """Return the definition of an objective, which is its class if it is a user's own."""
    return _BY_NAME.get(values.name, _OfClass)(values, before)


def slowdowns_alone(workloads: Sequence[Workload]) -> Floats:
    """Return the slowdown of each workload alone at each share; 1 if unknown."""
    found = np.ones((len(workloads), CODES))
    for k, workload in enumerate(workloads):
        known = workload.throughput
        for share in known.keys() & set(range(1, 101)) if 100 in known else ():
            found[k, share] = known[100] / known[share]
    return found


def lowered(*terms: Floats) -> Floats:
    """Return a sum less the largest rounding error in it."""
    of_terms = np.sum([np.abs(each) for each in terms], axis=0)
    return np.asarray(np.sum(terms, axis=0) - _ROUNDING * of_terms)
