"""A library of injected callbacks in place of libnvidia-ml, driven by the real ``pynvml``.

It tests marshalling and the handling of errors, never what a GPU would say: every value here is
made up.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, cast

import pynvml

SUCCESS = pynvml.NVML_SUCCESS
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class InjectedLibrary:
    """Two made-up GPUs; tests set ``fails[function] = code`` or delete attributes."""

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.gpm_values = {1: 99.0, 2: 80.0, 3: 40.0, 5: 60.0, 10: 50.0, 21: 1000.0}
        self.gpm_supported = True
        self.xids = [(0, 31)]
        self.processes = {"compute": [(100, 30 << 20)], "mps": [(101, 500 << 20), (102, None)]}
        self.lost: set[int] = set()
        self.uuids = {0: "GPU-injected-0", 1: "GPU-injected-1"}
        self.compute_modes = {0: 0, 1: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS}
        self.gpus = 2
        self.driver = "580.0 (injected)"
        self.cuda = 13000
        self.mig = 0
        self.pending_rows = self.failed_rows = 0
        self.energy_mj: Callable[[], int] = lambda: 123456
        self.throttles = 0x1 | 0x4 | 0x40
        self.freed = 0
        self.sampled = 0
        self.group_limits: dict[tuple[int, str], int] = {}
        self.group_used = 0
        for name in dir(type(self)):
            if name.startswith("_nvml"):
                self._add(name[1:], getattr(self, name))

    def with_group_limits(self) -> None:
        """Become a library of release 615, which limits the memory of control groups."""
        self.driver = "615.71.09"
        for call in (self._limits_of_a_group, self._limit_a_group):
            self._add(call.__doc__ or "", call)

    def _limits_of_a_group(self, handle: c_void_p, asked: c_void_p) -> int:
        """nvmlDeviceGetMemoryLimits_v1"""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t.from_address(asked)
        key = (int(handle), str(limits.nameSpace))
        if not os.path.isdir(key[1]):
            return pynvml.NVML_ERROR_NOT_FOUND
        limits.softLimit, limits.currentUsed = 0, self.group_used
        limits.hardLimit = self.group_limits.get(key, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
        return SUCCESS

    def _limit_a_group(self, handle: c_void_p, asked: c_void_p) -> int:
        """nvmlDeviceSetMemoryLimits_v1"""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t.from_address(asked)
        key = (int(handle), str(limits.nameSpace))
        if not os.path.isdir(key[1]):
            return pynvml.NVML_ERROR_NOT_FOUND
        self.group_limits[key] = limits.hardLimit
        return SUCCESS

    def _add(self, name: str, body: Callable[..., int]) -> None:
        arguments = body.__annotations__.copy()
        arguments.pop("return", None)
        kinds = [eval(kind) for kind in arguments.values()]

        def called(*values: object) -> int:
            return self.fails.get(name, SUCCESS) or body(*values)

        setattr(self, name, CFUNCTYPE(c_int, *kinds)(called))

    def _nvmlInitWithFlags(self, flags: c_uint) -> int:
        return SUCCESS

    def _nvmlShutdown(self) -> int:
        return SUCCESS

    def _nvmlSystemGetDriverVersion(self, text: c_void_p, size: c_uint) -> int:
        return _say(text, self.driver.encode())

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: c_void_p) -> int:
        c_int.from_address(version).value = self.cuda
        return SUCCESS

    def _nvmlDeviceGetCount_v2(self, count: c_void_p) -> int:
        c_uint.from_address(count).value = self.gpus
        return SUCCESS

    def _nvmlDeviceGetHandleByIndex_v2(self, index: c_uint, handle: c_void_p) -> int:
        c_void_p.from_address(handle).value = index + 1
        return SUCCESS

    def _nvmlDeviceGetHandleByUUID(self, uuid: c_char_p, handle: c_void_p) -> int:
        c_void_p.from_address(handle).value = 1 + list(self.uuids.values()).index(uuid.decode())
        return SUCCESS

    def _nvmlDeviceGetUUID(self, handle: c_void_p, text: c_void_p, size: c_uint) -> int:
        return _say(text, self.uuids[handle - 1].encode())

    def _nvmlDeviceGetMinorNumber(self, handle: c_void_p, number: c_void_p) -> int:
        # Not the driver's order: the device files count backwards.
        c_uint.from_address(number).value = self.gpus - handle
        return SUCCESS

    def _nvmlDeviceGetName(self, handle: c_void_p, text: c_void_p, size: c_uint) -> int:
        return _say(text, b"Injected H200")

    def _nvmlDeviceGetMemoryInfo(self, handle: c_void_p, memory: c_void_p) -> int:
        if handle - 1 in self.lost:
            return pynvml.NVML_ERROR_GPU_IS_LOST
        (
            pynvml.c_nvmlMemory_t.from_address(memory).total,
            pynvml.c_nvmlMemory_t.from_address(memory).free,
            pynvml.c_nvmlMemory_t.from_address(memory).used,
        ) = 2048 << 20, 1948 << 20, 100 << 20
        return SUCCESS

    def _nvmlDeviceGetCudaComputeCapability(
        self, handle: c_void_p, major: c_void_p, minor: c_void_p
    ) -> int:
        c_int.from_address(major).value = 9
        c_int.from_address(minor).value = 0
        return SUCCESS

    def _nvmlDeviceGetNumGpuCores(self, handle: c_void_p, cores: c_void_p) -> int:
        c_uint.from_address(cores).value = 132 * 128
        return SUCCESS

    def _nvmlDeviceGetMigMode(self, handle: c_void_p, now: c_void_p, pending: c_void_p) -> int:
        c_uint.from_address(now).value = c_uint.from_address(pending).value = self.mig
        return SUCCESS

    def _nvmlDeviceGetEccMode(self, handle: c_void_p, now: c_void_p, pending: c_void_p) -> int:
        c_uint.from_address(now).value = c_uint.from_address(pending).value = 1
        return SUCCESS

    def _nvmlDeviceGetRemappedRows(
        self,
        handle: c_void_p,
        corrected: c_void_p,
        uncorrected: c_void_p,
        pending: c_void_p,
        failed: c_void_p,
    ) -> int:
        c_uint.from_address(corrected).value = c_uint.from_address(uncorrected).value = 0
        c_uint.from_address(pending).value = self.pending_rows
        c_uint.from_address(failed).value = self.failed_rows
        return SUCCESS

    def _nvmlDeviceGetComputeMode(self, handle: c_void_p, mode: c_void_p) -> int:
        c_uint.from_address(mode).value = self.compute_modes[handle - 1]
        return SUCCESS

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: c_void_p, energy: c_void_p) -> int:
        c_ulonglong.from_address(energy).value = self.energy_mj()
        return SUCCESS

    def _nvmlDeviceGetClockInfo(self, handle: c_void_p, kind: c_uint, mhz: c_void_p) -> int:
        c_uint.from_address(mhz).value = 1980 if kind == pynvml.NVML_CLOCK_SM else 1
        return SUCCESS

    def _nvmlDeviceGetTemperature(self, handle: c_void_p, sensor: c_uint, heat: c_void_p) -> int:
        c_uint.from_address(heat).value = 61
        return SUCCESS

    def _nvmlDeviceGetCurrentClocksThrottleReasons(
        self, handle: c_void_p, reasons: c_void_p
    ) -> int:
        c_ulonglong.from_address(reasons).value = self.throttles
        return SUCCESS

    def _nvmlDeviceGetUtilizationRates(self, handle: c_void_p, rates: c_void_p) -> int:
        (
            pynvml.c_nvmlUtilization_t.from_address(rates).gpu,
            pynvml.c_nvmlUtilization_t.from_address(rates).memory,
        ) = 90, 30
        return SUCCESS

    def _nvmlGpmQueryDeviceSupport(self, handle: c_void_p, support: c_void_p) -> int:
        pynvml.c_nvmlGpmSupport_t.from_address(support).isSupportedDevice = int(self.gpm_supported)
        return SUCCESS

    def _nvmlGpmSampleAlloc(self, sample: c_void_p) -> int:
        self.sampled += 1
        c_void_p.from_address(sample).value = self.sampled
        return SUCCESS

    def _nvmlGpmSampleFree(self, sample: c_void_p) -> int:
        self.freed += 1
        return SUCCESS

    def _nvmlGpmSampleGet(self, handle: c_void_p, sample: c_void_p) -> int:
        return SUCCESS

    def _nvmlGpmMetricsGet(self, asked: c_void_p) -> int:
        for place in range(pynvml.c_nvmlGpmMetricsGet_t.from_address(asked).numMetrics):
            metric = pynvml.c_nvmlGpmMetricsGet_t.from_address(asked).metrics[place]
            known = metric.metricId in self.gpm_values
            metric.nvmlReturn = SUCCESS if known else NOT_SUPPORTED
            metric.value = self.gpm_values.get(metric.metricId, 0.0)
        return SUCCESS

    def _nvmlEventSetCreate(self, events: c_void_p) -> int:
        c_void_p.from_address(events).value = 77
        return SUCCESS

    def _nvmlEventSetFree(self, events: c_void_p) -> int:
        return SUCCESS

    def _nvmlDeviceRegisterEvents(
        self, handle: c_void_p, kinds: c_ulonglong, events: c_void_p
    ) -> int:
        return SUCCESS

    def _nvmlEventSetWait_v2(self, events: c_void_p, event: c_void_p, wait_ms: c_uint) -> int:
        if not self.xids:
            return pynvml.NVML_ERROR_TIMEOUT
        gpu, code = self.xids.pop(0)
        handle = ctypes.cast(gpu + 1, pynvml.c_nvmlDevice_t)
        (
            pynvml.c_nvmlEventData_t.from_address(event).device,
            pynvml.c_nvmlEventData_t.from_address(event).eventData,
        ) = handle, code
        return SUCCESS

    def _nvmlDeviceGetComputeRunningProcesses_v3(
        self, handle: c_void_p, count: c_void_p, found: c_void_p
    ) -> int:
        return self._processes("compute", count, found)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(
        self, handle: c_void_p, count: c_void_p, found: c_void_p
    ) -> int:
        return self._processes("mps", count, found)

    def _processes(self, kind: str, count: int, found: int | None) -> int:
        known = self.processes[kind]
        if not known:
            c_uint.from_address(count).value = 0
            return SUCCESS
        if not found:
            c_uint.from_address(count).value = len(known)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        table = cast(found, POINTER(pynvml.c_nvmlProcessInfo_v3_t))
        for place, (pid, used) in enumerate(known):
            table[place].pid = pid
            table[place].usedGpuMemory = (
                pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value if used is None else used
            )
        c_uint.from_address(count).value = len(known)
        return SUCCESS


def _say(text: int, words: bytes) -> int:
    ctypes.memmove(text, words + b"\0", len(words) + 1)
    return SUCCESS


@contextmanager
def injected() -> Iterator[InjectedLibrary]:
    """Let the real ``pynvml`` call a fresh injected library, and forget it afterwards."""
    library = InjectedLibrary()
    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
    try:
        yield library
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
