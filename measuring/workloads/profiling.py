"""A short run under ``torch.profiler``, which records every kernel."""

from __future__ import annotations

import importlib.util
import time

from .devices import Cuda, WorkloadDevice
from .loading import Step

PROFILE_S = 0.25
"""Seconds of iterations that are profiled, or one chunk if that takes longer: a trace takes about
a kilobyte for each kernel."""


def profile(step: Step, device: WorkloadDevice, chunk: int, trace: str) -> dict[str, object]:
    """Iterate under the profiler, write its trace, and return the fields of ``profiled``.

    The first use of the profiler in a process takes seconds, and launches may stay slower
    afterwards: the process should not be measured any more.
    """
    if importlib.util.find_spec("torch") is None:
        return {"text": "needs PyTorch"}
    from torch.profiler import ProfilerActivity, profile

    began_s, iterations = time.monotonic(), 0
    kind = ProfilerActivity.CUDA if isinstance(device, Cuda) else ProfilerActivity.CPU
    device.idle()
    with profile(activities=[kind]) as profiler:
        until_s = time.monotonic() + PROFILE_S
        while not iterations or time.monotonic() < until_s:
            for _ in range(chunk):
                step()
            device.idle()
            iterations += chunk
    profiler.export_chrome_trace(trace)
    return {"iterations": iterations, "cost_s": time.monotonic() - began_s}
