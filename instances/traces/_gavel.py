"""Job traces published with Gavel (OSDI 2020): Philly's arrivals and gangs, Gavel's job types.

Source: the repository ``stanford-futuredata/gavel``. Tab separated, no header: job type, command,
steps flag, data flag, total steps, arrival (s), GPUs. A trace says how many steps a job takes and
not how long: that follows from the throughput of its type alone on a GPU model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dovetail.instances._record import listed, shown
from dovetail.instances._tables import Row, read_tsv, table_of
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers.gavel_table import TRACE, gpu_models, read_throughputs
from dovetail.instances.raw_files import FilePath
from dovetail.instances.traces.trace import Trace, TraceJob

GAVEL_GPU_MODEL: Final = "v100"
"""The GPU model of the durations where no other is asked for."""

_THROUGHPUTS: Final = "simulation_throughputs.json"
_Rates = Mapping[tuple[str, int], float]


def read_gavel(path: Path, name: str, throughputs: FilePath | None, device: str) -> Trace:
    """Return the trace with durations on ``device``; workloads are the job types."""
    source = _beside(path) if throughputs is None else str(throughputs)
    rates = read_throughputs(source, device).solo()
    jobs = [_job(row, rates) for row in read_tsv(path, TRACE)]
    unmeasured = sum((job.workload, job.workers) not in rates for job in jobs)
    return Trace.of(name, jobs, _note(unmeasured, len(jobs), device))


def gavel_models(path: FilePath) -> tuple[str, ...]:
    """Return the GPU models for which a Gavel trace has durations.

    Raises
    ------
    InputError
        When the file of throughputs next to it cannot be read.
    """
    return gpu_models(_beside(Path(path)))


def _beside(path: Path) -> str:
    """Return the file of throughputs in the folder of the trace or the one above."""
    for folder in (path.parent, path.parent.parent):
        try:
            return table_of(str(folder), _THROUGHPUTS)
        except InputError:
            continue
    rule = f"needs {_THROUGHPUTS} of Gavel in its folder or the one above"
    raise InputError(f"{rule}, or given as throughputs", "", source_name(path))


def _job(row: Row, rates: _Rates) -> TraceJob:
    job_type, workers = row.text("job type"), row.count("GPUs")
    rate = rates.get((job_type, workers)) or rates.get((job_type, 1))
    if rate is None:
        known = listed(name for name, gpus in rates if gpus == 1)
        raise row.broken(
            "job type", f"must be one with a throughput on one GPU ({known}), got {shown(job_type)}"
        )
    return TraceJob(
        id=f"job-{row.line}",
        arrival_s=row.number("arrival s"),
        workers=workers,
        duration_s=row.positive("total steps") / rate,
        workload=job_type,
    )


def _note(unmeasured: int, jobs: int, device: str) -> tuple[str, ...]:
    if unmeasured == 0:
        return ()
    gangs = f"{unmeasured} of {jobs} jobs are gangs whose throughput was not measured on {device}"
    return (f"{gangs}: their durations take that of one GPU",)
