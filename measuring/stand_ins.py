"""Devices that stand in for a GPU: a processor core, and a simulation of an instance."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from dovetail.executor.jobs.specs import Seat as PoolSeat
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.runs.submissions import PoolSubmissions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.executor.system.clock import boot_s
from dovetail.instances.instance import Instance, Workload
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.device import Device
from dovetail.measuring.results import Facts
from dovetail.measuring.windows import Events, Steps
from dovetail.measuring.worker import Failure, Requests, Worker


class CpuDevice(Device):
    """The last core that this process may use: real processes and real contention, no CUDA.

    The kernel time-slices workers in either mode. Other processes may also use the core; their
    fraction of its time is reported.

    Parameters
    ----------
    directory : Path
        State directory of its pool.
    """

    env = MappingProxyType({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

    def __init__(self, directory: Path) -> None:
        self._pool = CpuPool(directory)
        (node,) = self._pool.cluster().nodes
        *_, core = node.gpus or ()
        text = f"one processor core ({processor_model()}): no figure here is one of a GPU"
        facts = Facts(gpu_model="cpu-1-core", stand_in=text, memory_mib=core.memory_mib)
        super().__init__(self._pool, core.id, facts)

    def why_not(self, seat: WorkerSeat) -> str | None:
        """Return why a seat is not available here."""
        if seat.mode == "isolated":
            return "a processor core has no kernels that could be intercepted"
        if seat.share is not None and self._pool.shares == "none":
            return "a cap needs control groups that limit CPU time, and none can be made here"
        return None


def processor_model() -> str:
    """Return the processor's name in ``/proc/cpuinfo``, or else its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


class SimulatedDevice(Device):
    """The first GPU of an instance, simulated without processes.

    A campaign measures the slowdowns of the instance, so that campaigns, and everything that uses
    their results, can be tried with known truth.

    Parameters
    ----------
    directory : Path
        State directory of its pool.
    truth : Instance
        Has the GPU, the workloads and their slowdowns.
    """

    def __init__(self, directory: Path, truth: Instance) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._truth = truth
        name, place = next(iter(truth.places.items()))
        text = f"a simulation of the instance {truth.name}: no figure here is one of a GPU"
        gpu = place.gpu
        facts = Facts(gpu_model=gpu.model, stand_in=text, sms=gpu.sms, memory_mib=gpu.memory_mib)
        super().__init__(SimulatedNode(directory, truth), name, facts)

    def why_not(self, seat: WorkerSeat) -> str | None:
        """Return why the instance cannot express a seat, or does not allow it."""
        if seat.mode == "time-sliced":
            return "an instance knows nothing of time slicing"
        if seat.mode == "isolated" or seat.load is not None:
            return "a simulation has neither requests nor kernels to intercept"
        if seat.share is not None and seat.share not in self._truth.cluster.shares:
            return f"the instance allows no share of {seat.share} %"
        return None

    def worker(self, seat: WorkerSeat, command: Sequence[str], path: str) -> Worker:
        """Return a worker; nothing starts before it runs."""
        workload = self._truth.workloads[seat.workload]
        return SimulatedWorker(seat, self.submissions, self.gpu, workload)

    def energy_j(self) -> float | None:
        """Return the energy of the simulation."""
        used = self.submissions.pool.usage().get(self.gpu)
        return None if used is None else used.energy_j


class SimulatedWorker(Worker):
    """A workload of an instance: one simulated run per window, whose progress is read."""

    def __init__(
        self, seat: WorkerSeat, submissions: PoolSubmissions, gpu: str, workload: Workload
    ) -> None:
        super().__init__(seat, submissions)
        self._place = PoolSeat(gpu=gpu, share=seat.share)
        self._iterations, self._read_s = 0.0, 0.0
        self.memory_mib = workload.memory_mib
        batch = workload.batch.size if workload.batch else None
        self.ready = {"family": workload.family, "batch_size": batch}

    def failure(self) -> Failure | None:
        """Return why it ended; it ends uncommanded only if memory is short."""
        if self.submission is not None and self.submission.status == 1:
            self._fail("out-of-memory", "the instance's memory does not suffice")
        return super().failure()

    def run(self, requests: Requests | None = None) -> None:
        """Start a run."""
        self._events, self._stopped = [], False
        self._iterations, self._read_s = 0.0, boot_s()
        command = ("simulated", "work_s=1e12")
        self.submission = self._submissions.submit(command, self._place, name=self.seat.workload)

    def stop(self) -> None:
        """End the run."""
        if self.submission is not None and self.failure() is None:
            self._submissions.end([self.submission], 0.0)
            self.submission = None
        self._stopped = True

    def events(self) -> Events:
        """Read the run's progress, and return all events since ``run``."""
        run = self.submission
        read = self._submissions.pool.progress(run.run.id) if run is not None else ()
        done = read[0] if read else None
        if done is not None and done.iterations > self._iterations:
            at_s = done.at_s - boot_s() + time.monotonic()
            counted, busy_s = done.iterations - self._iterations, done.at_s - self._read_s
            self._events.append(Steps(at_s, counted, busy_s))
            self._iterations, self._read_s = done.iterations, done.at_s
        return super().events()
