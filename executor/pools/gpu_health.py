"""Health of the GPUs of a pool: critical errors, no answer, and failed MPS servers."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from dovetail.executor.gpus.nvml import GpuLostError, Nvml, NvmlError, NvmlGpu, Xid
from dovetail.executor.mps.control import HealthState, MpsError
from dovetail.executor.mps.manager import MpsManager
from dovetail.executor.pools.device_health import Cause, DeviceHealth
from dovetail.executor.pools.runs.processes import runs
from dovetail.executor.pools.shim.kernel import stat_of
from dovetail.executor.system.clock import boot_s

WATCH_S: Final = 2.0
"""Seconds between checks of MPS and of critical errors."""

REST_S: Final = 30.0
"""Seconds without starts on a GPU after a start on it failed."""

FAULT_S: Final = 10.0
"""Seconds after a program's fault in which failures of its co-runners are attributed to it."""

LEAVE_S: Final = 5.0
"""Seconds that a thread has to end; a thread in the middle of a recovery is left running."""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors caused by a program, after which the GPU still works (from NVIDIA's device plugin)."""

_FAULTY: Final = frozenset({HealthState.FAULT, HealthState.UNKNOWN})

_log = logging.getLogger(__name__)


class GpuHealth:
    """Watches GPUs, and recovers MPS after failures; meanwhile, nothing starts on the GPU.

    One thread checks all GPUs through NVML; each GPU has another for its MPS, because a recovery
    may take minutes.

    Parameters
    ----------
    gpus : mapping of str to NvmlGpu
        By device id.
    nvml : Nvml
        An open session.
    mps : MpsManager or None
        None without MPS.
    device_health : DeviceHealth
        Receives the findings.
    lost : callable
        Receives a device and the processes on it that lost their work with its MPS server.
    tend : callable, optional
        Maintains the schedulers of isolated runs, in a separate thread.
    """

    def __init__(
        self,
        gpus: Mapping[str, NvmlGpu],
        nvml: Nvml,
        mps: MpsManager | None,
        device_health: DeviceHealth,
        lost: Callable[[str, Collection[int]], None],
        tend: Callable[[], None] | None = None,
    ) -> None:
        self._gpus, self._nvml, self._mps = gpus, nvml, mps
        self._device_health, self._lost = device_health, lost
        self._left: dict[str, tuple[int, ...]] = {}
        self._rest_until_s: dict[str, float] = {}
        self._names = {gpu.uuid: name for name, gpu in gpus.items()}
        self._fault_s: dict[str, float] = {}
        self._listening = threading.Lock()
        self._closing = threading.Event()
        self._threads = [self._thread("GPUs", self._look)]
        for name, gpu in gpus.items() if mps is not None else ():
            self._threads.append(self._thread(name, self._nurse, name, gpu.uuid))
        if tend is not None:
            self._threads.append(self._thread("schedulers", tend))

    def start(self) -> None:
        """Start watching."""
        for thread in self._threads:
            thread.start()

    def close(self) -> bool:
        """Stop watching; return False if a recovery is still under way."""
        self._closing.set()
        begun = [thread for thread in self._threads if thread.ident is not None]
        for thread in begun:
            thread.join(LEAVE_S)
        return not any(thread.is_alive() for thread in begun)

    def rest(self, name: str, reason: str) -> None:
        """Start nothing on a GPU for a while, because a start on it just failed."""
        self._rest_until_s[name] = boot_s() + REST_S
        self._device_health.report(name, Cause.START, reason)

    def silent(self, name: str, reason: str) -> None:
        """Record that a GPU has not answered; it is healthy again as soon as it does."""
        self._device_health.report(name, Cause.ANSWER, reason)

    def faulted(self, name: str) -> bool:
        """Return whether a program's fault was seen on a GPU within ``FAULT_S``."""
        self._listen()
        uuid = self._gpus[name].uuid
        if self._mps is not None and self._mps.health(uuid).state is HealthState.FAULT:
            self._fault_s[name] = boot_s()
        return boot_s() - self._fault_s.get(name, -math.inf) < FAULT_S

    def look(self, name: str) -> str:
        """Check a GPU immediately, and return its faults, empty if there are none."""
        self._check(name, self._gpus[name])
        faulted = self.faulted(name)
        return self._device_health.of(name) or (
            "a program's fault was seen on it" if faulted else ""
        )

    def _thread(self, what: str, look: Callable[..., None], *of: str) -> threading.Thread:
        return threading.Thread(
            target=self._watch, args=(look, *of), name=f"health of {what}", daemon=True
        )

    def _watch(self, look: Callable[..., None], *of: str) -> None:
        while not self._closing.wait(WATCH_S):
            try:
                look(*of)
            except Exception:  # without its watchers a pool would start jobs on sick GPUs
                _log.exception("the health of GPUs could not be looked at")

    # Reports of the driver.

    def _look(self) -> None:
        for name, gpu in self._gpus.items():
            self._check(name, gpu)
        self._listen()

    def _listen(self) -> None:
        try:
            with self._listening:
                for xid in self._nvml.xids():
                    self._judge(xid)
        except (NvmlError, GpuLostError) as error:
            _log.info("critical errors cannot be asked for: %s", error)

    def _judge(self, xid: Xid) -> None:
        name = self._names.get(xid.uuid)
        if name is None:
            return
        if xid.code in APPLICATION_XIDS:
            self._fault_s[name] = boot_s()
        else:
            reason = f"the driver reported Xid {xid.code}: see dmesg"
            self._device_health.report(name, Cause.DRIVER, reason)

    def _check(self, name: str, gpu: NvmlGpu) -> None:
        try:
            self._nvml.check(gpu.uuid)
        except (NvmlError, GpuLostError) as error:
            self.silent(name, str(error))
        else:
            self._device_health.heal(name, Cause.ANSWER)

    # MPS.

    def _nurse(self, name: str, uuid: str) -> None:
        """Recover MPS on a GPU if its server has failed; until then nothing starts there."""
        assert self._mps is not None
        health = self._mps.health(uuid)
        if health.state in _FAULTY:
            self._device_health.report(name, Cause.MPS, f"MPS: {health.why or health.state}")
            try:
                recovery = self._mps.recover(uuid)
            except MpsError as error:
                _log.info("%s: MPS is not recovered now: %s", name, error)
                return
            _log.warning("%s: MPS was recovered: %s", name, "; ".join(recovery.steps))
            self._left[name] = recovery.left
            self._lost(name, recovery.left)
            if not recovery.healthy:
                return
        self._left[name] = tuple(filter(_lives, self._left.get(name, ())))
        if not self._left[name]:
            self._device_health.heal(name, Cause.MPS)
        self._end_rest(name, uuid)
        if self._mps.static:
            with suppress(MpsError):
                self._mps.sweep(uuid)

    def _end_rest(self, name: str, uuid: str) -> None:
        assert self._mps is not None
        if name not in self._rest_until_s or boot_s() < self._rest_until_s[name]:
            return
        foreign = self._mps.foreign(uuid)
        if foreign:
            self.rest(name, f"MPS of others may be on it: {foreign[0]}; end it")
        else:
            del self._rest_until_s[name]
            self._device_health.heal(name, Cause.START)


def _lives(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and runs(stat)
