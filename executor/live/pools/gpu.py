"""The pool of this machine's NVIDIA GPUs: jobs share them under MPS, or by turns without it.

Nothing of this has met a GPU yet (``docs/hardware.md``): MPS is tested with NVIDIA's own control
daemon and a stand-in, NVML with the real bindings and injected callbacks.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from dovetail.executor.live import events
from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.cublas import CublasVersions
from dovetail.executor.live.jobs import Run
from dovetail.executor.live.mps.errors import MpsError
from dovetail.executor.live.mps.health import HealthState
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Gpu, GpuLostError, Nvml, NvmlError
from dovetail.executor.live.pools.gate import LaunchError
from dovetail.executor.live.pools.local import LocalPool
from dovetail.executor.live.pools.pool import Usage
from dovetail.executor.live.pools.processes import descendants, stat_of
from dovetail.executor.live.splits import SplitKey, Splits
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Node
from dovetail.instances.instance import Gpu as Device

TURNS: Final = "no MPS: jobs that share a GPU take turns on it (time slicing), without SM shares"

RESERVE_MIB: Final = 512.0
"""Kept free on every GPU, for the driver and the MPS server."""

WATCH_S: Final = 2.0
"""Seconds between looks at MPS and at critical errors."""

OUTSIDE_S: Final = 15.0
"""Seconds for which a process may be on a GPU and not in the client list of its MPS server."""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program causes; the GPU is as good as before (NVIDIA's device plugin)."""

_FAULTY: Final = frozenset({HealthState.FAULT, HealthState.UNKNOWN})

_log = logging.getLogger(__name__)


