"""The jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019) in Microsoft's format.

Source: ``cluster_job_log`` of the repository ``msr-fiddle/philly-traces``: a list of jobs in JSON,
each with its attempts. Times are local.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from dovetail.instances._record import Name, Record, Text
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import json_items, read_text
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.papers.traces.moments import moment

_UNKNOWN = (None, "", "None")


class _AttemptMachine(Record):
    """A machine of an attempt."""

    ip: Text | None = None
    gpus: tuple[Text, ...]


class _PhillyAttempt(Record):
    """One attempt of a job."""

    start_time: Text | None = None
    end_time: Text | None = None
    detail: tuple[_AttemptMachine, ...]


class _PhillyJob(Record):
    """A job of the log."""

    jobid: Name
    submitted_time: Text
    attempts: tuple[_PhillyAttempt, ...]
    vc: Name | None = None
    user: Text | None = None
    status: Text | None = None


def _read(path: Path, name: str) -> Trace:
    """Return the trace, which begins with the first submission; tenants are virtual clusters.

    A job runs for the total time of its attempts, on the GPUs of its last one. Attempts without
    both times, or without GPUs, are ignored.
    """
    source = source_name(path)
    submitted, ran = [], []
    for k, job in enumerate(_logged(path, source)):
        submitted.append(_moment(job.submitted_time, f"jobs[{k}].submitted_time", source))
        attempts = list(_attempts(job, f"jobs[{k}].attempts", source))
        duration_s = sum(seconds for seconds, _ in attempts)
        if duration_s > 0:
            ran.append((job.jobid, submitted[-1], attempts[-1][1], duration_s, job.vc))
    first = min(submitted, default=datetime.min)
    jobs = [
        TraceJob(job, (at - first).total_seconds(), workers, duration_s, tenant=vc)
        for job, at, workers, duration_s, vc in ran
    ]
    return Trace.of(name, jobs, left_out(len(submitted) - len(jobs), len(submitted)))


def _logged(path: Path, source: str) -> Iterator[_PhillyJob]:
    """Yield the jobs of the file one by one, as all of them as plain data take half a gigabyte."""
    try:
        for k, data in enumerate(json_items(read_text(path))):
            yield _job(data, f"jobs[{k}]")
    except InputError as error:
        raise error.at(source) from None


def _job(data: object, where: str) -> _PhillyJob:
    try:
        return _PhillyJob.from_data(data)
    except InputError as error:
        raise InputError(error.rule, f"{where}.{error.path}".rstrip(".")) from None


def _attempts(job: _PhillyJob, where: str, source: str) -> Iterator[tuple[float, int]]:
    """Yield seconds and GPUs of the usable attempts."""
    for k, attempt in enumerate(job.attempts):
        gpus = sum(len(machine.gpus) for machine in attempt.detail)
        if gpus == 0 or attempt.start_time in _UNKNOWN or attempt.end_time in _UNKNOWN:
            continue
        start = _moment(attempt.start_time, f"{where}[{k}].start_time", source)
        end = _moment(attempt.end_time, f"{where}[{k}].end_time", source)
        yield max(0.0, (end - start).total_seconds()), gpus


def _moment(text: str | None, where: str, source: str) -> datetime:
    try:
        return moment(text or "")
    except InputError as error:
        raise InputError(error.rule, where, source) from None


PHILLY_LOG: Final = TraceKind(_read, lambda first: first.lstrip().startswith("["))
