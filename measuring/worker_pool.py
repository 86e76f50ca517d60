"""The workers of a campaign, which stay resident between experiments.

A worker takes long to start and serves all experiments with its seat, so it stays while it is
needed and fits. An idle worker only uses memory. Workers of two modes never exist at the same time.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from dovetail.instances.errors import DovetailError
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.device import Device
from dovetail.measuring.worker import Failure, Worker

SPARE_MIB: Final = 512.0
"""Device memory that is kept free beyond the known needs of workers."""


class WorkerLimits(NamedTuple):
    """Limits of a worker pool.

    Attributes
    ----------
    workers : int
        Most workers; an MPS server takes at most 48 clients.
    at_once : int
        Most workers that start at the same time.
    ready_s : float
        Seconds after which a worker that is not ready is treated as hung.
    obey_s : float
        Seconds within which a worker must obey ``stop`` and ``quit``.
    """

    workers: int = 40
    at_once: int = max(1, len(os.sched_getaffinity(0)) - 1)
    ready_s: float = 240.0
    obey_s: float = 15.0


class WorkerPool:
    """Resident workers on a device; a context manager that ends them.

    Parameters
    ----------
    device : Device
        The device.
    command : callable
        Returns the command of a seat's worker.
    limits : WorkerLimits
        Limits on number and time.

    Attributes
    ----------
    longest_start_s : float
        The longest time that a worker has taken to be ready.
    """

    def __init__(
        self,
        device: Device,
        command: Callable[[WorkerSeat], Sequence[str]],
        limits: WorkerLimits = WorkerLimits(),  # noqa: B008 (a constant)
    ) -> None:
        self._device, self._command, self._limits = device, command, limits
        # The names of sockets must be short.
        self._sockets = tempfile.TemporaryDirectory(prefix="dovetail-")
        self._workers: list[Worker] = []
        self._need_mib: dict[str, float] = {}
        self._numbered = 0
        self.longest_start_s = 0.0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' pids."""
        runs = (worker.submission for worker in self._workers)
        return tuple(run.pid for run in runs if run is not None and run.pid is not None)

    def has(self, seats: Sequence[WorkerSeat]) -> bool:
        """Return whether workers for all of these seats are idle."""
        idle = Counter(worker.seat for worker in self._workers if worker.idle)
        return Counter(seat.process for seat in seats) <= idle

    def staff(self, now: Counter[WorkerSeat], later: Counter[WorkerSeat], until_s: float) -> None:
        """End the workers that are not needed, and start the missing ones in parallel.

        It stops when there is no room; failures are reported by ``take``.

        Parameters
        ----------
        now, later : Counter of WorkerSeat
            Number of workers of each process needed now and later (``workers_needed``).
        until_s : float
            Deadline in seconds of the monotonic clock; workers that are not ready keep starting.
        """
        left, unneeded = now | later, []
        for worker in self._workers:
            if left[worker.seat] > 0 and worker.failure() is None:
                left[worker.seat] -= 1
            else:
                unneeded.append(worker)
        self.dismiss(unneeded)
        for seat in (now - Counter(worker.seat for worker in self._workers)).elements():
            room = self._make_room(seat, [one for one in self._workers if one.seat in now])
            if not room or isinstance(self._begin(seat, until_s), Failure):
                break
        self.wait(lambda: not self._starting(), until_s)

    def take(self, seats: Sequence[WorkerSeat], until_s: float) -> tuple[Worker | Failure, ...]:
        """Return a ready worker for each seat, or why there is none.

        Raises
        ------
        TimeoutError
            If they are not ready by ``until_s`` (monotonic clock).
        """
        self.dismiss([one for one in self._workers if one.failure() is not None])
        found: list[Worker | Failure] = []
        for seat in (one.process for one in seats):
            same = (one for one in self._workers if one.seat == seat and one not in found)
            worker = next(same, None)
            if worker is None:
                self._make_room(seat, found)
            found.append(worker or self._begin(seat, until_s))
        workers = [one for one in found if isinstance(one, Worker)]
        self.wait(lambda: not any(map(self._is_starting, workers)), until_s)
        return tuple(self._ready(one) if isinstance(one, Worker) else one for one in found)

    def wait(self, done: Callable[[], bool], until_s: float) -> bool:
        """Wait for a condition until ``until_s`` (monotonic clock); return whether it holds."""
        met = self._device.submissions.wait(done, until_s)
        for worker in self._workers:
            if worker.ready is not None:
                needed = self._need_mib.get(worker.seat.workload, 0.0)
                self._need_mib[worker.seat.workload] = max(worker.memory_mib or 0.0, needed)
                self.longest_start_s = max(self.longest_start_s, worker.ready_after_s)
        return met

    def rest(self, workers: Sequence[Worker]) -> None:
        """Stop workers, and end those that have failed or do not obey."""
        for worker in workers:
            worker.stop()
        until_s = time.monotonic() + self._limits.obey_s
        self.wait(lambda: all(w.idle or w.failure() for w in workers), until_s)
        self.dismiss([worker for worker in workers if not worker.idle])

    def dismiss(self, workers: Iterable[Worker]) -> None:
        """End workers: ask them, end their GPU work, and only then kill them."""
        ending = list(workers)
        runs = [worker.submission for worker in ending if worker.submission is not None]
        self._device.submissions.end(runs, self._limits.obey_s)
        for worker in ending:
            self._workers.remove(worker)
            worker.forget()

    def clear(self) -> None:
        """End all workers."""
        self.dismiss(self._workers)

    def close(self) -> None:
        """End all workers and remove their sockets."""
        self.clear()
        self._sockets.cleanup()

    def _ready(self, worker: Worker) -> Worker | Failure:
        failure = worker.failure()
        if failure is None and not worker.idle:
            if self._is_starting(worker):
                raise TimeoutError
            failure = Failure("error", f"was not ready within {self._limits.ready_s:g} s")
        if failure is None:
            worker.used_s = time.monotonic()
            return worker
        self.dismiss([worker])
        return failure

    def _begin(self, seat: WorkerSeat, until_s: float) -> Worker | Failure:
        """Start a worker as soon as few enough others are starting."""
        self.dismiss([worker for worker in self._workers if worker.seat.mode != seat.mode])
        self.wait(lambda: len(self._starting()) < self._limits.at_once, until_s)
        self._numbered += 1
        path = os.path.join(self._sockets.name, str(self._numbered))
        try:
            self._device.open(seat.mode)
            worker = self._device.worker(seat, self._command(seat), path)
        except DovetailError as error:
            return Failure("error", str(error))
        self._workers.append(worker)
        return worker

    def _starting(self) -> list[Worker]:
        return [worker for worker in self._workers if self._is_starting(worker)]

    def _is_starting(self, worker: Worker) -> bool:
        """Return whether a worker is still starting: not ready, not failed and not hung."""
        late = time.monotonic() - worker.started_s >= self._limits.ready_s
        return worker.ready is None and not late and worker.failure() is None

    def _make_room(self, seat: WorkerSeat, kept: Collection[object]) -> bool:
        """End the least recently used workers until there is room; return whether there is."""
        while True:
            free_mib = self._device.free_mib()
            starting = [seat, *(worker.seat for worker in self._starting())]
            needed_mib = SPARE_MIB + sum(self._need_mib.get(one.workload, 0.0) for one in starting)
            few = len(self._workers) < self._limits.workers
            if few and (free_mib is None or free_mib >= needed_mib):
                return True
            idle = [one for one in self._workers if one not in kept]
            if not idle:
                return False
            self.dismiss([min(idle, key=lambda one: one.used_s)])
