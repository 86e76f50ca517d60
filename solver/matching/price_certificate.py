"""An independent proof of a bound from prices of jobs and GPUs.

It shares no code with the computation of the prices. Every GPU holds one group of jobs or none. A
starting gang gains the least of its gains on its W GPUs, so no more than the sum of 1 / W of each.
A running job gains the least over the GPUs that it holds, so no more than any weighted mean: the
sum over its GPUs of ``part`` times the gain there, where the parts are at least 0 and sum to 1.
With these parts a plan is worth no more than the sum over its groups,

    sum over starting members of gain / W + sum over running members of part x gain + value,

and if this is for each group no more than the price of its GPU plus the worth of its starting
workers, all of them at least 0, then no plan is worth more than all GPUs and workers together.

If only one worker waits, at most one GPU changes. A running job then gains no more than it would
there or, on other GPUs, than if nothing starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.values import JobValues
from dovetail.solver.types import Proven

_ROUNDING = 1e-9
"""Error of a sum relative to its largest term."""


class PriceDual(NamedTuple):
    """Prices that bound the value of every choice of groups.

    Attributes
    ----------
    worth : (jobs,) float
        The worth of each worker of a pending job.
    price : (classes,) float
        The price of a GPU of each class.
    job, gpu_class : (k,) int
        Every running job with every class on which it holds GPUs.
    part : (k,) float
        The weight of the job's gain on one such GPU.
    """

    worth: Floats
    price: Floats
    job: Ints
    gpu_class: Ints
    part: Floats

    def bound(self, groups: Groups) -> float:
        """Return the bound that the prices give if they are valid."""
        workers = zip(self.worth.tolist(), groups.round.jobs.workers.tolist(), strict=True)
        gpus = zip(self.price.tolist(), groups.round.classes.size.tolist(), strict=True)
        return math.fsum(price * number for price, number in (*workers, *gpus))


def proven_by_prices(dual: PriceDual, values: JobValues) -> Proven:
    """Return the bound that prices prove, and the errors in them."""
    groups = candidate_groups(values).apart
    bound = dual.bound(groups)
    if not groups.complete:
        return Proven(bound, ("groups are missing",))
    rows = list(_rows(groups))
    starting = {seat.job: seat.workers for row in rows for seat in row.starting}
    if sum(starting.values()) <= 1:
        return Proven(bound, tuple(_too_low_for_one(rows, bound)))
    errors = (*_sign_errors(dual), *_part_errors(dual, groups), *_low(dual, rows))
    return Proven(bound, errors)


class _Seat(NamedTuple):
    """A member of a group: its job, with name and number of workers, and its gain."""

    job: int
    name: str
    workers: int
    gain: float


class _PricedGroup(NamedTuple):
    """A group: its class, its running and starting members, and its additional value."""

    gpu_class: int
    running: list[_Seat]
    starting: list[_Seat]
    value: float

    def __str__(self) -> str:
        return " + ".join(seat.name for seat in (*self.running, *self.starting))


def _rows(groups: Groups) -> Iterator[_PricedGroup]:
    jobs = groups.round.jobs
    runs, workers = jobs.running.tolist(), jobs.workers.tolist()
    job, gain, start = groups.job.tolist(), groups.gain.tolist(), groups.start.tolist()
    each = zip(groups.gpu_class.tolist(), groups.value.tolist(), strict=True)
    for group, (gpu_class, value) in enumerate(each):
        row = _PricedGroup(gpu_class, [], [], value)
        for member in range(start[group], start[group + 1]):
            k = job[member]
            seat = _Seat(k, jobs.ids[k], workers[k], gain[member])
            (row.running if runs[k] else row.starting).append(seat)
        yield row


def _too_low_for_one(rows: list[_PricedGroup], bound: float) -> Iterator[str]:
    """Find a GPU that adds more than the bound, if at most one worker starts."""
    if any(worth > 0 for worth in _worth_now(rows)):
        yield "running jobs are worth something if nothing starts"
    for row in rows:
        gains = [seat.gain for seat in (*row.running, *row.starting)]
        worth = math.fsum((*gains, row.value))
        if row.starting and worth > bound + _ROUNDING * max(map(abs, gains)):
            yield f"the group {row} is worth {worth:.10g}"


def _worth_now(rows: list[_PricedGroup]) -> Iterator[float]:
    """Yield the value of each GPU, and the gain of each running job, if nothing starts."""
    gains: dict[int, float] = {}
    for row in rows:
        if not row.starting:
            yield row.value
            for seat in row.running:
                gains[seat.job] = min(seat.gain, gains.get(seat.job, math.inf))
    yield from gains.values()


def _sign_errors(dual: PriceDual) -> Iterator[str]:
    for name in ("worth", "price", "part"):
        if not all(0 <= each < math.inf for each in getattr(dual, name).tolist()):
            yield f"every {name} must be a number of at least 0"


def _part_errors(dual: PriceDual, groups: Groups) -> Iterator[str]:
    """Find running jobs whose parts on all their GPUs do not sum to 1."""
    running = groups.round.jobs.running.tolist()
    total = {job: 0.0 for job in groups.job.tolist() if running[job]}
    for (job, gpu_class), part in _parts(dual).items():
        number = int(groups.round.classes.size[gpu_class])
        total[job] = total.get(job, 0.0) + part * number
    for job, whole in total.items():
        if not math.isclose(whole, 1.0, rel_tol=_ROUNDING):
            yield f"the parts of {groups.round.jobs.ids[job]} sum to {whole:.10g}, not to 1"


def _parts(dual: PriceDual) -> dict[tuple[int, int], float]:
    seats = zip(dual.job.tolist(), dual.gpu_class.tolist(), strict=True)
    return dict(zip(seats, dual.part.tolist(), strict=True))


def _low(dual: PriceDual, rows: list[_PricedGroup]) -> Iterator[str]:
    """Find a group that is worth more than the cost of its GPU and starting workers."""
    part, price, worth = _parts(dual), dual.price.tolist(), dual.worth.tolist()
    for row in rows:
        kept = [seat.gain * part.get((seat.job, row.gpu_class), 0.0) for seat in row.running]
        counted = [*kept, *(seat.gain / seat.workers for seat in row.starting), row.value]
        cost = math.fsum((price[row.gpu_class], *(worth[seat.job] for seat in row.starting)))
        if math.fsum(counted) > cost + _ROUNDING * max(map(abs, counted)):
            text = f"the group {row} counts for {math.fsum(counted):.10g}"
            yield f"{text}, its GPU and workers cost {cost:.10g}"
            return
