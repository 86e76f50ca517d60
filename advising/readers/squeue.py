"""The running and waiting jobs of Slurm, by ``squeue``: as JSON, or as text with delimiters."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from dovetail.advising.reader import Reader
from dovetail.advising.readers._frames import numbers, text_frame
from dovetail.advising.readers._slurm_jobs import usage_of_jobs
from dovetail.advising.readers._slurm_times import moments
from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers._slurm_records import SlurmData, nodes_of_job, squeue_jobs
from dovetail.instances.reading.contents import read_text
from dovetail.instances.reading.tables import first_line

if TYPE_CHECKING:
    import pandas as pd

_TEXTS: Final = {
    "JOBID": "job_id",
    "USER": "user_name",
    "NAME": "name",
    "NODELIST": "nodes",
    "REASON": "state_reason",
    "TRES_ALLOC": "tres_alloc_str",
    "TRES_PER_JOB": "tres_per_job",
    "TRES_PER_NODE": "tres_per_node",
    "TRES_PER_TASK": "tres_per_task",
}
_STATES: Final = ("STATE", "ST")
_COUNTS: Final = {"NODES": "node_count", "TASKS": "tasks"}
_TIMES: Final = {"SUBMIT_TIME": "submit_time", "START_TIME": "start_time", "END_TIME": "end_time"}
_GPUS: Final = ("TRES_ALLOC", "TRES_PER_JOB", "TRES_PER_NODE", "TRES_PER_TASK")
_COLUMNS: Final = {*_TEXTS, *_STATES, *_COUNTS, *_TIMES, "PARTITION", "NODELIST(REASON)"}


_PARTLY: Final = (
    "Jobs that ask for GPUs in another way than the columns of this file show are missing: "
    "squeue --json shows all."
)


def _recognises(_name: str, start: str) -> bool:
    if start.lstrip().startswith("{"):
        words = ('"array_job_id"', '"job_state"')
        return any(word in start for word in words) or _is_empty(start)
    header = re.split(r"[^\w()]+", _header(start))
    return "JOBID" in header and len(_COLUMNS.intersection(header)) > 1


def _is_empty(start: str) -> bool:
    """Return whether a document of Slurm has no jobs."""
    return re.search(r'"jobs"\s*:\s*\[\s*\]', start) is not None and '"slurm"' in start.lower()


def _header(text: str) -> str:
    return text.lstrip().partition("\n")[0].strip()


def _read(path: Path) -> UsageRecords:
    """Return the running and waiting jobs with GPUs.

    Raises
    ------
    InputError
        When it is another document, or a text without delimiters or without GPUs.
    """
    source = source_name(path)
    if first_line(path).lstrip().startswith("{"):
        return usage_of_jobs(squeue_jobs(read_text(path), source), source)
    jobs = _rows(path, source)
    usage = usage_of_jobs(jobs, source)
    if any("gres/gpu" in str(job.get("tres_alloc_str")) for job in jobs):
        return usage
    return replace(usage, notes=(*usage.notes, _PARTLY))


def _rows(path: Path, source: str) -> list[SlurmData]:
    """Return the rows of a text as jobs of a document."""
    header = first_line(path).strip()
    found = re.match(r"[\w()]+ *([^\w\s()])", header)
    if found is None:
        rule = "must have columns with delimiters; print it by squeue --json"
        raise InputError(rule, "line 1", source)
    frame = text_frame(path, ("JOBID",), None, found[1], quoted=False, free="NAME")
    frame = frame[frame["JOBID"].str.strip() != "JOBID"]
    if frame.columns.intersection([*_GPUS]).empty:
        rule = f"must have the column {' or '.join(_GPUS)}; print it by squeue --json"
        raise InputError(rule, "line 1", source)
    if frame.columns.intersection([*_STATES]).empty:
        raise InputError("must have the column STATE; print it by squeue --json", "line 1", source)
    if "NODELIST(REASON)" in frame:
        either = frame["NODELIST(REASON)"].str.strip()
        waits = either.str.startswith("(")
        frame = frame.assign(
            NODELIST=either.mask(waits, ""), REASON=either.where(waits, "").str.strip("()")
        )
    fields = {
        **{field: _texts(frame[name]) for name, field in _TEXTS.items() if name in frame},
        **{field: numbers(frame[name], source) for name, field in _COUNTS.items() if name in frame},
        **{field: _times(frame[name], source) for name, field in _TIMES.items() if name in frame},
        "job_state": next(_texts(frame[name]) for name in _STATES if name in frame),
    }
    jobs: list[SlurmData] = [
        dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)
    ]
    for line, job in zip(frame.index, jobs, strict=True):
        try:
            nodes_of_job(job)
        except InputError as error:
            raise InputError(error.rule, f"line {line}: NODELIST", source) from None
    return jobs


def _texts(column: pd.Series[str]) -> list[str]:
    return [text.strip().replace("N/A", "") for text in column]


def _times(column: pd.Series[str], source: str) -> list[float | None]:
    given = column.str.strip().replace("NONE", "")
    return [None if np.isnan(time_s) else float(time_s) for time_s in moments(given, source)]


SQUEUE: Final = Reader("Slurm's queue by squeue --json", _recognises, _read)
