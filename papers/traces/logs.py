"""Published logs of GPU clusters with one CSV file and one row per job.

Each ``_Log`` names the columns by which a format is recognised and defines how a row becomes a
job. If a job asks for fractions of GPUs, the sum is rounded up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from dovetail.instances.errors import InputError
from dovetail.instances.reading.tables import Row, read_csv
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.papers.traces.moments import moment
from dovetail.papers.traces.parts import rounded_up, whole


class _Log(NamedTuple):
    """The mapping of a format's rows to jobs.

    Attributes
    ----------
    columns : tuple of str
        The columns that the header must have.
    arrival : str
        The column of the arrival; rows in which it is empty are left out.
    gpus, duration_s : callable
        The GPUs that a row asks for, and the seconds that it ran; 0 if it did not.
    job, tenant : str
        Columns of the name (``job-LINE`` if there is none) and of the job's user.
    dated : bool
        Whether arrivals are local times, not seconds.
    priority : callable
        ``batch`` or ``latency``.
    """

    columns: tuple[str, ...]
    arrival: str
    gpus: Callable[[Row], float]
    duration_s: Callable[[Row], float]
    job: str | None = None
    tenant: str | None = None
    dated: bool = False
    priority: Callable[[Row], Literal["batch", "latency"]] = lambda _: "batch"


def _span(start: str, end: str) -> Callable[[Row], float]:
    """Return a function of a row: the seconds between two columns, or 0 if one is empty."""

    def seconds(row: Row) -> float:
        if not (row.values[start].strip() and row.values[end].strip()):
            return 0.0
        return max(0.0, row.number(end) - row.number(start))

    return seconds


_POD_TIMES: Final = ("creation_time", "scheduled_time", "deletion_time")

# Microsoft's Philly as kept by AdaptDL: petuum/adaptdl, branch osdi21-artifact.
_PHILLY: Final = _Log(
    columns=("timestamp", "duration", "num_gpus", "cluster"),
    arrival="timestamp",
    gpus=lambda row: row.count("num_gpus", least=0),
    duration_s=lambda row: row.number("duration"),
    tenant="cluster",
    dated=True,
)

# SenseTime's Helios (Hu et al., SC 2021): S-Lab-System-Group/HeliosData, cluster_log.csv.
_HELIOS: Final = _Log(
    columns=("job_id", "vc", "gpu_num", "state", "submit_time", "duration"),
    arrival="submit_time",
    gpus=lambda row: row.count("gpu_num", least=0),
    duration_s=lambda row: row.number("duration"),
    job="job_id",
    tenant="vc",
    dated=True,
)

# Weng et al., FGD (USENIX ATC 2023): cluster-trace-gpu-v2023, openb_pod_list_*.csv.
_ALIBABA_2023: Final = _Log(
    columns=("name", "num_gpu", "gpu_milli", "qos", *_POD_TIMES),
    arrival="creation_time",
    gpus=lambda row: row.count("num_gpu", least=0) * row.number("gpu_milli") / 1000,
    duration_s=_span("scheduled_time", "deletion_time"),
    job="name",
    priority=lambda row: "latency" if row.values["qos"] == "LS" else "batch",
)

# Yang et al., Prism (NSDI 2025): cluster-trace-gpu-v2025, disaggregated_DLRM_trace.csv.
_ALIBABA_2025: Final = _Log(
    columns=("instance_sn", "role", "app_name", "gpu_request", *_POD_TIMES),
    arrival="creation_time",
    gpus=lambda row: row.number("gpu_request"),
    duration_s=_span("scheduled_time", "deletion_time"),
    job="instance_sn",
    tenant="app_name",
    priority=lambda _: "latency",
)

# Duan et al., GFS (ASPLOS 2026): cluster-trace-v2026-spot-gpu, job_info_df.csv.
_ALIBABA_2026: Final = _Log(
    columns=(
        *("job_name", "organization", "gpu_request", "worker_num"),
        *("submit_time", "duration", "job_type"),
    ),
    arrival="submit_time",
    gpus=lambda row: row.number("gpu_request") * row.count("worker_num", least=0),
    duration_s=lambda row: row.number("duration"),
    job="job_name",
    tenant="organization",
)

_WITHOUT_TIMES: Final = frozenset({"name", "num_gpu", "gpu_milli"})
"""Columns of the lists of cluster-trace-gpu-v2023 without times (``multigpu``)."""


def _has_columns(first: str, *, log: _Log) -> bool:
    return _columns(first).issuperset(log.columns)


def _lists_pods(first: str) -> bool:
    """Return whether a file is a list of pods; refuse a list that has no times."""
    columns = _columns(first)
    if columns >= _WITHOUT_TIMES and not columns.intersection(_POD_TIMES):
        rule = "has no arrivals and no run times, which a trace needs: take another list of pods"
        raise InputError(f"{rule}, or write a table id,arrival_s,workers,duration_s", "line 1")
    return columns.issuperset(_ALIBABA_2023.columns)


def _columns(first: str) -> set[str]:
    return {cell.strip() for cell in first.split(",")}


def _read(path: Path, name: str, *, log: _Log) -> Trace:
    """Return the trace; if arrivals are dates, it begins with the first of them."""
    rows = parts = 0
    start = datetime.max
    found: list[tuple[datetime | float, TraceJob]] = []
    for row in read_csv(path, log.columns):
        rows += 1
        at = _arrival(row, log)
        if isinstance(at, datetime):
            start = min(start, at)
        (workers, in_parts), duration_s = whole(log.gpus(row)), log.duration_s(row)
        if workers == 0 or duration_s == 0 or at is None:
            continue
        parts += in_parts
        job = TraceJob(
            id=row.text(log.job) if log.job else f"job-{row.line}",
            arrival_s=0.0,
            workers=workers,
            duration_s=duration_s,
            tenant=row.text(log.tenant) if log.tenant else None,
            priority=log.priority(row),
        )
        found.append((at, job))
    # The first arrival is known only after all rows are read.
    jobs = [dataclasses.replace(job, arrival_s=_since(start, at)) for at, job in found]
    notes = (*left_out(rows - len(jobs), rows), *rounded_up(parts, len(jobs)))
    return Trace.of(name, jobs, notes)


def _arrival(row: Row, log: _Log) -> datetime | float | None:
    """Return the arrival of a row, as a date or in seconds; None if it is unknown."""
    if log.dated:
        return _moment(row, log)
    return row.number(log.arrival) if row.values[log.arrival].strip() else None


def _since(start: datetime, at: datetime | float) -> float:
    return (at - start).total_seconds() if isinstance(at, datetime) else at


def _moment(row: Row, log: _Log) -> datetime:
    try:
        return moment(row.values[log.arrival])
    except InputError as error:
        raise row.broken(log.arrival, error.rule) from None


def _kind(log: _Log) -> TraceKind:
    return TraceKind(partial(_read, log=log), partial(_has_columns, log=log))


PHILLY: Final = _kind(_PHILLY)
HELIOS: Final = _kind(_HELIOS)
ALIBABA_2023: Final = _kind(_ALIBABA_2023)._replace(recognises=_lists_pods)
ALIBABA_2025: Final = _kind(_ALIBABA_2025)
ALIBABA_2026: Final = _kind(_ALIBABA_2026)
