"""What NVML says of this machine's GPUs, in the words of the rest of Dovetail.

Every reading that a GPU or driver may lack is None where it does; a GPU that is lost or a driver
that is gone raises. Sources: ``nvidia-ml-py`` (the bindings), NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

from dovetail.instances.errors import DovetailError, UnsupportedError

_Value = TypeVar("_Value")

MIB: Final = 2**20

_GPM_APART_S: Final = 0.15
"""GPM samples have to be more than 0.1 s apart (nvml.h)."""

_CORES_PER_SM: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
)
"""CUDA cores of a multiprocessor by compute capability; 128 on all others since 2014."""

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
"""Metric -> id in GPM, and the factor from its per cent and MiB/s to fractions and bytes/s.

All ids are known to the 580 header, whose last one is 209."""

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
"""Bit of ``nvmlClocksEventReason*`` -> what lowers the clocks; being idle is left out."""


class NvmlError(DovetailError):
    """NVML cannot be used at all: no driver, no library, or two that do not fit.

    Attributes
    ----------
    code : int or None
        What NVML answered (``nvmlReturn_t`` of nvml.h), where it did.
    """

    def __init__(self, told: str, code: int | None = None) -> None:
        super().__init__(told)
        self.code = code


class GpuLostError(DovetailError):
    """A GPU has fallen off the bus or needs a reset."""


class Gpu(NamedTuple):
    """A GPU of this machine.

    Attributes
    ----------
    uuid, name : str
        NVIDIA's; the name is the GPU model.
    memory_mib : float
        In all.
    sms : int or None
        Streaming multiprocessors, from the number of CUDA cores.
    capability : (int, int)
        CUDA compute capability.
    mig : bool
        Whether it is cut up by MIG.
    compute_mode : str
        ``default``, ``exclusive_process`` or ``prohibited``.
    """

    uuid: str
    name: str
    memory_mib: float
    sms: int | None
    capability: tuple[int, int]
    mig: bool
    compute_mode: str


class MemoryHealth(NamedTuple):
    """How a GPU's memory is; None where the GPU does not tell.

    ``ecc`` says whether errors are corrected, ``pending`` whether bad memory waits to be taken out
    of use at the next reset, ``failed`` whether that could not be done.
    """

    ecc: bool | None
    pending: bool | None
    failed: bool | None


class Readings(NamedTuple):
    """What a GPU reports now; None for what it cannot tell.

    ``metrics`` are means since the reading before, ``source`` says by which means they were had,
    ``throttled`` what lowers clocks: ``power cap``, ``thermal`` and so on.
    """

    used_mib: float | None
    energy_j: float | None
    metrics: Mapping[str, float]
    source: str
    clock_mhz: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]


class Xid(NamedTuple):
    """A critical error that the driver reported of a GPU."""

    uuid: str
    code: int


class Nvml:
    """A session with NVML; use it as a context manager.

    Its methods may be called from several threads.

    Attributes
    ----------
    lost : tuple of str
        The GPUs that did not answer when they were last listed, and why.

    Raises
    ------
    UnsupportedError
        When ``nvidia-ml-py`` is not installed.
    NvmlError
        When there is no driver, or none that fits.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            told = "GPUs are read through nvidia-ml-py: pip install './dovetail[live]'"
            raise UnsupportedError(told) from None
        self._nv: Any = pynvml
        with self._told():
            self._nv.nvmlInit()
        self.lost: tuple[str, ...] = ()
        self._handles: dict[str, Any] = {}
        self._samples: dict[str, _Gpm] = {}
        self._sampling = threading.Lock()
        self._events: Any = None
        self._deaf = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        for sample in self._samples.values():
            sample.free()
        self._samples.clear()
        if self._events is not None:
            self._optional(self._nv.nvmlEventSetFree, self._events)
            self._events = None
        self._optional(self._nv.nvmlShutdown)

    def driver(self) -> str:
        """Return the driver's version."""
        with self._told():
            return str(self._nv.nvmlSystemGetDriverVersion())

    def cuda(self) -> tuple[int, int] | None:
        """Return the newest version of CUDA that the driver serves."""
        told = self._optional(self._nv.nvmlSystemGetCudaDriverVersion_v2)
        return None if told is None else (told // 1000, told % 1000 // 10)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that answer, in the driver's order; ``lost`` tells of the others."""
        with self._told():
            count = self._nv.nvmlDeviceGetCount()
        found, lost = [], []
        for index in range(count):
            try:
                found.append(self._gpu(index))
            except (GpuLostError, _LackingError) as error:
                lost.append(f"GPU {index}: {error}")
        self.lost = tuple(lost)
        return tuple(found)

    def device_file(self, uuid: str) -> int | None:
        """Return the number of a GPU's device file, ``/dev/nvidiaN``; None where it is not told."""
        return self._optional(self._nv.nvmlDeviceGetMinorNumber, self._handle(uuid))

    def read(self, uuid: str) -> Readings:
        """Return what a GPU reports now.

        Raises
        ------
        GpuLostError
            When the GPU does not answer any more.
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
        """Return the joules that a GPU has used since its driver was loaded; raises as ``read``."""
        told = self._optional(self._nv.nvmlDeviceGetTotalEnergyConsumption, self._handle(uuid))
        return None if told is None else told / 1000

    def check(self, uuid: str) -> None:
        """Return if a GPU answers; raises as ``read``."""
        self._optional(self._nv.nvmlDeviceGetMemoryInfo, self._handle(uuid))

    def has_gpm(self, uuid: str) -> bool:
        """Tell whether a GPU reports the activity of its parts (GPM, Hopper and newer)."""
        support = self._optional(self._nv.nvmlGpmQueryDeviceSupport, self._handle(uuid))
        return support is not None and bool(support.isSupportedDevice)

    def memory_health(self, uuid: str) -> MemoryHealth:
        """Return how a GPU's memory is: rows remapped (Ampere and newer), or pages retired."""
        nv, handle = self._nv, self._handle(uuid)
        mode = self._optional(nv.nvmlDeviceGetEccMode, handle)
        ecc = None if mode is None else bool(mode[0])
        rows = self._optional(nv.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            return MemoryHealth(ecc, bool(rows[2]), bool(rows[3]))
        pages = self._optional(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        return MemoryHealth(ecc, None if pages is None else bool(pages), None)

    def processes(self, uuid: str) -> dict[int, float | None]:
        """Return the memory in MiB, where it is told, of every process on a GPU, by pid.

        Clients of MPS have a list of their own.
        """
        nv, handle = self._nv, self._handle(uuid)
        found: dict[int, float | None] = {}
        of_mps = nv.nvmlDeviceGetMPSComputeRunningProcesses
        for ask in (nv.nvmlDeviceGetComputeRunningProcesses, of_mps):
            for process in self._optional(ask, handle) or ():
                used = process.usedGpuMemory
                found[process.pid] = None if used is None else used / MIB
        return found

    def xids(self) -> Iterator[Xid]:
        """Yield the critical errors of the listed GPUs that were reported since the last call.

        Those from before the first call are not told again by the driver. To be called from one
        thread.
        """
        if self._events is None and not self._deaf:
            self._events = self._registered()
            self._deaf = self._events is None
        if self._deaf:
            return
        # A GPU that has just been lost no longer tells who it is.
        uuids = {_address(handle): uuid for uuid, handle in self._handles.items()}
        wait = self._nv.nvmlEventSetWait_v2
        while (event := self._optional(wait, self._events, 0)) is not None:
            yield Xid(uuids.get(_address(event.device), ""), int(event.eventData))

    # How it is read.

    def _gpu(self, index: int) -> Gpu:
        nv = self._nv
        with self._told():
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            uuid, name = str(nv.nvmlDeviceGetUUID(handle)), str(nv.nvmlDeviceGetName(handle))
            memory = nv.nvmlDeviceGetMemoryInfo(handle).total / MIB
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
        return Gpu(
            uuid,
            name,
            memory,
            sms,
            (int(capability[0]), int(capability[1])),
            bool(mig and mig[0]),
            modes.get(mode, "default"),
        )

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            with self._told():
                self._handles[uuid] = self._nv.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _metrics(self, uuid: str, handle: Any) -> tuple[Mapping[str, float], str]:
        """Return the device utilisation of ``nvidia-smi``, and metrics by GPM where there are any.

        The memory's utilisation is the part of the time with memory traffic, which no metric of
        GPM is.
        """
        rates = self._optional(self._nv.nvmlDeviceGetUtilizationRates, handle)
        found = {"gpu_util": rates.gpu / 100, "mem_util": rates.memory / 100} if rates else {}
        if uuid not in self._samples and self.has_gpm(uuid):
            self._samples[uuid] = _Gpm(self, handle)
        if uuid in self._samples:
            by_gpm = self._samples[uuid].metrics()
            if by_gpm:
                return found | by_gpm, "NVML GPM"
        return found, "NVML utilisation" if found else ""

    def _registered(self) -> Any:
        """Register for critical errors; None where that has worked for no GPU."""
        nv, registered = self._nv, False
        events = self._optional(nv.nvmlEventSetCreate)
        for handle in self._handles.values() if events is not None else ():
            with suppress(NvmlError, GpuLostError), self._told():
                nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
                registered = True
        if events is not None and not registered:
            self._optional(nv.nvmlEventSetFree, events)
        return events if registered else None

    def _optional(self, call: Callable[..., _Value], *arguments: object) -> _Value | None:
        """Return what a call returns; None where the GPU, the driver or the user's rights lack it.

        Raises
        ------
        NvmlError, GpuLostError
            When it is not this call that fails.
        """
        try:
            with self._told():
                return call(*arguments)
        except _LackingError:
            return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of NVML into ours.

        ``NVMLError`` objects cannot be hashed or compared with other types, so they are told
        apart by class alone; a missing symbol may raise ``NVMLLibraryMismatchError``, which is
        none of them.
        """
        nv = self._nv
        try:
            yield
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


class _LackingError(NvmlError):
    """One call is not to be had; others may be."""


class _Gpm:
    """The means of a GPU's activity between calls (GPM, Hopper and newer)."""

    def __init__(self, session: Nvml, handle: Any) -> None:
        self._session, self._nv, self._handle = session, session._nv, handle
        self._older: Any = None
        self._taken_s = -math.inf

    def metrics(self) -> dict[str, float]:
        """Return the means since the call before; empty on the first, or too soon after it."""
        if time.monotonic() - self._taken_s < _GPM_APART_S:
            return {}
        newer = self._sample()
        if newer is None:
            return {}
        older, self._older, self._taken_s = self._older, newer, time.monotonic()
        if older is None:
            return {}
        try:
            return self._between(older, newer)
        finally:
            self._session._optional(self._nv.nvmlGpmSampleFree, older)

    def free(self) -> None:
        """Give the last sample back."""
        if self._older is not None:
            self._session._optional(self._nv.nvmlGpmSampleFree, self._older)
            self._older = None

    def _sample(self) -> Any:
        sample = self._session._optional(self._nv.nvmlGpmSampleAlloc)
        if sample is None:
            return None
        taken = self._session._optional(self._nv.nvmlGpmSampleGet, self._handle, sample)
        if taken is None:
            self._session._optional(self._nv.nvmlGpmSampleFree, sample)
        return taken

    def _between(self, older: Any, newer: Any) -> dict[str, float]:
        nv = self._nv
        asked = nv.c_nvmlGpmMetricsGet_t()
        asked.version = nv.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(GPM_METRICS)
        asked.sample1, asked.sample2 = older, newer
        for metric, (number, _) in zip(asked.metrics, GPM_METRICS.values(), strict=False):
            metric.metricId = number
        if self._session._optional(nv.nvmlGpmMetricsGet, asked) is None:
            return {}
        found = {}
        for metric, (name, (_, factor)) in zip(asked.metrics, GPM_METRICS.items(), strict=False):
            if metric.nvmlReturn == nv.NVML_SUCCESS and math.isfinite(metric.value):
                value = max(0.0, metric.value * factor)
                found[name] = value if name.endswith("bytes_s") else min(1.0, value)
        return found


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
