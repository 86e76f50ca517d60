"""A GPU: workers come to it through MPS, or without, and NVML tells what it does.

Clocks, power limits, the compute mode and MIG are never touched, and no GPU is ever reset.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

from dovetail.executor.live.dcgm import SOURCE as DCGM_SOURCE
from dovetail.executor.live.dcgm import Dcgm, open_dcgm
from dovetail.executor.live.mps import processes
from dovetail.executor.live.mps.errors import MpsError
from dovetail.executor.live.mps.health import HealthState
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Clock, Gpu, GpuLostError, Nvml, NvmlError
from dovetail.executor.live.split_measuring import Measuring, count_sms
from dovetail.executor.live.splits import WHOLE, SplitKey, Splits
from dovetail.executor.measuring.devices.device import (
    READING_S,
    TOKEN,
    Conditions,
    DeviceLostError,
    Facts,
    Series,
    started,
    worker_environment,
)
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.worker import Event
from dovetail.instances.errors import DovetailError, UnsupportedError

_LEAVE_S: Final = 20.0
"""Seconds that workers of a killed campaign have to end: they see its pipes close."""

_STEP_S: Final = 0.15
"""Longer than between two steps of the energy counter (about 0.1 s on data-centre GPUs)."""

_FAULTY: Final = frozenset({HealthState.FAULT, HealthState.UNKNOWN})

Trial = Callable[[Mapping[str, str]], None]


def _nothing(environment: Mapping[str, str]) -> None:
    """Try nothing."""


class GpuDevice:
    """One whole GPU that nobody else uses.

    Parameters
    ----------
    token : str
        Names the campaign's folder.
    gpu : Gpu
        Which one.
    nvml : Nvml
        An open session; it is the device's from now on.
    mps : MpsManager
        With a directory of this campaign's own, so that no service's daemon is used.
    splits : Splits
        What is known of shares.
    cublas : str or None
        The version that the workers' Python has.
    trial : callable, optional
        Is given the environment of a client before the first worker of MPS starts; raises
        ``DovetailError`` where MPS serves nobody, and nothing is then tried under MPS.

    Raises
    ------
    UnsupportedError
        When others use the GPU, or it is cut up by MIG.
    """

    kind = "cuda"

    def __init__(
        self,
        token: str,
        gpu: Gpu,
        nvml: Nvml,
        mps: MpsManager,
        splits: Splits,
        cublas: str | None,
        trial: Trial = _nothing,
    ) -> None:
        self._token, self._gpu, self._nvml, self._mps = token, gpu, nvml, mps
        self._driver = nvml.driver()
        self._splits, self._cublas = splits, cublas
        self._refuse_taken()
        self._dcgm = None if nvml.has_gpm(gpu.uuid) else open_dcgm()
        self._uses_mps = False
        self._trial = trial
        self._mps_tried = False
        self._mps_lacks = ""
        list(nvml.xids())

    @property
    def facts(self) -> Facts:
        """What NVML says of it."""
        gpu = self._gpu
        return Facts(gpu.name, None, gpu.uuid, self._driver, gpu.sms, gpu.memory_mib)

    def why_not(self, seat: Seat) -> str | None:
        """Return why a setting cannot be had on this GPU, or may not be used."""
        return self._why_not(seat, self._cublas)

    def launch(self, seat: Seat, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a worker as a client of MPS, or where it meets none."""
        return started(command, worker_environment(self._token, self._own(seat)))

    def unconfirmed(self, seat: Seat, ready: Event, pid: int) -> str | None:
        """Return what of MPS, its share and its SMs a ready worker does not have."""
        wants_mps = seat.mode == "mps"
        if ready.get("mps") is not wants_mps:
            return "did not reach MPS" if wants_mps else "is a client of MPS, and must not be"
        if not wants_mps:
            return None
        try:
            if not self._mps.attached(self._gpu.uuid, pid):
                return "says that it is a client of MPS, and is not in the list of clients"
        except MpsError as error:
            return str(error)
        return self._why_not(seat, ready.get("cublas")) or self._wrong_sms(seat, ready)

    def terminate(self, pid: int) -> None:
        """End its work under MPS: a client that is busy must not just be killed."""
        if self._uses_mps:
            self._mps.terminate(self._gpu.uuid, pid)

    def gone(self, pid: int) -> None:
        """Do nothing: MPS sees clients leave."""

    def free_mib(self) -> float | None:
        """Return what the driver says."""
        used = self._nvml.used_mib(self._gpu.uuid)
        return None if used is None else self._gpu.memory_mib - used

    def meter(self, ours: Collection[int]) -> GpuMeter:
        """Begin to read."""
        return GpuMeter(self._nvml, self._dcgm, self._gpu.uuid, frozenset(ours), self._servers)

    def trouble(self) -> str | None:
        """Return critical errors that the driver has reported, and faults of MPS."""
        try:
            self._nvml.check(self._gpu.uuid)
            codes = [xid.code for xid in self._nvml.xids() if xid.uuid in (self._gpu.uuid, "")]
        except (GpuLostError, NvmlError) as error:
            return str(error)
        told = [f"Xid {code}" for code in codes]
        if self._uses_mps:
            health = self._mps.health(self._gpu.uuid)
            if health.state in _FAULTY:
                told.append(f"MPS is in state {health.state}: {health.why}".rstrip(": "))
        return ", ".join(told) or None

    def recover(self) -> None:
        """Climb the ladder of recovery of MPS."""
        try:
            self._nvml.check(self._gpu.uuid)
            recovery = self._mps.recover(self._gpu.uuid) if self._uses_mps else None
        except (GpuLostError, NvmlError, MpsError) as error:
            raise DeviceLostError(f"{self._gpu.uuid}: {error}") from None
        if recovery is not None and not recovery.healthy:
            done = "; ".join(recovery.steps)
            raise DeviceLostError(f"{self._gpu.uuid}: MPS does not come back ({done})")

    def close(self) -> None:
        """End the daemon, and let go of everything."""
        try:
            self._mps.close()
            if self._mps.health(self._gpu.uuid).state is HealthState.DOWN:
                shutil.rmtree(self._mps.directory, ignore_errors=True)
        finally:
            if self._dcgm is not None:
                self._dcgm.close()
            self._nvml.close()

    # Settings.

    def _why_not(self, seat: Seat, cublas: str | None) -> str | None:
        if seat.mode == "time-sliced":
            if self._gpu.compute_mode != "default":
                return f"compute mode {self._gpu.compute_mode} lets no two processes take turns"
            return None
        if lacks := self._mps.why_not() or self._mps_lacks:
            return lacks
        if self._gpu.compute_mode == "prohibited":
            return "compute mode prohibited lets no process compute"
        if seat.share is None or seat.share == WHOLE:
            return None
        if cublas is None:
            return "which shares compute right depends on cuBLAS, and none is known here"
        key = SplitKey(self._gpu.name, self._driver, cublas)
        if seat.share in self._splits.allowed(key):
            return None
        if seat.share in self._splits.refused(key):
            return f"{seat.share} % has computed wrong here (dovetail doctor tells of it)"
        return f"{seat.share} % was not measured here: dovetail doctor --splits first"

    def _wrong_sms(self, seat: Seat, ready: Event) -> str | None:
        """Compare the SMs that a worker sees with those that the split gate has seen."""
        expected = self._expected_sms(seat, ready.get("cublas"))
        seen = ready.get("sms")
        if expected is None or seen == expected:
            return None
        return f"sees {seen} SMs at {seat.share or WHOLE} %, must see {expected}"

    def _expected_sms(self, seat: Seat, cublas: str | None) -> int | None:
        key, share = SplitKey(self._gpu.name, self._driver, cublas or ""), seat.share or WHOLE
        known = [one.sms for one in self._splits.evidence if (one.key, one.share) == (key, share)]
        if known:
            return known[-1]
        return self._gpu.sms if share == WHOLE else None

    def _own(self, seat: Seat) -> dict[str, str]:
        """Return a worker's own variables; without MPS, ours is ended first."""
        if seat.mode == "mps":
            self._try_mps()
            return self._client(seat)
        if self._uses_mps:
            self._mps.close()
            self._uses_mps = False
        return self._mps.without_mps(self._gpu.uuid)

    def _client(self, seat: Seat) -> dict[str, str]:
        self._uses_mps = True
        uid = os.geteuid()
        return self._mps.environment(self._gpu.uuid, uid, seat.share, None, seat.first)

    def _try_mps(self) -> None:
        """Let a small client try MPS once: workers that it does not serve may hang for minutes.

        Raises
        ------
        DovetailError
            When it serves nobody; what is measured without MPS can go on.
        """
        if not self._mps_tried:
            self._mps_tried = True
            try:
                self._trial(self._client(Seat("trial", "mps")))
            except DovetailError as error:
                self._mps_lacks = f"MPS serves nobody here: {error}"
                with contextlib.suppress(MpsError):
                    self._mps.close()
                self._uses_mps = False
        if self._mps_lacks:
            raise DovetailError(self._mps_lacks)

    # Who else is there.

    def _refuse_taken(self) -> None:
        name = self._gpu.uuid[:12]
        if self._gpu.mig:
            raise UnsupportedError(f"{name} is cut up by MIG: measure a whole GPU")
        for other in self._mps.foreign(self._gpu.uuid):
            raise UnsupportedError(f"{name}: MPS of others may be on it: {other}; end it first")
        pids = self._users()
        until = time.monotonic() + _LEAVE_S
        while pids and all(map(self._was_ours, pids)) and time.monotonic() < until:
            time.sleep(0.2)
            pids = self._users()
        if pids:
            told = ", ".join(map(str, pids))
            raise UnsupportedError(f"{name} is in use (pid {told}): wait until it is free")

    def _users(self) -> list[int]:
        found = set(self._nvml.processes(self._gpu.uuid))
        return sorted(found.difference(self._servers()))

    def _was_ours(self, pid: int) -> bool:
        """Whether a process was started by a campaign with this folder, which is gone."""
        process = processes.look(pid)
        given = (process.environment() or {}) if process is not None else {}
        return process is None or given.get(TOKEN) == self._token

    def _servers(self) -> tuple[int, ...]:
        return self._mps.health(self._gpu.uuid).servers


