"""The GPUs of a machine as NVML reports them.

A reading that the GPU or the driver lacks is None; a lost GPU or a missing driver raises. Sources:
``nvidia-ml-py`` (the bindings), NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

from dovetail.instances.errors import DovetailError
from dovetail.instances.plugins import require_package

_Value = TypeVar("_Value")

MIB: Final = 2**20

_GPM_APART_S: Final = 0.15
"""Least seconds between two GPM samples; they must be more than 0.1 s apart (nvml.h)."""

_CORES_PER_SM: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
)
"""CUDA cores per SM by compute capability; all others since 2014 have 128."""

GPM_METRICS: Final[Mapping[str, tuple[int, float]]] = MappingProxyType(
    {
        "graphics_active": (1, 0.01),
        "sm_active": (2, 0.01),
        "sm_occupancy": (3, 0.01),
        "tensor_active": (5, 0.01),
        "dram_active": (10, 0.01),
        "fp64_active": (11, 0.01),
        "fp32_active": (12, 0.01),
        "fp16_active": (13, 0.01),
        "pcie_tx_bytes_s": (20, float(MIB)),
        "pcie_rx_bytes_s": (21, float(MIB)),
        "nvlink_rx_bytes_s": (60, float(MIB)),
        "nvlink_tx_bytes_s": (61, float(MIB)),
    }
)
"""Id of each metric in GPM, and the factor from per cent and MiB/s to fractions and bytes/s.

The header of 580 knows all of them (up to 209)."""

THROTTLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x2: "set clocks",
        0x4: "power cap",
        0x8: "hardware slowdown",
        0x10: "sync boost",
        0x20: "software thermal",
        0x40: "hardware thermal",
        0x80: "power brake",
        0x100: "display clocks",
    }
)
"""Names of the bits of ``nvmlClocksEventReason*``, without the bit of an idle GPU."""


class NvmlError(DovetailError):
    """NVML cannot be used: no driver, no library, or incompatible versions.

    Attributes
    ----------
    code : int or None
        NVML's return code (``nvmlReturn_t`` of nvml.h), if it returned one.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class GpuLostError(DovetailError):
    """A GPU has fallen off the bus or needs a reset."""


class _LackingError(NvmlError):
    """A call is not available, although others may be."""


class NvmlGpu(NamedTuple):
    """A GPU of this machine.

    Attributes
    ----------
    uuid, name : str
        UUID, and NVIDIA's name of the model.
    memory_mib : float
        Total device memory.
    sms : int or None
        Number of SMs, from the number of CUDA cores.
    capability : (int, int)
        CUDA compute capability.
    mig : bool
        Whether it is partitioned by MIG.
    compute_mode : str
        ``default``, ``exclusive_process`` or ``prohibited``.
    number : int
        Its place in the driver's order, from 0.
    """

    uuid: str
    name: str
    memory_mib: float
    sms: int | None
    capability: tuple[int, int]
    mig: bool
    compute_mode: str
    number: int = 0


class MemoryHealth(NamedTuple):
    """State of a GPU's memory; None if the GPU does not report it.

    Attributes
    ----------
    ecc : bool or None
        Whether errors are corrected.
    pending : bool or None
        Whether bad memory will be retired at the next reset.
    failed : bool or None
        Whether retiring it has failed.
    """

    ecc: bool | None
    pending: bool | None
    failed: bool | None


class Readings(NamedTuple):
    """Readings of a GPU; None for readings that it lacks.

    ``metrics`` are means since the previous reading, ``source`` names their origin, and
    ``throttled`` the reasons for lowered clocks (`THROTTLES`).
    """

    used_mib: float | None
    energy_j: float | None
    metrics: Mapping[str, float]
    source: str
    clock_mhz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]


class GroupMemory(NamedTuple):
    """A GPU's memory in a control group, in MiB; ``limit_mib`` is None without a limit."""

    limit_mib: float | None
    used_mib: float


class Xid(NamedTuple):
    """A critical error of a GPU, reported by the driver."""

    uuid: str
    code: int


