"""A stand-in of a GPU: the made-up one of the tests, which interprets PTX and has no clock.

What it measures are the seconds of the interpreter: they say nothing about a GPU.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from pathlib import Path

from blocks.cuda import UNDER_MPS
from tests.isolation import made_up_gpu


class StandIn(made_up_gpu.MadeUpGpu):
    """The made-up GPU, with the functions of the driver that only the steps call."""

    def cuDeviceGet(self, to: int, number: int) -> None:  # noqa: N802
        """Give the only device."""
        _put(to, struct.pack("=i", 0))

    def cuDeviceGetName(self, to: int, size: int, device: int) -> None:  # noqa: N802
        """Give its name."""
        _put(to, b"stand-in\0")

    def cuDeviceGetAttribute(self, to: int, attribute: int, device: int) -> None:  # noqa: N802
        """Give an attribute; no process is a client of MPS."""
        if attribute & 0xFFFFFFFF == UNDER_MPS:
            _put(to, struct.pack("=i", 0))
        else:
            super().cuDeviceGetAttribute(to, attribute, device)

    def cuDriverGetVersion(self, to: int) -> None:  # noqa: N802
        """Give no version."""
        _put(to, struct.pack("=i", 0))

    def cuDevicePrimaryCtxRetain(self, to: int, device: int) -> None:  # noqa: N802
        """Give the only context."""
        _put(to, struct.pack("=Q", made_up_gpu.CONTEXT))

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        """Wait for all streams."""
        return self._wait([*self._streams])

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:  # noqa: N802
        """Allow more shared memory."""
        self.cuKernelSetAttribute(attribute, value, function, 0)

    def cuEventCreate(self, to: int, flags: int) -> None:  # noqa: N802
        """Give a new event."""
        event = next(self._handles)
        self._passed[event] = 0.0
        _put(to, struct.pack("=Q", event))

    def cuEventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        """Take the time behind what the stream has."""
        self._passed[event] = None
        self._enqueue(stream, lambda: self._passed.__setitem__(event, time.perf_counter()))

    def cuEventQuery(self, event: int) -> int:  # noqa: N802
        """Say whether it has passed."""
        return made_up_gpu.NOT_READY if self._passed[event] is None else 0

    def cuEventSynchronize(self, event: int) -> int:  # noqa: N802
        """Wait until it has passed."""
        while self._passed[event] is None and not self._error:
            self._change.wait()
        return self._error

    def cuEventElapsedTime(self, to: int, begin: int, end: int) -> None:  # noqa: N802
        """Give the milliseconds between two events."""
        began, ended = self._passed[begin], self._passed[end]
        _put(to, struct.pack("=f", 1e3 * ((ended or 0.0) - (began or 0.0))))

    def cuStreamBeginCapture(self, stream: int, mode: int) -> None:  # noqa: N802
        """Keep what is put into a stream from now on."""
        self._captured[stream] = []

    def cuStreamIsCapturing(self, stream: int, to: int) -> None:  # noqa: N802
        """Say whether that is so."""
        _put(to, struct.pack("=i", stream in self._captured))

    def cuStreamEndCapture(self, stream: int, to: int) -> None:  # noqa: N802
        """Give a graph of it."""
        graph = next(self._handles)
        self._graphs[graph] = self._captured.pop(stream)
        _put(to, struct.pack("=Q", graph))

    def cuGraphInstantiate(self, to: int, graph: int, flags: int) -> None:  # noqa: N802
        """Give what can be launched of a graph: the graph."""
        _put(to, struct.pack("=Q", graph))

    def cuGraphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802
        """Put all of a graph into a stream."""
        for operation in self._graphs[graph]:
            self._enqueue(stream, operation)

    def _enqueue(self, stream: int, operation: Callable[[], object]) -> None:
        if stream in self._captured:
            self._captured[stream].append(operation)
        else:
            super()._enqueue(stream, operation)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._captured: dict[int, list[Callable[[], object]]] = {}
        self._graphs: dict[int, list[Callable[[], object]]] = {}
        self._passed: dict[int, float | None] = {}


_installed: list[StandIn] = []
"""Kept, since the driver calls it."""


def install() -> None:
    """Make this process's driver that of a stand-in."""
    _installed.append(StandIn(1))
    made_up_gpu.install(_installed[-1])


def build(folder: Path) -> Path:
    """Compile the driver into a folder that the linker has to search."""
    folder.mkdir(parents=True, exist_ok=True)
    return made_up_gpu.build(folder)


def _put(to: int, data: bytes) -> None:
    ctypes.memmove(to, data, len(data))
