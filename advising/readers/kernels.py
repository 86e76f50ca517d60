"""Kernels of a workload, from the files of Nsight Systems and ``torch.profiler``.

The workload is what the file is named after. Jobs of that name in other files get its profile;
without any, the file itself stands for one job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dovetail.advising.reader import Reader
from dovetail.advising.readers._long_form import stem_of
from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers.kernels import FoundKernels, read_kernels
from dovetail.instances.kernel_records import kernel_metrics
from dovetail.instances.metrics import Metrics


def _recognises(name: str, start: str) -> bool:
    return (
        name.endswith((".nsys-rep", ".qdrep"))  # refused with what to do
        or start.startswith("SQLite format 3\0")
        or '"traceEvents"' in start
        or ('"deviceProperties"' in start and '"schemaVersion"' in start)
        or any("GrdX" in line.split(",") for line in start.splitlines()[:20])
    )


def _read(path: Path) -> UsageRecords:
    import pandas as pd

    source = source_name(path)
    found = _of_one_gpu(path, source)
    kernels = found.kernels
    if kernels.span_s <= 0:
        raise InputError("must have kernels over some time", "", source)
    rate = len(kernels.start_s) / kernels.span_s
    name = stem_of(path)
    metrics = Metrics.from_data(kernel_metrics(kernels, rate, found.gpu))
    job = {"job": [name], "name": [name], "gpu_model": [found.gpu_model]}
    return UsageRecords.of(pd.DataFrame(job), profiles={name: metrics})


def _of_one_gpu(path: Path, source: str) -> FoundKernels:
    try:
        return read_kernels(path)
    except InputError as error:
        if error.path != "--device":
            raise
        rule = "must have kernels of one GPU, has those of several: write a file for each rank"
        raise InputError(rule, "", source) from None


KERNELS: Final = Reader(
    "kernels of Nsight Systems (SQLite, cuda_gpu_trace) or torch.profiler", _recognises, _read
)