class Nvml:
    """A session with NVML, and a context manager. Methods may be called from several threads.

    Attributes
    ----------
    lost : tuple of str
        The GPUs that did not answer when they were last listed, with the reasons.

    Raises
    ------
    UnsupportedError
        If ``nvidia-ml-py`` is not installed.
    NvmlError
        If there is no compatible driver.
    """

    def __init__(self) -> None:
        require_package("pynvml", "live", "reading GPUs")
        import pynvml

        self._nv: Any = pynvml
        self._call(self._nv.nvmlInit)
        self.lost: tuple[str, ...] = ()
        self._handles: dict[str, Any] = {}
        self._samples: dict[str, tuple[Any, float]] = {}
        self._sampling = threading.Lock()
        self._events: Any = None
        self._has_events = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        for sample, _ in self._samples.values():
            self._optional(self._nv.nvmlGpmSampleFree, sample)
        self._samples.clear()
        if self._events is not None:
            self._optional(self._nv.nvmlEventSetFree, self._events)
            self._events = None
        self._optional(self._nv.nvmlShutdown)

    def driver(self) -> str:
        """Return the driver's version."""
        return str(self._call(self._nv.nvmlSystemGetDriverVersion))

    def cuda(self) -> tuple[int, int] | None:
        """Return the newest version of CUDA that the driver supports."""
        version = self._optional(self._nv.nvmlSystemGetCudaDriverVersion_v2)
        return None if version is None else (version // 1000, version % 1000 // 10)

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return the GPUs that answer, in the driver's order; ``lost`` lists the others."""
        found, lost = [], []
        for index in range(self._call(self._nv.nvmlDeviceGetCount)):
            try:
                found.append(self._gpu(index))
            except (GpuLostError, _LackingError) as error:
                lost.append(f"GPU {index}: {error}")
        self.lost = tuple(lost)
        return tuple(found)

    def device_file(self, uuid: str) -> int | None:
        """Return the number of a GPU's device file, ``/dev/nvidiaN``, or None if unknown."""
        return self._optional(self._nv.nvmlDeviceGetMinorNumber, self._handle(uuid))

    def read(self, uuid: str) -> Readings:
        """Return the readings of a GPU.

        Raises
        ------
        GpuLostError
            If the GPU no longer answers.
        """
        nv, handle = self._nv, self._handle(uuid)
        memory = self._optional(nv.nvmlDeviceGetMemoryInfo, handle)
        with self._sampling:
            metrics, source = self._metrics(uuid, handle)
        mhz = self._optional(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM)
        heat = self._optional(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU)
        bits = self._optional(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return Readings(
            None if memory is None else memory.used / MIB,
            self.energy_j(uuid),
            metrics,
            source,
            None if mhz is None else float(mhz),
            None if heat is None else float(heat),
            tuple(name for bit, name in THROTTLES.items() if bits & bit),
        )

    def energy_j(self, uuid: str) -> float | None:
        """Return a GPU's energy in joules since the driver was loaded; raises like ``read``."""
        used_mj = self._optional(self._nv.nvmlDeviceGetTotalEnergyConsumption, self._handle(uuid))
        return None if used_mj is None else used_mj / 1000

    def check(self, uuid: str) -> None:
        """Raise like ``read`` if a GPU does not answer."""
        self._optional(self._nv.nvmlDeviceGetMemoryInfo, self._handle(uuid))

    def has_gpm(self, uuid: str) -> bool:
        """Return whether a GPU has GPM metrics (Hopper and newer)."""
        support = self._optional(self._nv.nvmlGpmQueryDeviceSupport, self._handle(uuid))
        return support is not None and bool(support.isSupportedDevice)

    def memory_health(self, uuid: str) -> MemoryHealth:
        """Return the state of a GPU's memory: row remapping (Ampere, newer) or page retirement."""
        nv, handle = self._nv, self._handle(uuid)
        mode = self._optional(nv.nvmlDeviceGetEccMode, handle)
        ecc = None if mode is None else bool(mode[0])
        rows = self._optional(nv.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            return MemoryHealth(ecc, bool(rows[2]), bool(rows[3]))
        pages = self._optional(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        return MemoryHealth(ecc, None if pages is None else bool(pages), None)

    def processes(self, uuid: str) -> dict[int, float | None]:
        """Return the memory in MiB (None if unknown) of every process on a GPU, by pid."""
        nv, handle = self._nv, self._handle(uuid)
        found: dict[int, float | None] = {}
        clients_of_mps = nv.nvmlDeviceGetMPSComputeRunningProcesses
        for ask in (nv.nvmlDeviceGetComputeRunningProcesses, clients_of_mps):
            for process in self._optional(ask, handle) or ():
                used = process.usedGpuMemory
                found[process.pid] = None if used is None else used / MIB
        return found

    def limits_groups(self, uuid: str) -> bool:
        """Return whether the driver and the bindings have limits for control groups (615)."""
        try:
            self.group_memory(uuid, Path("/"))
        except NvmlError as error:
            missing = (None, self._nv.NVML_ERROR_FUNCTION_NOT_FOUND)
            return error.code not in missing
        return True

    def group_memory(self, uuid: str, group: Path) -> GroupMemory:
        """Return a GPU's memory in a control group of version 2.

        Raises
        ------
        NvmlError
            If the driver has no limits for control groups (before 615), or none for this one.
        """
        asked = self._of_group("c_nvmlGetMemoryLimits_v1_t", group)
        self._group_call("nvmlDeviceGetMemoryLimits_v1", uuid, asked)
        limited = asked.hardLimit != self._nv.NVML_DEVICE_MEMORY_LIMIT_MAX
        return GroupMemory(asked.hardLimit / MIB if limited else None, asked.currentUsed / MIB)

    def limit_group(self, uuid: str, group: Path, limit_mib: float) -> None:
        """Limit the memory of a GPU that all processes in a control group use together.

        The kernel's controller ``dmem`` holds the limit, or the driver itself if the kernel has
        none; an allocation beyond it fails. No memory is reserved (the soft limit stays 0): a
        reservation is added to all groups above and stays there if the group is simply removed.
        Source: NVIDIA, "MPS v3 Memory Partitioning" (release 615, September 2026).

        Raises
        ------
        NvmlError
            If the driver has no limits for control groups (before 615), this process is not root,
            or the group cannot have one.
        """
        asked = self._of_group("c_nvmlSetMemoryLimits_v1_t", group)
        asked.softLimit, asked.hardLimit = 0, int(limit_mib * MIB)
        self._group_call("nvmlDeviceSetMemoryLimits_v1", uuid, asked)

    def _of_group(self, name: str, group: Path) -> Any:
        """Return an empty structure of NVML's about a control group."""
        kind = getattr(self._nv, name, None)
        if kind is None:
            raise NvmlError("nvidia-ml-py is older than 13.615, so it cannot limit control groups")
        asked = kind()
        asked.nameSpace = os.fsencode(group)
        return asked

    def _group_call(self, name: str, uuid: str, asked: Any) -> None:
        self._call(getattr(self._nv, name), self._handle(uuid), asked)

    def xids(self) -> Iterator[Xid]:
        """Yield the critical errors of the listed GPUs since the previous call.

        The driver does not repeat errors from before the first call. Call it from one thread only.
        """
        if self._events is None and self._has_events:
            self._events = self._registered()
            self._has_events = self._events is not None
        if self._events is None:
            return
        # A GPU that has just been lost no longer reports its UUID.
        uuids = {_address(handle): uuid for uuid, handle in self._handles.items()}
        wait = self._nv.nvmlEventSetWait_v2
        while (event := self._optional(wait, self._events, 0)) is not None:
            yield Xid(uuids.get(_address(event.device), ""), int(event.eventData))

    def _gpu(self, index: int) -> NvmlGpu:
        nv = self._nv
        handle = self._call(nv.nvmlDeviceGetHandleByIndex, index)
        uuid, name = (
            str(self._call(ask, handle)) for ask in (nv.nvmlDeviceGetUUID, nv.nvmlDeviceGetName)
        )
        memory = self._call(nv.nvmlDeviceGetMemoryInfo, handle).total / MIB
        self._handles[uuid] = handle
        capability = self._optional(nv.nvmlDeviceGetCudaComputeCapability, handle) or (0, 0)
        cores = self._optional(nv.nvmlDeviceGetNumGpuCores, handle)
        sms = None if cores is None else cores // _CORES_PER_SM.get(tuple(capability), 128)
        mig = self._optional(nv.nvmlDeviceGetMigMode, handle)
        mode = self._optional(nv.nvmlDeviceGetComputeMode, handle)
        modes = {
            nv.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
            nv.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
        }
        return NvmlGpu(
            uuid,
            name,
            memory,
            sms,
            (int(capability[0]), int(capability[1])),
            bool(mig and mig[0]),
            modes.get(mode, "default"),
            index,
        )

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._call(self._nv.nvmlDeviceGetHandleByUUID, uuid)
        return self._handles[uuid]

    def _metrics(self, uuid: str, handle: Any) -> tuple[Mapping[str, float], str]:
        """Return the utilisation that ``nvidia-smi`` shows, and GPM metrics if there are any.

        The memory's utilisation is the share of time with memory traffic, which GPM lacks.
        """
        rates = self._optional(self._nv.nvmlDeviceGetUtilizationRates, handle)
        found = {"gpu_util": rates.gpu / 100, "mem_util": rates.memory / 100} if rates else {}
        by_gpm = self._gpm(uuid, handle)
        if by_gpm:
            return found | by_gpm, "NVML GPM"
        return found, "NVML utilisation" if found else ""

    def _gpm(self, uuid: str, handle: Any) -> dict[str, float]:
        """Return the GPM metrics since the previous sample, empty if it is missing or too new."""
        older, taken_s = self._samples.get(uuid, (None, -math.inf))
        if time.monotonic() - taken_s < _GPM_APART_S:
            return {}
        if older is None and not self.has_gpm(uuid):
            return {}
        newer = self._optional(self._nv.nvmlGpmSampleAlloc)
        if newer is None:
            return {}
        if self._optional(self._nv.nvmlGpmSampleGet, handle, newer) is None:
            self._optional(self._nv.nvmlGpmSampleFree, newer)
            return {}
        self._samples[uuid] = newer, time.monotonic()
        if older is None:
            return {}
        try:
            return self._between(older, newer)
        finally:
            self._optional(self._nv.nvmlGpmSampleFree, older)

    def _between(self, older: Any, newer: Any) -> dict[str, float]:
        nv = self._nv
        asked = nv.c_nvmlGpmMetricsGet_t()
        asked.version = nv.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(GPM_METRICS)
        asked.sample1, asked.sample2 = older, newer
        for metric, (number, _) in zip(asked.metrics, GPM_METRICS.values(), strict=False):
            metric.metricId = number
        if self._optional(nv.nvmlGpmMetricsGet, asked) is None:
            return {}
        found = {}
        for metric, (name, (_, factor)) in zip(asked.metrics, GPM_METRICS.items(), strict=False):
            if metric.nvmlReturn == nv.NVML_SUCCESS and math.isfinite(metric.value):
                value = max(0.0, metric.value * factor)
                found[name] = value if name.endswith("bytes_s") else min(1.0, value)
        return found

    def _registered(self) -> Any:
        """Return an event set registered for critical errors, or None if no GPU supports it."""
        nv, registered = self._nv, False
        events = self._optional(nv.nvmlEventSetCreate)
        for handle in self._handles.values() if events is not None else ():
            with suppress(NvmlError, GpuLostError):
                kind = nv.nvmlEventTypeXidCriticalError
                self._call(nv.nvmlDeviceRegisterEvents, handle, kind, events)
                registered = True
        if events is not None and not registered:
            self._optional(nv.nvmlEventSetFree, events)
        return events if registered else None

    def _optional(self, call: Callable[..., _Value], *arguments: object) -> _Value | None:
        """Return the result of a call, or None if GPU, driver or permissions do not allow it.

        Raises
        ------
        NvmlError, GpuLostError
            If other calls would fail, too.
        """
        try:
            return self._call(call, *arguments)
        except _LackingError:
            return None

    def _call(self, call: Callable[..., _Value], *arguments: object) -> _Value:
        """Return the result of a call, and convert NVML's errors to ours.

        ``NVMLError`` objects cannot be hashed or compared with other types, so they are
        distinguished by class; a missing symbol may raise ``NVMLLibraryMismatchError``, which is
        not an ``NVMLError``.
        """
        nv = self._nv
        try:
            return call(*arguments)
        except nv.NVMLLibraryMismatchError as error:
            raise _LackingError(f"NVML is older than this call: {error}") from None
        except (nv.NVMLError_GpuIsLost, nv.NVMLError_ResetRequired) as error:
            raise GpuLostError(f"NVML: {error}") from None
        except (
            nv.NVMLError_Uninitialized,
            nv.NVMLError_DriverNotLoaded,
            nv.NVMLError_LibraryNotFound,
            nv.NVMLError_LibRmVersionMismatch,
        ) as error:
            raise NvmlError(f"NVML: {error}", getattr(error, "value", None)) from None
        except nv.NVMLError as error:
            raise _LackingError(f"NVML: {error}", error.value) from None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
