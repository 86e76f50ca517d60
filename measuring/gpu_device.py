"""A GPU to measure on, with workers under MPS or time-sliced, and readings by NVML.

Clocks, power limits, the compute mode and MIG are never changed, and no GPU is ever reset.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from dovetail.executor.gpus.nvml import Nvml, NvmlGpu
from dovetail.executor.gpus.splits import WHOLE, SplitKey, Splits
from dovetail.executor.mps.control import HealthState
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.pools.gpu import GpuPool, device_id
from dovetail.executor.pools.isolation import Isolation, SchedulerStatus
from dovetail.executor.pools.runs.submissions import PoolSubmissions
from dovetail.instances._record import IDLE
from dovetail.instances.errors import DovetailError, UnsupportedError
from dovetail.measuring.campaign import Mode, WorkerSeat
from dovetail.measuring.device import Device, DeviceLostError
from dovetail.measuring.results import Facts
from dovetail.measuring.split_measuring import Probe, count_sms
from dovetail.measuring.worker import Event, Worker

RECOVER_S: Final = 180.0
"""Seconds in which a GPU must recover; the recovery of MPS may take minutes."""

_LOOK_S: Final = 0.5


class GpuDevice(Device):
    """One whole GPU that no other program uses.

    Parameters
    ----------
    directory : path
        State directory of its pools.
    gpu : NvmlGpu
        The GPU.
    nvml : Nvml
        An open session; closed with the device.
    mps : MpsManager
        A manager with its own directory, so that no service's daemon is used.
    splits : Splits
        Measurements of shares.
    cublas : str or None
        Version of cuBLAS in the workers' Python.
    isolation : Isolation or str
        Isolates workers, with a directory of its own; or why nothing does.

    Raises
    ------
    UnsupportedError
        If others use the GPU, or it is partitioned by MIG.
    """

    has_kernels = True

    def __init__(
        self,
        directory: Path,
        gpu: NvmlGpu,
        nvml: Nvml,
        mps: MpsManager,
        splits: Splits,
        cublas: str | None,
        isolation: Isolation | str,
    ) -> None:
        self._directory, self._gpu, self._nvml, self._mps = directory, gpu, nvml, mps
        self._driver = nvml.driver()
        self._splits, self._cublas, self._isolation = splits, cublas, isolation
        self._refuse_unusable()
        self._mode: Mode = "mps"
        self._pool = self._opened(self._mode)
        facts = Facts(
            gpu_model=gpu.name,
            uuid=gpu.uuid,
            driver=self._driver,
            sms=gpu.sms,
            memory_mib=gpu.memory_mib,
        )
        super().__init__(self._pool, device_id(gpu), facts)
        self._refuse_taken()
        self._tried_mps, self._mps_lacks = False, ""

    def why_not(self, seat: WorkerSeat) -> str | None:
        """Return why a seat is not available on this GPU, or not allowed."""
        return self._why_not(seat, self._cublas)

    def open(self, mode: Mode) -> None:
        """Prepare the GPU for workers of a mode, and close the pool of another one.

        Raises
        ------
        DovetailError
            If MPS does not work; time-sliced experiments can still run.
        """
        if mode != "time-sliced" and self._mps_lacks:
            raise DovetailError(self._mps_lacks)
        if mode != self._mode:
            self.submissions.close()
            self._mode, self._pool = mode, self._opened(mode)
            self.submissions = PoolSubmissions(self._pool)
        if mode != "time-sliced" and not self._tried_mps:
            self._try_mps()

    def unconfirmed(self, worker: Worker) -> str | None:
        """Return how a ready worker lacks MPS, its share or its SMs, or None."""
        seat, ready = worker.seat, worker.ready or {}
        wants_mps = seat.mode != "time-sliced"
        if ready.get("mps") is not wants_mps:
            return "did not reach MPS" if wants_mps else "is a client of MPS, and must not be"
        lack = None
        if wants_mps:
            lack = self._why_not(seat, ready.get("cublas")) or self._wrong_sms(seat, ready)
        return lack or super().unconfirmed(worker)

    def energy_j(self) -> float | None:
        """Return the driver's energy counter."""
        return self._nvml.energy_j(self._gpu.uuid)

    def intercepted(self) -> SchedulerStatus | None:
        """Return what the GPU's scheduler of isolated workers has counted."""
        if self._mode != "isolated" or isinstance(self._isolation, str):
            return None
        return self._isolation.status(self._gpu.uuid, os.geteuid())

    def trouble(self) -> str:
        """Return critical errors of the driver, and faults of MPS."""
        return self._pool.look(self.gpu)

    def recover(self) -> None:
        """Wait until the pool has recovered MPS."""
        until_s = time.monotonic() + RECOVER_S
        while why := self.trouble():
            if time.monotonic() >= until_s or self._pool.is_broken(self.gpu):
                raise DeviceLostError(f"{self._gpu.uuid}: {why}")
            self.submissions.wait(lambda: False, time.monotonic() + _LOOK_S)

    def close(self) -> None:
        """End the workers and the daemon, and close everything."""
        try:
            super().close()
            if not isinstance(self._isolation, str):
                self._isolation.end(self._gpu.uuid, os.geteuid())
            if self._mps.health(self._gpu.uuid).state is HealthState.DOWN:
                shutil.rmtree(self._mps.directory, ignore_errors=True)
        finally:
            self._nvml.close()

    def _opened(self, mode: Mode) -> GpuPool:
        isolation = self._isolation if mode == "isolated" else None
        return GpuPool(
            self._directory,
            Nvml(),
            self._mps,
            self._splits,
            (self._gpu.uuid,),
            turns=mode == "time-sliced",
            isolation=None if isinstance(isolation, str) else isolation,
            priorities=mode == "mps",
        )

    def _why_not(self, seat: WorkerSeat, cublas: str | None) -> str | None:
        if seat.mode == "time-sliced":
            if self._gpu.compute_mode != "default":
                return f"compute mode {self._gpu.compute_mode} lets no two processes take turns"
            return None
        if seat.mode == "isolated" and isinstance(self._isolation, str):
            return f"nothing isolates here: {self._isolation}"
        if lacks := self._mps.why_not() or self._mps_lacks:
            return lacks
        if seat.share in (None, IDLE, WHOLE):
            return None
        if cublas is None:
            return "which shares compute correctly depends on cuBLAS, whose version is unknown"
        key = SplitKey(self._gpu.name, self._driver, cublas)
        if seat.share in self._splits.allowed(key):
            return None
        if seat.share in self._splits.refused(key):
            return f"{seat.share} % has computed wrong here (see dovetail doctor)"
        return f"{seat.share} % was not measured here: dovetail doctor --splits first"

    def _wrong_sms(self, seat: WorkerSeat, ready: Event) -> str | None:
        """Return how the SMs that a worker sees differ from those seen by the split gate."""
        share, seen = WHOLE if seat.share in (None, IDLE) else seat.share, ready.get("sms")
        key = SplitKey(self._gpu.name, self._driver, ready.get("cublas") or "")
        whole = [self._gpu.sms] if share == WHOLE else []
        known = [one.sms for one in self._splits.evidence if (one.key, one.share) == (key, share)]
        expected = [*whole, *known][-1:]
        if expected in ([], [None], [seen]):
            return None
        return f"sees {seen} SMs at {share} %, must see {expected[0]}"

    def _try_mps(self) -> None:
        """Try MPS once with a small client, as workers may hang for minutes if it does not work."""
        self._tried_mps = True
        facts = (self._gpu.name, self._driver, self._gpu.sms, sys.executable)
        try:
            list(count_sms(Probe(*facts, self.submissions, self.gpu), (WHOLE,)))
        except DovetailError as error:
            self._mps_lacks = f"MPS serves no client here: {error}"
            self.open("time-sliced")
            raise DovetailError(self._mps_lacks) from None

    def _refuse_unusable(self) -> None:
        name = device_id(self._gpu)
        if self._gpu.mig:
            raise UnsupportedError(f"{name} is partitioned by MIG: measure a whole GPU")
        if self._gpu.compute_mode == "prohibited":
            raise UnsupportedError(f"{name}: compute mode prohibited lets no process compute")
        for other in self._mps.foreign(self._gpu.uuid):
            raise UnsupportedError(f"{name}: MPS of others may be on it: {other}; end it first")

    def _refuse_taken(self) -> None:
        """Refuse a GPU with processes, after those of a killed campaign have been ended."""
        servers = self._mps.health(self._gpu.uuid).servers
        pids = sorted(set(self._nvml.processes(self._gpu.uuid)).difference(servers))
        if pids:
            self.submissions.close()
            text = ", ".join(map(str, pids))
            raise UnsupportedError(f"{self.gpu} is in use (pid {text}): wait until it is free")


def short_directory(name: str, token: str) -> Path:
    """Return a path that is short enough for sockets, the same for the same token."""
    digest = hashlib.sha256(token.encode()).hexdigest()[:8]
    base = Path("/run") if os.geteuid() == 0 and os.access("/run", os.W_OK) else Path("/tmp")
    return base / f"dovetail-{name}-{os.geteuid()}-{digest}"