class GpuPool(LocalPool):
    """NVIDIA GPUs as devices, one MPS control daemon each.

    A device's id is the beginning of the GPU's UUID, which NVIDIA's tools take, too. GPUs that are
    cut up by MIG, in compute mode PROHIBITED or lost are left out.

    Parameters
    ----------
    directory : path
        The state directory.
    nvml : Nvml
        An open session; closed with the pool.
    mps : MpsManager
        Of the directory for MPS.
    splits : Splits
        Evidence of the shares that compute right; no other is used.
    only : sequence of str
        Device ids or UUIDs (their beginnings); none = all GPUs.

    Raises
    ------
    InputError
        When there is no such GPU, or none at all.
    """

    name = "gpu"

    def __init__(
        self,
        directory: Path,
        nvml: Nvml,
        mps: MpsManager,
        splits: Splits,
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        self._nvml, self._mps, self._splits = nvml, mps, splits
        self._driver = nvml.driver()
        self._gpus = {_device_id(gpu): gpu for gpu in _chosen(_usable(nvml.gpus()), only)}
        self._has_mps = mps.why_not() is None
        self.notice = "" if self._has_mps else TURNS
        self._outside_since: dict[tuple[str, int], float] = {}
        self._cublas = CublasVersions()
        self._sick: dict[str, str] = {}
        self._left: dict[str, tuple[int, ...]] = {}
        self._closing = threading.Event()
        self._reading = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="gpu watcher", daemon=True)
        self._watcher.start()

    # What there is.

    def cluster(self) -> Cluster:
        """Return the GPUs, and the shares that some version of cuBLAS computes right under."""
        devices = tuple(
            Device(id=name, model=gpu.name, memory_mib=gpu.memory_mib, sms=gpu.sms)
            for name, gpu in self._gpus.items()
        )
        shares: set[int] = set()
        if self._has_mps:
            models = {gpu.name for gpu in self._gpus.values()}
            shares.update(*(self._splits.allowed_anywhere(m, self._driver) for m in models))
        return Cluster(
            nodes=(Node(id=socket.gethostname(), gpus=devices),),
            shares=tuple(sorted(shares)),
            reserve_mib=RESERVE_MIB,
        )

    def sharing(self, first: Run, second: Run) -> str | None:
        """Return why two runs may never share a GPU: an MPS server serves one user."""
        if self._has_mps and first.spec.owner.uid != second.spec.owner.uid:
            return "an MPS server serves one user at a time"
        return None

    def library(self, run: Run) -> str:
        """Return the version of cuBLAS that a run has loaded, empty where it is not known."""
        pids = [pid for gpu in self._gpus.values() for pid in self._pids(run, gpu)]
        return self._cublas.of(pids, run.spec.owner.uid, run.spec.owner.gid) or ""

    def allowed(self, library: str, model: str) -> Collection[int]:
        """Return the shares of a GPU model under which a version of cuBLAS computes right."""
        if not self._has_mps or not library:
            return ()
        return self._splits.allowed(SplitKey(model, self._driver, library))

    def usage(self) -> Mapping[str, Usage]:
        """Return what each GPU has been doing since the last call; none of one that is lost."""
        found = {}
        for name, gpu in self._gpus.items():
            try:
                with self._reading:
                    found[name] = self._read(gpu)
            except (GpuLostError, NvmlError) as error:
                self._report(name, str(error))
        return found

    def resume(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Take up the runs that should exist; no GPU is known to be sick yet."""
        for name in self._gpus:
            self._tell(events.DeviceHealed(at_s=0.0, gpu=name))
        return super().resume(runs)

    # What a rank needs.

    def rank_environment(self, run: Run, rank: int) -> Mapping[str, str]:
        """Return the variables that bring a rank to its GPU, under its cap and limit."""
        seat, spec = run.seats[rank], run.spec
        uuid = self._gpus[seat.gpu].uuid
        if not self._has_mps:
            if seat.share is not None:
                raise LaunchError(f"rank {rank}: no MPS, so no share can be held")
            return self._mps.without_mps(uuid)
        try:
            return self._mps.environment(
                uuid, spec.owner.uid, seat.share, seat.memory_mib, spec.priority == "latency"
            )
        except MpsError as error:
            raise LaunchError(f"rank {rank}: {error}") from None

    def is_ready(self, run: Run, rank: int, pid: int) -> bool:
        """Return whether a rank is among the clients of its GPU's MPS server.

        A rank that has found the GPU, but not the server, runs without its cap: it is stopped.
        """
        if not self._has_mps:
            return True
        uuid = self._gpus[run.seats[rank].gpu].uuid
        try:
            if self._mps.attached(uuid, pid):
                self._outside_since.pop((run.id, rank), None)
                return True
            with self._reading:
                outside = not self._nvml.processes(uuid).keys().isdisjoint(_family(pid))
        except (MpsError, NvmlError, GpuLostError) as error:
            _log.info("%s: rank %d cannot be looked up: %s", run.id, rank, error)
            return False
        self._judge_outsider(run, rank, outside)
        return False

    def before_kill(self, run: Run, rank: int) -> None:
        """Have MPS end the rank's work on the GPU: killing a busy client is undefined (NVIDIA)."""
        started = self.files(run.id).rank(rank).started()
        if not self._has_mps or started is None or started.rank is None:
            return
        uuid = self._gpus[run.seats[rank].gpu].uuid
        if not self._mps.terminate(uuid, started.rank.pid):
            _log.warning("%s: MPS could not end rank %d; it is killed all the same", run.id, rank)

    def close(self) -> None:
        """Let go of everything but the jobs and the daemons that serve them."""
        self._closing.set()
        self._watcher.join()
        super().close()
        self._mps.close()
        self._nvml.close()

    # How it is found out.

    def _read(self, gpu: Gpu) -> Usage:
        readings = self._nvml.read(gpu.uuid)
        return Usage(
            at_s=boot_s(),
            memory_mib=readings.used_mib,
            energy_j=readings.energy_j,
            metrics=readings.metrics,
            source=readings.source,
            memory_by_run=self._memory_by_run(gpu),
        )

    def _memory_by_run(self, gpu: Gpu) -> dict[str, float]:
        """Return what the processes of each run hold on a GPU, where the driver tells it."""
        by_pid = self._nvml.processes(gpu.uuid)
        found: dict[str, float] = defaultdict(float)
        for run in self.kept():
            for pid in self._pids(run, gpu):
                found[run.id] += by_pid.get(pid) or 0.0
        return {run: mib for run, mib in found.items() if mib}

    def _pids(self, run: Run, gpu: Gpu) -> Iterator[int]:
        for rank, seat in enumerate(run.seats):
            if self._gpus[seat.gpu] is not gpu:
                continue
            started = self.files(run.id).rank(rank).started()
            if started is not None and started.rank is not None:
                yield from _family(started.rank.pid)

    def _judge_outsider(self, run: Run, rank: int, outside: bool) -> None:
        key = (run.id, rank)
        if not outside:
            self._outside_since.pop(key, None)
        elif boot_s() - self._outside_since.setdefault(key, boot_s()) > OUTSIDE_S:
            del self._outside_since[key]
            reason = f"rank {rank} is on the GPU, but not under MPS: it would ignore its share"
            self._tell(events.StopDecided(at_s=0.0, run=run.id, reason=reason, then="fail"))

    # The health of GPUs.

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_S):
            try:
                self._look()
            except Exception:  # without its watcher a pool would start jobs on sick GPUs
                _log.exception("the GPUs could not be looked at")

    def _look(self) -> None:
        with self._reading:
            xids = list(self._nvml.xids())
        for xid in xids:
            for name, gpu in self._gpus.items():
                if gpu.uuid == xid.uuid and xid.code not in APPLICATION_XIDS:
                    self._report(name, f"the driver reported Xid {xid.code}: see dmesg")
        if self._has_mps:
            for name, gpu in self._gpus.items():
                self._nurse(name, gpu)

    def _nurse(self, name: str, gpu: Gpu) -> None:
        """Bring MPS back on a GPU whose server has failed; until then nothing starts there."""
        health = self._mps.health(gpu.uuid)
        if health.state in _FAULTY:
            self._report(name, f"MPS: {health.why or health.state}")
            recovery = self._mps.recover(gpu.uuid)
            _log.warning("%s: MPS was recovered: %s", name, "; ".join(recovery.steps))
            self._left[name] = recovery.left
            self._end(gpu, recovery.left)
            if not recovery.healthy:
                return
        if name in self._left and not any(map(stat_of, self._left[name])):
            del self._left[name]
            self._heal(name)

    def _end(self, gpu: Gpu, pids: Iterable[int]) -> None:
        """Stop the runs whose work on a GPU was lost with its MPS server."""
        lost = set(pids)
        for run in self.kept():
            if not lost.isdisjoint(self._pids(run, gpu)):
                then: Literal["wait", "fail"] = "wait" if run.spec.requeue else "fail"
                reason = "the MPS server of its GPU failed"
                self._tell(events.StopDecided(at_s=0.0, run=run.id, reason=reason, then=then))

    def _report(self, name: str, reason: str) -> None:
        if self._sick.get(name) != reason:
            self._sick[name] = reason
            self._tell(events.DeviceSick(at_s=0.0, gpu=name, reason=reason))

    def _heal(self, name: str) -> None:
        if self._sick.pop(name, None) is not None:
            self._tell(events.DeviceHealed(at_s=0.0, gpu=name))


def _family(pid: int) -> list[int]:
    return [pid, *(process.pid for process in descendants(pid))]


def _device_id(gpu: Gpu) -> str:
    return gpu.uuid[:12]


def _usable(gpus: Iterable[Gpu]) -> list[Gpu]:
    return [gpu for gpu in gpus if not gpu.mig and gpu.compute_mode != "prohibited"]


def _chosen(gpus: Sequence[Gpu], only: Sequence[str]) -> list[Gpu]:
    chosen = [gpu for gpu in gpus if not only or any(gpu.uuid.startswith(name) for name in only)]
    for name in only:
        if not any(gpu.uuid.startswith(name) for gpu in gpus):
            known = ", ".join(map(_device_id, gpus)) or "none"
            raise InputError(f"must name usable GPUs ({known}), got {name!r}", "--pool")
    if not chosen:
        raise InputError("there is no usable GPU: see dovetail doctor", "--pool")
    return chosen
