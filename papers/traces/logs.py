"""Published logs of GPU clusters with one CSV file and one row per job.

Each ``_Log`` names the columns by which a format is recognised and defines how a row becomes a
job. If a job asks for fractions of GPUs, the sum is rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.errors import InputError
from dovetail.instances.reading.tables import read_csv
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._sheet import Sheet, numbered
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import JobColumns, Trace
from dovetail.papers.traces.moments import moment
from dovetail.papers.traces.parts import rounded_up, whole_gpus

_Column = NDArray[Any]
"""A value for each row."""


class _Log(NamedTuple):
    """The mapping of a format's rows to jobs.

    Attributes
    ----------
    columns : tuple of str
        The columns that the header must have.
    arrival : str
        The column of the arrival; rows in which it is empty are left out.
    gpus, duration_s : callable
        The GPUs that rows ask for, and the seconds that they ran; 0 where they did not.
    job, tenant : str
        Columns of the name (``job-LINE`` if there is none) and of the job's user.
    dated : bool
        Whether arrivals are local times, not seconds.
    latency : callable
        Whether jobs are latency-critical.
    """

    columns: tuple[str, ...]
    arrival: str
    gpus: Callable[[Sheet], _Column]
    duration_s: Callable[[Sheet], _Column]
    job: str | None = None
    tenant: str | None = None
    dated: bool = False
    latency: Callable[[Sheet], _Column] = lambda sheet: np.zeros(len(sheet), dtype=np.bool_)


def _span(start: str, end: str) -> Callable[[Sheet], _Column]:
    """Return a function of rows: the seconds between two columns, or 0 where one is empty."""

    def seconds(sheet: Sheet) -> _Column:
        given = sheet.given(start) & sheet.given(end)
        passed_s = sheet.numbers(end, given) - sheet.numbers(start, given)
        return np.where(given, np.maximum(0.0, passed_s), 0.0)

    return seconds


_POD_TIMES: Final = ("creation_time", "scheduled_time", "deletion_time")

# Microsoft's Philly as kept by AdaptDL: petuum/adaptdl, branch osdi21-artifact.
_PHILLY: Final = _Log(
    columns=("timestamp", "duration", "num_gpus", "cluster"),
    arrival="timestamp",
    gpus=lambda sheet: sheet.counts("num_gpus", least=0),
    duration_s=lambda sheet: sheet.numbers("duration"),
    tenant="cluster",
    dated=True,
)

# SenseTime's Helios (Hu et al., SC 2021): S-Lab-System-Group/HeliosData, cluster_log.csv.
_HELIOS: Final = _Log(
    columns=("job_id", "vc", "gpu_num", "state", "submit_time", "duration"),
    arrival="submit_time",
    gpus=lambda sheet: sheet.counts("gpu_num", least=0),
    duration_s=lambda sheet: sheet.numbers("duration"),
    job="job_id",
    tenant="vc",
    dated=True,
)

# Weng et al., FGD (USENIX ATC 2023): cluster-trace-gpu-v2023, openb_pod_list_*.csv.
_ALIBABA_2023: Final = _Log(
    columns=("name", "num_gpu", "gpu_milli", "qos", *_POD_TIMES),
    arrival="creation_time",
    gpus=lambda sheet: sheet.counts("num_gpu", least=0) * sheet.numbers("gpu_milli") / 1000,
    duration_s=_span("scheduled_time", "deletion_time"),
    job="name",
    latency=lambda sheet: np.array([cell == "LS" for cell in sheet.cells("qos")], np.bool_),
)

# Yang et al., Prism (NSDI 2025): cluster-trace-gpu-v2025, disaggregated_DLRM_trace.csv.
_ALIBABA_2025: Final = _Log(
    columns=("instance_sn", "role", "app_name", "gpu_request", *_POD_TIMES),
    arrival="creation_time",
    gpus=lambda sheet: sheet.numbers("gpu_request"),
    duration_s=_span("scheduled_time", "deletion_time"),
    job="instance_sn",
    tenant="app_name",
    latency=lambda sheet: np.ones(len(sheet), dtype=np.bool_),
)

# Duan et al., GFS (ASPLOS 2026): cluster-trace-v2026-spot-gpu, job_info_df.csv.
_ALIBABA_2026: Final = _Log(
    columns=(
        *("job_name", "organization", "gpu_request", "worker_num"),
        *("submit_time", "duration", "job_type"),
    ),
    arrival="submit_time",
    gpus=lambda sheet: sheet.numbers("gpu_request") * sheet.counts("worker_num", least=0),
    duration_s=lambda sheet: sheet.numbers("duration"),
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
    sheet = Sheet(read_csv(path, log.columns))
    arrives = np.ones(len(sheet), dtype=np.bool_) if log.dated else sheet.given(log.arrival)
    if log.dated:
        arrival_s = _since_the_first(sheet.map(log.arrival, moment), len(sheet))
    else:
        arrival_s = sheet.numbers(log.arrival, arrives)
    with np.errstate(over="ignore"):
        workers, in_parts = whole_gpus(log.gpus(sheet))
    duration_s = log.duration_s(sheet)
    ran = arrives & (workers > 0) & (duration_s > 0)
    names = sheet.texts(log.job, ran) if log.job else numbered(sheet)
    owners = {"tenant": sheet.texts(log.tenant, ran)} if log.tenant else {}
    priority = np.where(log.latency(sheet), "latency", "batch").astype(object)
    sheet.require_sound()
    columns = JobColumns.of(names, arrival_s, workers, duration_s, priority=priority, **owners)
    jobs = columns.take(ran)
    parts = int(in_parts[ran].sum())
    notes = (*left_out(len(sheet) - len(jobs), len(sheet)), *rounded_up(parts, len(jobs)))
    return Trace.of_columns(name, jobs, notes)


def _since_the_first(moments: Sequence[datetime], rows: int) -> _Column:
    """Return the seconds since the first of the times; 0 in the rows behind a broken one."""
    start = min(moments, default=datetime.max)
    found = np.zeros(rows)
    found[: len(moments)] = [(at - start).total_seconds() for at in moments]
    return found


def _kind(log: _Log) -> TraceKind:
    return TraceKind(partial(_read, log=log), partial(_has_columns, log=log))


PHILLY: Final = _kind(_PHILLY)
HELIOS: Final = _kind(_HELIOS)
ALIBABA_2023: Final = _kind(_ALIBABA_2023)._replace(recognises=_lists_pods)
ALIBABA_2025: Final = _kind(_ALIBABA_2025)
ALIBABA_2026: Final = _kind(_ALIBABA_2026)
