"""The objective ``completion`` recomputed from its definition.

A forecast lays out the queue with each job alone; it gives the end of each job that waits, and the
price of a second of a GPU. See the docstring of ``dovetail.formulations.completion``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import fsum, inf

from dovetail.instances._record import IDLE
from dovetail.instances.checking.facts import GpuOccupants, JobOnGpus, Occupancy
from dovetail.instances.instance import Instance, Job, jobs_of

TOLERANCE = 1e-9
_CRITICAL = 2 / 3
_LEAST_WEIGHT = 1e-9
_FAR_S = 3600.0


class AloneForecast:
    """A forecast with every waiting job alone; times are seconds from now.

    Attributes
    ----------
    end_s : dict of str to float
        When each pending job ends if it does not start now.
    last_s : float
        When the last job ends.
    """

    def __init__(self, before: Occupancy) -> None:
        self._instance = before.instance
        busy: dict[str, float] = {}
        held = []
        for placed in before.placed.values():
            alone = left_s(before.instance, placed)
            held.append((alone, len(placed.share)))
            for gpu in placed.share:
                end = alone * before.effects[placed.job.id].slowdown
                busy[gpu] = max(end, busy.get(gpu, 0.0))
        queue = self._queue(held)
        busy_s = sorted(busy.values())
        starts = _starts(queue, [0.0] * (len(self._instance.places) - len(busy)) + busy_s)
        later = sorted((start, k) for k, start in enumerate(starts) if start > 0)
        self.times_s, self.paid = _prices(
            [(start, queue[k][0], queue[k][1].workers, queue[k][1].weight) for start, k in later]
        )
        self.claimed_s = later[0][0] if later else inf
        ends = [start + seconds for start, (seconds, _) in zip(starts, queue, strict=True)]
        self.last_s = max([*ends, *busy_s], default=0.0)
        self.end_s, self._rent = {}, {}
        for start, (seconds, job) in zip(starts, queue, strict=True):
            chance = start or _next_chance(job.workers, seconds, busy_s)
            self.end_s[job.id] = chance + seconds
            self._rent[job.id] = self.price(self.end_s[job.id]) - self.price(chance)

    def price(self, until_s: float) -> float:
        """Return the price of a GPU from now until a time."""
        times, paid = self.times_s, self.paid
        k = bisect_right(times, until_s)
        if k == len(times):
            return paid[-1]
        part = (until_s - times[k - 1]) / (times[k] - times[k - 1])
        return paid[k - 1] + part * (paid[k] - paid[k - 1])

    def price_from_idle(self, until_s: float) -> float:
        """Return the price of an idle GPU: free until the first job that must wait starts."""
        return self.price(until_s) - self.price(min(until_s, self.claimed_s))

    def rent(self, job: Job) -> float:
        """Return the price of the GPUs of a pending job if it waits."""
        return job.workers * self._rent[job.id]

    def _queue(self, held: Sequence[tuple[float, int]]) -> list[tuple[float, Job]]:
        """Return the pending jobs in the order of their starts: critical first, then by weight."""
        gpus = self._instance.places.values()
        models = {place.gpu.model for place in gpus}
        queue = []
        for job in jobs_of(self._instance, "pending"):
            speed = self._instance.workloads[job.workload].speed
            fastest = max((speed.get(model, 1.0) for model in models), default=1.0)
            queue.append(((job.remaining_s or 0.0) / fastest, job))
        asked = [*held, *((seconds, job.workers) for seconds, job in queue)]
        least = fsum(seconds * workers for seconds, workers in asked) / max(1, len(gpus))
        longest = max((seconds for seconds, _ in asked), default=0.0)
        critical = _CRITICAL * max(longest, least) * (1 - TOLERANCE)

        def place(row: tuple[float, Job]) -> tuple[bool, float]:
            seconds, job = row
            return seconds < critical, seconds * job.workers / max(job.weight, _LEAST_WEIGHT)

        return sorted(queue, key=place)


def left_s(instance: Instance, placed: JobOnGpus) -> float:
    """Return the seconds that a placed job would still need alone at full batch."""
    model = instance.places[next(iter(placed.share))].gpu.model
    return (placed.job.remaining_s or 0.0) / placed.workload.speed.get(model, 1.0)


def _starts(queue: Sequence[tuple[float, Job]], free: list[float]) -> list[float]:
    """Return when each job starts alone on GPUs that become idle at these times."""
    starts = []
    for seconds, job in queue:
        if job.workers > len(free):
            starts.append(free[-1] if free else 0.0)
            continue
        start = free[job.workers - 1]
        in_time = bisect_right(free, start)
        del free[in_time - job.workers : in_time]
        for _ in range(job.workers):
            insort(free, start + seconds)
        starts.append(start)
    return starts


def _prices(
    later: Sequence[tuple[float, float, int, float]],
) -> tuple[list[float], list[float]]:
    """Return times, and the price of a GPU from now until each; afterwards it is free.

    ``later`` has start, duration, GPUs and weight of the jobs that must wait, sorted by start.
    """
    times = [start for start, _, _, _ in later]
    price = [0.0]
    for start, seconds, workers, weight in reversed(later):
        starting = len(times) - bisect_left(times, (start + seconds) * (1 - TOLERANCE))
        after = price[min(starting, len(price) - 1)]
        price.append(max(price[-1], weight / workers + after))
    paid, before = [0.0], 0.0
    for time, each in zip(times, reversed(price), strict=False):
        paid.append(paid[-1] + each * (time - before))
        before = time
    return [0.0, *times], paid


def _next_chance(workers: int, seconds: float, busy_s: Sequence[float]) -> float:
    """Return the start of a job that could start now but declines all idle GPUs."""
    return max(1.0, busy_s[workers - 1]) if workers <= len(busy_s) else _FAR_S + seconds


class CheckedCompletion:
    """The value of a plan under ``completion``.

    Parameters
    ----------
    after : Occupancy
        The plan; the slowdown of every job is known.
    """

    def __init__(self, after: Occupancy) -> None:
        self._after = after
        running = [placed for placed in after.placed.values() if not placed.starting]
        self._before = Occupancy(after.instance, running)
        self.forecast = AloneForecast(self._before)

    def value(self) -> float:
        """Return the seconds of weighted completion time that the starts save."""
        least: dict[str, float] = {}
        price = []
        for on_gpu in self._after.gpus.values():
            ends = self.ends(on_gpu)
            price.append(self._price(on_gpu, ends))
            for placed, end in zip(on_gpu.jobs, ends, strict=True):
                gain = self._gain(placed, end)
                least[placed.job.id] = min(gain, least.get(placed.job.id, inf))
        return fsum(least.values()) - fsum(price)

    def ends(self, on_gpu: GpuOccupants) -> list[float]:
        """Return when each job on a GPU ends, considering this GPU only."""
        slowdown = [effect.slowdown for effect in on_gpu.effects or ()]
        left = [left_s(self._after.instance, placed) for placed in on_gpu.jobs]
        whole = [s * seconds for s, seconds in zip(slowdown, left, strict=True)]
        if len(whole) != 2 or not on_gpu.joined:
            return whole
        first = min(whole)
        ends = []
        for k, placed in enumerate(on_gpu.jobs):
            rest = max(0.0, left[k] - first / slowdown[k])
            end = min(whole[k], first + rest * _alone(placed, on_gpu.name))
            spread = placed.starting and placed.job.workers > self._alike[self._kind(on_gpu.name)]
            ends.append(whole[k] if spread else end)
        return ends

    def _gain(self, placed: JobOnGpus, end: float) -> float:
        job, forecast = placed.job, self.forecast
        if placed.starting:
            return job.weight * (forecast.end_s[job.id] - end) + forecast.rent(job)
        due = self._before.effects[job.id].slowdown * left_s(self._after.instance, placed)
        held = forecast.price(due) - forecast.price(end)
        return job.weight * (due - end) + len(placed.share) * held

    def _price(self, on_gpu: GpuOccupants, ends: Sequence[float]) -> float:
        """Return the price of a GPU from the time it would be idle until its last job ends."""
        running = [
            end for placed, end in zip(on_gpu.jobs, ends, strict=True) if not placed.starting
        ]
        if running:
            return self.forecast.price(max(ends)) - self.forecast.price(max(running))
        return self.forecast.price_from_idle(max(ends))

    def _kind(self, gpu: str) -> tuple[object, ...]:
        """Return a key that is equal for GPUs that are interchangeable before the plan."""
        on_gpu, kind = self._before.gpus.get(gpu), self._after.instance.places[gpu].gpu
        residents = (on_gpu.ids, on_gpu.shares) if on_gpu else None
        return kind.model, kind.memory_mib, residents

    @cached_property
    def _alike(self) -> Counter[tuple[object, ...]]:
        return Counter(map(self._kind, self._after.instance.places))


def _alone(placed: JobOnGpus, gpu: str) -> float:
    """Return the slowdown of a job after the other job on its GPU has ended."""
    known, share = placed.workload.throughput, placed.share[gpu]
    if share is None or share == IDLE or not {100, share} <= known.keys():
        return placed.growth
    return known[100] / known[share] * placed.growth