class GpuMeter:
    """What NVML (or DCGM before Hopper) tells of a GPU over a window.

    Parameters
    ----------
    nvml : Nvml
        An open session.
    dcgm : Dcgm or None
        Where there is no GPM, if it is installed.
    uuid : str
        The GPU.
    ours : set of int
        The workers' pids.
    servers : callable
        Returns the pids of this campaign's MPS servers.
    """

    def __init__(
        self,
        nvml: Nvml,
        dcgm: Dcgm | None,
        uuid: str,
        ours: frozenset[int],
        servers: Callable[[], Collection[int]],
    ) -> None:
        self._nvml, self._dcgm, self._uuid = nvml, dcgm, uuid
        self._ours, self._servers = ours, servers
        self._known = set(ours)
        self._clocks: list[Clock] = []
        self._powers: list[float] = []
        self._memory: dict[int, float] = {}
        self._others: set[int] = set()
        self._series, self._source = Series(), ""
        nvml.read(uuid)
        self._read_s = time.monotonic()
        if dcgm is not None:
            dcgm.readings(uuid)
        self.look()
        self._begun_s, self._begun_j = self._stepped()

    def look(self) -> None:
        """Read the clock, the power and the processes, and each second the metrics."""
        if time.monotonic() - self._read_s >= READING_S:
            self._take()
        self._clocks.append(self._nvml.clock(self._uuid))
        power_w = self._nvml.power_w(self._uuid)
        if power_w is not None:
            self._powers.append(power_w)
        found = self._nvml.processes(self._uuid)
        self._note_others(found)
        for pid, used_mib in found.items():
            if used_mib is not None:
                self._memory[pid] = max(used_mib, self._memory.get(pid, 0.0))

    def read(self) -> Conditions:
        """Return energy and means since the window began."""
        self.look()
        ended_s, ended_j = self._stepped()
        if not self._source or time.monotonic() - self._read_s >= READING_S / 2:
            self._take()
        energy_j = None
        if ended_j is not None and self._begun_j is not None:
            energy_j = max(0.0, ended_j - self._begun_j)
        power_w = energy_j / (ended_s - self._begun_s) if energy_j else _mean(self._powers)
        return Conditions(
            energy_j=energy_j,
            power_w=power_w,
            metrics=self._series.means(),
            metrics_variance=self._series.variances(),
            metrics_source=self._source,
            clock_mhz=_mean([c.sm_mhz for c in self._clocks if c.sm_mhz is not None]),
            temperature_c=_mean(
                [c.temperature_c for c in self._clocks if c.temperature_c is not None]
            ),
            throttled=tuple(sorted({why for clock in self._clocks for why in clock.throttled})),
            memory_mib=self._memory,
            disturbed_by=tuple(sorted(self._others)),
        )

    def _take(self) -> None:
        """Take in the metrics since the last time."""
        found, now_s = self._nvml.read(self._uuid), time.monotonic()
        self._series.add(found.metrics, now_s - self._read_s)
        self._read_s = now_s
        told = self._dcgm.readings(self._uuid) if self._dcgm is not None else ()
        for reading in told:
            self._series.add(reading)
        if self._source != DCGM_SOURCE:
            self._source = DCGM_SOURCE if told else found.source

    def _stepped(self) -> tuple[float, float | None]:
        """Return a moment and the energy by then, just after the counter has gone on.

        It goes on by steps, some ten a second; between them it says less than was used, which
        would be several per cent of a short window.
        """
        until_s = time.monotonic() + _STEP_S
        before = now = self._nvml.energy_j(self._uuid)
        while before is not None and now == before and time.monotonic() < until_s:
            time.sleep(_STEP_S / 100)
            now = self._nvml.energy_j(self._uuid)
        return time.monotonic(), now

    def _note_others(self, found: Collection[int]) -> None:
        """Note processes that are not ours.

        Where not even our own are named by their numbers, those are of another PID namespace (a
        container), and nobody can be told apart.
        """
        if self._ours.intersection(found) and not self._known.issuperset(found):
            self._known |= set(self._servers())
            self._others |= set(found) - self._known


def mps_trial(gpu: Gpu, driver: str, mps: MpsManager) -> Trial:
    """Return a trial of MPS: a client without PyTorch that asks for the SMs it has.

    It raises ``GateError`` where the client is refused, hangs, or comes to no MPS.
    """

    def trial(environment: Mapping[str, str]) -> None:
        terminate = partial(mps.terminate, gpu.uuid)
        client = Measuring(
            gpu.name, driver, gpu.sms, sys.executable, lambda share: environment, terminate
        )
        for _ in count_sms(client, (WHOLE,)):
            pass

    return trial


def campaign_mps(token: str) -> MpsManager:
    """Return a manager of MPS with a short directory of a campaign's own, the same each time."""
    digest = hashlib.sha256(token.encode()).hexdigest()[:8]
    base = Path("/run") if os.geteuid() == 0 and os.access("/run", os.W_OK) else Path("/tmp")
    return MpsManager(base / f"dovetail-measure-{os.geteuid()}-{digest}")


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
