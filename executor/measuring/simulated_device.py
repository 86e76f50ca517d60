"""The first GPU of an instance, simulated: what a campaign finds there is what the instance says.

So campaigns, and what is made of them, can be tried where the truth is known. No process runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.jobs.specs import Seat as PoolSeat
from dovetail.executor.measuring.device import Device
from dovetail.executor.measuring.records import Facts, Seat
from dovetail.executor.measuring.windows import Events, Steps
from dovetail.executor.measuring.worker import Failure, Worker
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.executor.pools.submissions import Submissions
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Instance, Workload

_FOR_EVER: Final = ("simulated", "work_s=1e12")


class SimulatedDevice(Device):
    """The first GPU of an instance, whose pool has this state directory."""

    def __init__(self, directory: Path, truth: Instance) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._truth = truth
        name, place = next(iter(truth.places.items()))
        told = f"a simulation of the instance {truth.name}: no figure here is one of a GPU"
        gpu = place.gpu
        facts = Facts(gpu_model=gpu.model, stand_in=told, sms=gpu.sms, memory_mib=gpu.memory_mib)
        super().__init__(SimulatedNode(directory, truth), name, facts)

    def why_not(self, seat: Seat) -> str | None:
        """Return what of a setting an instance does not know."""
        if seat.mode == "time-sliced":
            return "an instance knows nothing of time slicing"
        if seat.share is not None and seat.share not in self._truth.cluster.shares:
            return f"the instance allows no share of {seat.share} %"
        return None

    def worker(self, seat: Seat, command: Sequence[str], path: str) -> Worker:
        """Return a worker; nothing starts before it runs."""
        workload = self._truth.workloads[seat.workload]
        return SimulatedWorker(seat, self.submissions, self.gpu, workload)

    def energy_j(self) -> float | None:
        """Return what the simulation counts."""
        used = self.submissions.pool.usage().get(self.gpu)
        return None if used is None else used.energy_j


class SimulatedWorker(Worker):
    """A workload of an instance: a run of its own each time, whose counter is read."""

    def __init__(self, seat: Seat, submissions: Submissions, gpu: str, workload: Workload) -> None:
        super().__init__(seat, submissions)
        self._place = PoolSeat(gpu=gpu, share=seat.share)
        self._iterations, self._read_s = 0.0, 0.0
        self.memory_mib = workload.memory_mib
        batch = workload.batch.size if workload.batch else None
        self.ready = {"family": workload.family, "batch_size": batch}

    def failure(self) -> Failure | None:
        """Return why it ended; by itself it ends only where memory is short."""
        if self.submission is not None and self.submission.status == 1:
            self._fail("out-of-memory", "the instance's memory does not suffice")
        return super().failure()

    def run(self) -> None:
        """Start a run."""
        self._events, self._stopped = [], False
        self._iterations, self._read_s = 0.0, boot_s()
        name = self.seat.workload
        self.submission = self._submissions.submit(_FOR_EVER, self._place, name=name)

    def stop(self) -> None:
        """End the run."""
        if self.submission is not None and self.failure() is None:
            self._submissions.end([self.submission], 0.0)
            self.submission = None
        self._stopped = True

    def events(self) -> Events:
        """Read the counter, and return what it has told since ``run``."""
        run = self.submission
        read = self._submissions.pool.progress(run.run.id) if run is not None else ()
        done = read[0] if read else None
        if done is not None and done.iterations > self._iterations:
            at_s = done.at_s - boot_s() + time.monotonic()
            counted, busy_s = done.iterations - self._iterations, done.at_s - self._read_s
            self._events.append(Steps(at_s, counted, busy_s))
            self._iterations, self._read_s = done.iterations, done.at_s
        return super().events()
