"""Faults of the devices of a pool, reported as events and kept across restarts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.system.clock import boot_id
from dovetail.instances._record import Record
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data, write_data

_log = logging.getLogger(__name__)


class Cause(StrEnum):
    """The source of a report that a device is sick; each source is healed separately."""

    ANSWER = "answer"
    """It does not answer."""
    DRIVER = "driver"
    """Its driver has reported an error of the device, which happens only once."""
    NODE = "node"
    """Its node has reported it."""
    ENGINE = "engine"
    """The engine that lends its node will soon take it back."""
    MPS = "mps"
    """Its MPS server has failed, or clients of the failed server have not ended yet."""
    START = "start"
    """A start on it failed a moment ago."""


_LASTING: Final = frozenset({Cause.DRIVER})
"""Causes that cannot be checked again: they hold until the next boot."""


class _KeptHealth(Record):
    """The content of the file: the known faults, and the boot in which they were found."""

    boot: str
    devices: dict[str, dict[Cause, str]]


class DeviceHealth:
    """The faults of each device, by cause.

    Its methods may be called from several threads.

    Parameters
    ----------
    path : path
        The file, with every device that was ever reported as sick. The last report of each device
        is repeated after a restart, because later reports may have been lost with the service.
    report : callable
        Receives the events.
    """

    def __init__(self, path: Path, report: Callable[[AnyEvent], None]) -> None:
        self._path, self._report = path, report
        self._lock = threading.Lock()
        self._known: dict[str, dict[Cause, str]] = {}

    def resume(self, devices: Collection[str]) -> None:
        """Report again the devices that were sick, keeping only causes that cannot be rechecked."""
        with self._lock:
            self._known = self._read()
            for device in self._known.keys() & devices:
                self._publish(device)

    def report(self, device: str, cause: Cause, reason: str) -> None:
        """Record that a device is sick, and report it if that is new."""
        with self._lock:
            causes = self._known.setdefault(device, {})
            if causes.get(cause) != reason:
                causes[cause] = reason
                self._keep()
                self._publish(device)

    def heal(self, device: str, cause: Cause) -> None:
        """Record that a cause is gone, and report the device if that is new."""
        with self._lock:
            if self._known.get(device, {}).pop(cause, None) is not None:
                self._keep()
                self._publish(device)

    def of(self, device: str) -> str:
        """Return the faults of a device as text, empty if there are none."""
        return "; ".join(self._known.get(device, {}).values())

    def has(self, device: str, *causes: Cause) -> bool:
        """Return whether a device is sick from one of these causes."""
        return not self._known.get(device, {}).keys().isdisjoint(causes)

    def _publish(self, device: str) -> None:
        if reason := self.of(device):
            self._report(events.DeviceSick(at_s=0.0, gpu=device, reason=reason))
        else:
            self._report(events.DeviceHealed(at_s=0.0, gpu=device))

    def _keep(self) -> None:
        kept = _KeptHealth(boot=boot_id(), devices=self._known)
        try:
            write_data(kept.to_data(), self._path)
        except InputError as error:
            _log.warning("the list of sick devices is not saved: %s", error)

    def _read(self) -> dict[str, dict[Cause, str]]:
        if not self._path.exists():
            return {}
        try:
            kept = _KeptHealth.from_data(read_data(self._path), self._path.name)
        except InputError as error:
            _log.warning("it is not known which devices were sick: %s", error)
            return {}
        lasting = _LASTING if kept.boot == boot_id() else frozenset()
        return {
            device: {cause: reason for cause, reason in causes.items() if cause in lasting}
            for device, causes in kept.devices.items()
        }
