"""The jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019) as Microsoft publishes them.

Source: ``cluster_job_log`` of the repository ``msr-fiddle/philly-traces``: a list of jobs in JSON,
each with its attempts. Times are local.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from dovetail.instances._record import Name, Record, Text
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._moments import moment
from dovetail.instances.traces.trace import Trace, TraceJob

_UNKNOWN = (None, "", "None")


class _Machine(Record):
    """A machine of an attempt."""

    ip: Text | None = None
    gpus: tuple[Text, ...]


class _Attempt(Record):
    """One time that a job was scheduled."""

    start_time: Text | None = None
    end_time: Text | None = None
    detail: tuple[_Machine, ...]


class _Job(Record):
    """A job of the log."""

    jobid: Name
    submitted_time: Text
    attempts: tuple[_Attempt, ...]
    vc: Name | None = None
    user: Text | None = None
    status: Text | None = None


class _Log(Record):
    """The whole file."""

    jobs: tuple[_Job, ...]


def read_philly_log(path: Path, name: str) -> Trace:
    """Return the trace; it begins with the first submission, tenants are virtual clusters.

    A job runs as long as all its attempts took together, on as many GPUs as its last one had.
    Attempts without both times, or without GPUs, do not count.
    """
    source = source_name(path)
    logged = _Log.from_data({"jobs": read_data(path)}, source).jobs
    submitted = [
        _moment(job.submitted_time, f"jobs[{k}].submitted_time", source)
        for k, job in enumerate(logged)
    ]
    first = min(submitted, default=datetime.min)
    jobs = []
    for k, (job, at) in enumerate(zip(logged, submitted, strict=True)):
        attempts = list(_attempts(job, f"jobs[{k}].attempts", source))
        duration_s = sum(seconds for seconds, _ in attempts)
        if duration_s > 0:
            arrival_s, workers = (at - first).total_seconds(), attempts[-1][1]
            jobs.append(TraceJob(job.jobid, arrival_s, workers, duration_s, tenant=job.vc))
    return Trace.of(name, jobs, left_out(len(logged) - len(jobs), len(logged)))


def _attempts(job: _Job, where: str, source: str) -> Iterator[tuple[float, int]]:
    """Yield seconds and GPUs of the attempts that count."""
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
