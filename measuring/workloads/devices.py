"""The device that a workload computes on: timing of its work, and its description.

A *mark* is placed after the work queued on the device so far. It records when the device completed
that work, however late the host looks.
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


class WorkloadDevice:
    """Processor cores: work is complete when the call returns."""

    def mark(self) -> Any:
        """Return a mark after all work queued so far."""
        return time.monotonic()

    def wait(self, mark: Any) -> None:
        """Wait until the device has reached the mark."""

    def seconds(self, first: Any, then: Any) -> float:
        """Return the seconds between two marks that were waited for."""
        return float(then - first)

    def idle(self) -> None:
        """Wait until the device has completed all of this process's work."""

    def memory_mib(self) -> float:
        """Return the peak resident set of this process in MiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def about(self) -> dict[str, object]:
        """Return the device's fields of the ``ready`` event."""
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        name = found[1] if found else platform.machine()
        return {"device": name, "sms": None, "mps": None, "cublas": None}


class Cuda(WorkloadDevice):
    """The first CUDA device that this process sees.

    Marks are CUDA events on the current stream, with times taken by the GPU. The host sleeps while
    it waits for them.
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
        """Return the seconds between two events."""
        return float(first.elapsed_time(then)) / 1000

    def idle(self) -> None:
        """Wait for all streams."""
        self._cuda.synchronize()

    def memory_mib(self) -> float:
        """Return the peak of PyTorch's reserved memory in MiB, without CUDA's own memory."""
        return float(self._cuda.max_memory_reserved()) / 2**20

    def about(self) -> dict[str, object]:
        """Return the GPU as this process sees it; under a share it sees fewer SMs."""
        properties = self._cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "sms": properties.multi_processor_count,
            "mps": under_mps(),
            "cublas": cublas_version(),
        }


def open_device(name: str) -> WorkloadDevice:
    """Return the device of this name, and configure PyTorch.

    PyTorch uses one host thread. cuDNN chooses algorithms by its heuristics instead of benchmarks,
    whose outcome next to other processes would vary. On a processor core, users' programs need no
    PyTorch.
    """
    if name == "cpu" and importlib.util.find_spec("torch") is None:
        return WorkloadDevice()
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    return Cuda(torch) if name == "cuda" else WorkloadDevice()
