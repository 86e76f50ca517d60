"""Job traces published with Gavel (OSDI 2020): Philly's arrivals and gangs, Gavel's job types.

Source: the repository ``stanford-futuredata/gavel``. Tab separated, no header: job type, command,
steps flag, data flag, total steps, arrival (s), GPUs. A trace gives the steps of a job but not its
duration, which follows from the solo throughput of its type on a GPU model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.reading.tables import Row, read_tsv, table_of
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.papers.importers.gavel_table import TRACE, gpu_models, read_throughputs

_USUAL_GPU_MODEL: Final = "v100"
"""The default GPU model of the durations."""

_THROUGHPUTS: Final = "simulation_throughputs.json"
_Rates = Mapping[tuple[str, int], float]


def _read(
    path: Path,
    name: str,
    throughputs: FilePath | None = None,
    gpu_model: str = _USUAL_GPU_MODEL,
) -> Trace:
    """Return the trace with durations on a GPU model; workloads are the job types."""
    source = _beside(path) if throughputs is None else str(throughputs)
    rates = read_throughputs(source, gpu_model).solo()
    jobs = [_job(row, rates) for row in read_tsv(path, TRACE)]
    unmeasured = sum((job.workload, job.workers) not in rates for job in jobs)
    return Trace.of(name, jobs, _note(unmeasured, len(jobs), gpu_model))


def _measured_on(path: Path, gpu_model: str) -> str:
    """Return the name of a GPU model in the throughput file, or else the default model."""
    models = {name.casefold(): name for name in gpu_models(_beside(path))}
    return models.get(gpu_model.casefold(), _USUAL_GPU_MODEL)


def _beside(path: Path) -> str:
    """Return the throughput file in the folder of the trace or the one above."""
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


GAVEL: Final = TraceKind(
    _read,
    lambda first: first.count("\t") == len(TRACE) - 1,
    endings=(".trace",),
    options=("throughputs", "gpu_model"),
    measured_on=_measured_on,
)
