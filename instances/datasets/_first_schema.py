"""Repositories of schema version 1, which kept each kind of record in tables of its own.

Writers of different ages created different tables: ``mode`` (measurements in other modes than
``mps``), ``tail``, ``latency``, ``condition`` and ``evidence`` may be absent.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from dovetail.instances.slowdowns.shares import share_of

VERSION: Final = 1

_TABLES: Final = (
    *("tail", "mode", "latency", "condition", "evidence"),
    *("member", "metric", "measurement", "profile", "record"),
)
_PROFILE: Final = (
    *("workload", "gpu_model", "share", "family", "workers", "batch_size", "throughput"),
    *("power_w", "memory_mib", "memory_mean_mib", "duration_s", "source", "date"),
)
_MEASUREMENT: Final = ("gpu_model", "power_w", "source", "date")
_CONDITION: Final = ("driver", "library")

_Data = dict[str, object]


def rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table ``record``, where evidence follows the records."""
    found = {**_profiles(connection), **_measurements(connection)}
    for sequence, *values in _all(connection, "condition", _CONDITION):
        if sequence in found:
            found[sequence][1].update(_known(_CONDITION, values))
    last = 0
    for sequence, recorded in _all(connection, "record", ("recorded",)):
        kind, data = found.get(sequence, ("profile", {}))
        about = (data.pop(name, None) for name in ("gpu_model", *_CONDITION, "date"))
        yield sequence, recorded, kind, *about, json.dumps(data)
        last = sequence
    columns = ("recorded", "kind", "gpu_model", *_CONDITION, "date", "content")
    for sequence, *values in _all(connection, "evidence", columns):
        yield last + sequence, *values


def remove(connection: sqlite3.Connection) -> None:
    """Remove the tables, within a transaction."""
    for table in _TABLES:
        connection.execute(f"DROP TABLE IF EXISTS {table}")


def _profiles(connection: sqlite3.Connection) -> dict[int, tuple[str, _Data]]:
    """Return the data of each profile by its sequence number."""
    means: dict[int, _Data] = defaultdict(dict)
    variances: dict[int, _Data] = defaultdict(dict)
    for sequence, name, mean, variance in _all(connection, "metric", ("name", "mean", "variance")):
        for kind, value in ((means, mean), (variances, variance)):
            if value is not None:
                kind[sequence][name] = value
    latencies = dict(_all(connection, "latency", ("p99_s",)))
    found: dict[int, tuple[str, _Data]] = {}
    for sequence, *values in _all(connection, "profile", _PROFILE):
        data = _known(_PROFILE, values)
        data["metrics"] = means.get(sequence)
        data["metrics_variance"] = variances.get(sequence, {})
        data["latency_p99_s"] = latencies.get(sequence)
        found[sequence] = ("profile", data)
    return found


def _measurements(connection: sqlite3.Connection) -> dict[int, tuple[str, _Data]]:
    """Return the data of each measurement by its sequence number."""
    tails = {
        (sequence, position): p99
        for sequence, position, p99 in _all(connection, "tail", ("position", "p99"))
    }
    modes = dict(_all(connection, "mode", ("mode",)))
    members: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    columns = ("position", "workload", "share", "slowdown")
    for sequence, position, name, code, slowdown in _all(connection, "member", columns):
        share = None if code is None else share_of(code)
        members[sequence].append((name, share, slowdown, tails.get((sequence, position))))
    found: dict[int, tuple[str, _Data]] = {}
    for sequence, status, *values in _all(connection, "measurement", ("status", *_MEASUREMENT)):
        data = _known(_MEASUREMENT, values)
        names, shares, slowdowns, p99 = list(zip(*members[sequence], strict=True)) or [()] * 4
        data |= {"workloads": names, "share": shares, "slowdown": slowdowns, "p99": p99}
        if status == "failed":
            # Lower bounds.
            data["slowdown"], data["at_least"] = None, slowdowns
        if sequence in modes:
            data["mode"] = modes[sequence]
        found[sequence] = ("measurement", data)
    return found


def _known(fields: Iterable[str], values: Iterable[object]) -> _Data:
    pairs = zip(fields, values, strict=True)
    return {field: value for field, value in pairs if value is not None}


def _all(
    connection: sqlite3.Connection, table: str, columns: Iterable[str]
) -> Iterable[tuple[Any, ...]]:
    """Return columns of a table after the sequence number; nothing if there is no such table."""
    there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    if there is None:
        return ()
    position = ", position" if table in ("member", "tail") else ""
    return connection.execute(
        f"SELECT sequence, {', '.join(columns)} FROM {table} ORDER BY sequence{position}"
    )
