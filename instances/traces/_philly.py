"""The jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019), as AdaptDL's authors keep them.

Source: the repository ``petuum/adaptdl``, branch ``osdi21-artifact``: one row a job with
``timestamp`` (local time of submission), ``duration`` (s), ``num_gpus``, ``gpu_time`` and
``cluster`` (the virtual cluster).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances._tables import Row, read_csv
from dovetail.instances.errors import InputError
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._moments import moment
from dovetail.instances.traces.trace import Trace, TraceJob

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")


class _Submitted(NamedTuple):
    at: datetime
    row: Row


def read_philly(path: Path, name: str) -> Trace:
    """Return the trace; it begins with the first submission, tenants are virtual clusters."""
    submitted = [_Submitted(_moment(row), row) for row in read_csv(path, COLUMNS)]
    jobs = list(_jobs(submitted))
    return Trace.of(name, jobs, left_out(len(submitted) - len(jobs), len(submitted)))


def _moment(row: Row) -> datetime:
    try:
        return moment(row.values["timestamp"])
    except InputError as error:
        raise row.broken("timestamp", error.rule) from None


def _jobs(submitted: list[_Submitted]) -> Iterator[TraceJob]:
    first = min((each.at for each in submitted), default=datetime.min)
    for at, row in submitted:
        duration_s, workers = row.number("duration"), row.count("num_gpus", least=0)
        tenant = row.text("cluster")
        if duration_s > 0 and workers > 0:
            yield TraceJob(
                id=f"job-{row.line}",
                arrival_s=(at - first).total_seconds(),
                workers=workers,
                duration_s=duration_s,
                tenant=tenant,
            )
