"""The device that a workload computes on: when its work is done, and what it is.

A *mark* is put behind the work that was given to the device so far. Once waited for, it tells
when this work was done there, however late the host looks.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import resource
import time
from pathlib import Path
from typing import Any

from .products import cublas_version, under_mps


class Device:
    """Processor cores: work is done when the call that asks for it returns."""

    def mark(self) -> Any:
        """Return a mark behind all work given so far."""
        return time.monotonic()

    def wait(self, mark: Any) -> None:
        """Return when the device has come to the mark."""

    def seconds(self, first: Any, then: Any) -> float:
        """Return the time from one mark to a later one; both have been waited for."""
        return float(then - first)

    def idle(self) -> None:
        """Return when the device has done all of this process's work."""

    def memory_mib(self) -> float:
        """Return the most memory that this process has held: the peak of its resident set."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def about(self) -> dict[str, object]:
        """Return what the ready event says of the device: here neither SMs nor MPS."""
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        name = found[1] if found else platform.machine()
        return {"device": name, "sms": None, "mps": None, "cublas": None}


class Cuda(Device):
    """The first CUDA device that this process sees.

    Marks are CUDA events of the current stream, with times taken by the GPU. The host sleeps
    while it waits for them, and leaves its core to others.
    """

    def __init__(self, torch: Any) -> None:
        torch.cuda.init()
        torch.cuda.set_device(0)
        self._cuda = torch.cuda

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Wait for the event."""
        mark.synchronize()

    def seconds(self, first: Any, then: Any) -> float:
        """Return the time between two events, which CUDA tells in milliseconds."""
        return float(first.elapsed_time(then)) / 1000

    def idle(self) -> None:
        """Wait for all streams."""
        self._cuda.synchronize()

    def memory_mib(self) -> float:
        """Return the peak of what PyTorch has reserved; CUDA's own memory comes on top."""
        return float(self._cuda.max_memory_reserved()) / 2**20

    def about(self) -> dict[str, object]:
        """Return what this process sees of the GPU: under a cap, fewer SMs than it has."""
        properties = self._cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "sms": properties.multi_processor_count,
            "mps": under_mps(),
            "cublas": cublas_version(),
        }


def open_device(name: str) -> Device:
    """Return the device of a name, with PyTorch set up as every workload has it.

    One host thread, as a job beside others has. cuDNN chooses its algorithms by its rules instead
    of trying them out: what it tries beside others would differ from process to process. On a
    processor core a program of the user's may do without PyTorch.
    """
    if name == "cpu" and importlib.util.find_spec("torch") is None:
        return Device()
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    return Cuda(torch) if name == "cuda" else Device()
