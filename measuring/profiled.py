"""The kernels of a workload, from the trace that its worker wrote."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from dovetail.instances.errors import InputError, brief
from dovetail.instances.importers.kernels import read_kernels
from dovetail.instances.kernel_records import kernel_metrics
from dovetail.measuring.results import ProfiledKernels
from dovetail.measuring.worker import Worker
from dovetail.measuring.worker_pool import WorkerPool

PROFILE_MOST_S: Final = 60.0
"""Seconds after which a worker that still profiles is treated as hung."""


def profiled(worker: Worker, workers: WorkerPool) -> ProfiledKernels | str:
    """Let an idle worker profile its kernels and end it; return them, or why there are none.

    It is ended because a process that was profiled may launch kernels more slowly.
    """
    trace = worker.profile()
    try:
        workers.wait(
            lambda: bool(worker.profiled or worker.failure()), time.monotonic() + PROFILE_MOST_S
        )
        return _read(worker, trace)
    finally:
        with suppress(OSError):
            os.unlink(trace)
        workers.dismiss([worker])


def _read(worker: Worker, trace: str) -> ProfiledKernels | str:
    if failure := worker.failure():
        return failure.text
    if worker.profiled is None:
        return f"the profiler had not ended after {PROFILE_MOST_S:g} s"
    iterations = worker.profiled.get("iterations")
    if not isinstance(iterations, int) or iterations < 1:
        return brief(str(worker.profiled.get("text", "no iterations were profiled")))
    try:
        found = read_kernels(trace)
        launches = len(found.kernels.start_s) / iterations
        metrics = kernel_metrics(found.kernels, launches, found.gpu)
        del metrics["kernels_s"]  # follows from the throughput
        return ProfiledKernels.from_data(
            {
                "profiler": found.profiler,
                "launches": launches,
                "metrics": metrics,
                "iterations": iterations,
                "cost_s": worker.profiled.get("cost_s"),
            }
        )
    except InputError as error:
        return f"{error.path}: {error.rule}".removeprefix(": ")
