"""Alibaba's Platform for AI, July and August 2020 (Weng et al., MLaaS in the Wild, NSDI 2022).

Source: ``pai_task_table.csv`` of ``cluster-trace-gpu-v2020`` in the repository
``alibaba/clusterdata``. It has no header and one row per task; a job has one task or several
(``ps``, ``worker``, ...), each with a number of instances and the percentage of a GPU that one
instance asks for. ``pai_job_table.csv`` has one row per job, with its user and submission time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances.reading.tables import Row, read_headless
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.papers.traces.parts import rounded_up, whole

_TASK_COLUMNS: Final = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_STATUSES: Final = ("Terminated", "Failed", "Running", "Waiting")
_JOB_TABLE: Final = "pai_job_table.csv"
_JOB_COLUMNS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")


class _PaiTask(NamedTuple):
    """A task that ran on GPUs."""

    gpus: float
    start_s: float
    end_s: float


class _PaiSubmission(NamedTuple):
    """The submission time of a job, None if not given, and its user."""

    at_s: float | None
    user: str


def _recognises(first: str) -> bool:
    """Return whether a file is the table of tasks, from its first line."""
    cells = tuple(cell.strip() for cell in first.split(","))
    return len(cells) == len(_TASK_COLUMNS) and (cells[3] in _STATUSES or cells == _TASK_COLUMNS)


def _read(path: Path, name: str) -> Trace:
    """Return the trace; a job asks for the GPUs of all its tasks, rounded up.

    If the table of jobs is in the same folder, a job arrives at its submission and its tenant is
    its user. Otherwise it arrives at the start of its first task on GPUs.
    """
    tasks: dict[str, list[_PaiTask]] = defaultdict(list)
    for row in _rows(path, _TASK_COLUMNS):
        tasks[row.text("job_name")] += _ran(row)
    submitted = _submissions(path)
    jobs, parts = [], 0
    for job, ran in tasks.items():
        if not ran:
            continue
        workers, in_parts = whole(sum(task.gpus for task in ran))
        start_s, end_s = min(task.start_s for task in ran), max(task.end_s for task in ran)
        at_s, user = submitted.get(job, (None, None))
        parts += in_parts
        arrival_s = start_s if at_s is None else at_s
        jobs.append(TraceJob(job, arrival_s, workers, end_s - start_s, tenant=user))
    notes = (*left_out(len(tasks) - len(jobs), len(tasks)), *rounded_up(parts, len(jobs)))
    return Trace.of(name, jobs, notes)


def _ran(row: Row) -> Iterator[_PaiTask]:
    """Yield the task of a row if it had GPUs for some time."""
    gpus = (_known(row, "inst_num") or 0.0) * (_known(row, "plan_gpu") or 0.0) / 100
    start_s, end_s = _known(row, "start_time"), _known(row, "end_time")
    if gpus and start_s and end_s and end_s > start_s:
        yield _PaiTask(gpus, start_s, end_s)


def _submissions(path: Path) -> dict[str, _PaiSubmission]:
    """Return the submissions from the table of jobs in the same folder, none without it."""
    packed = path.with_name(f"{_JOB_TABLE}.gz")
    place = packed if packed.is_file() else path.with_name(_JOB_TABLE)
    if not place.is_file():
        return {}
    return {
        row.text("job_name"): _PaiSubmission(_known(row, "start_time") or None, row.text("user"))
        for row in _rows(place, _JOB_COLUMNS)
    }


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows; some copies of the files have a header."""
    return (row for row in read_headless(path, columns) if row.values[columns[0]] != columns[0])


def _known(row: Row, column: str) -> float | None:
    """Return a number, or None if the cell is empty."""
    return row.number(column) if row.values[column].strip() else None


ALIBABA_2020: Final = TraceKind(_read, _recognises)
