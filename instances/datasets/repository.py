"""The repository of evidence: a SQLite file that only grows.

Measuring code appends profiles, measurements and other evidence (results of a campaign, proven
shares), with the conditions under which it holds; predictors read all records, or the new ones.
Nothing is changed or deleted: triggers prevent that for every writer. An append is one transaction
and is on the disk when `Repository.append` returns, so a killed writer leaves all of it or
nothing. Several processes may append and read concurrently (write-ahead log; writers wait for each
other). The file should lie on a local disk: SQLite's locks are not safe on network file systems.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from dovetail.instances._record import Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.reading.raw_files import FilePath
from dovetail.instances.slowdowns.shares import share_code, share_of

REPOSITORY: Final = "repository.db"
"""Its file name in the folder of a service or a campaign."""

ENDINGS = (".db", ".sqlite")
"""The endings of names of repositories."""

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x44545052
"""SQLite's application id of a repository: ``DTPR``."""

_LEAST_BYTES = 512
_NO_REPOSITORY = "must be a profile repository, got another file"
_LEAST_SQLITE = (3, 37)  # the first with STRICT tables
_WAIT_S = 60.0
_AGAIN_S = 0.01

_TABLES = {
    "record": """
        sequence INTEGER PRIMARY KEY,
        recorded TEXT NOT NULL""",
    "profile": """
        sequence INTEGER PRIMARY KEY REFERENCES record,
        workload TEXT NOT NULL,
        gpu_model TEXT NOT NULL,
        share INTEGER,
        family TEXT,
        workers INTEGER NOT NULL,
        batch_size INTEGER,
        throughput REAL,
        power_w REAL,
        memory_mib REAL,
        memory_mean_mib REAL,
        duration_s REAL,
        source TEXT,
        date TEXT""",
    "metric": """
        sequence INTEGER NOT NULL REFERENCES profile,
        name TEXT NOT NULL,
        mean REAL,
        variance REAL,
        PRIMARY KEY (sequence, name)""",
    "measurement": """
        sequence INTEGER PRIMARY KEY REFERENCES record,
        gpu_model TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ok', 'failed')),
        power_w REAL,
        source TEXT,
        date TEXT""",
    "member": """
        sequence INTEGER NOT NULL REFERENCES measurement,
        position INTEGER NOT NULL,
        workload TEXT NOT NULL,
        share INTEGER,
        slowdown REAL,
        PRIMARY KEY (sequence, position)""",
    "tail": """
        sequence INTEGER NOT NULL,
        position INTEGER NOT NULL,
        p99 REAL NOT NULL,
        PRIMARY KEY (sequence, position),
        FOREIGN KEY (sequence, position) REFERENCES member""",
    "mode": """
        sequence INTEGER PRIMARY KEY REFERENCES measurement,
        mode TEXT NOT NULL""",
    "latency": """
        sequence INTEGER PRIMARY KEY REFERENCES profile,
        p99_s REAL NOT NULL""",
    "condition": """
        sequence INTEGER PRIMARY KEY REFERENCES record,
        driver TEXT,
        library TEXT""",
    "evidence": """
        sequence INTEGER PRIMARY KEY,
        recorded TEXT NOT NULL,
        kind TEXT NOT NULL,
        gpu_model TEXT NOT NULL,
        driver TEXT,
        library TEXT,
        date TEXT NOT NULL,
        content TEXT NOT NULL""",
}
"""The tables and their columns; ``record`` numbers the rows of the others except ``evidence``.

``mode`` has the measurements in other modes than ``mps``. Repositories of older writers lack it,
``tail``, ``latency``, ``condition`` and ``evidence``, which the next append adds.
"""

_KEYS = {
    "metric": ("sequence", "name"),
    "member": ("sequence", "position"),
    "tail": ("sequence", "position"),
}
"""The keys of the tables with several rows per record."""

_PROFILE = (
    *("workload", "gpu_model", "share", "family", "workers", "batch_size", "throughput"),
    *("power_w", "memory_mib", "memory_mean_mib", "duration_s", "source", "date"),
)
_CONDITION = ("driver", "library")
_MEASUREMENT = ("gpu_model", "power_w", "source", "date")


class RepositoryRecord(NamedTuple):
    """A record of a repository.

    Attributes
    ----------
    sequence : int
        Its number: 1 for the first, increasing with later records.
    recorded : str
        Time of the append, ISO 8601 in UTC; the same for all records of one append.
    record : SoloProfile or Measurement
        The record.
    """

    sequence: int
    recorded: str
    record: SoloProfile | Measurement


class EvidenceRecord(NamedTuple):
    """A finding, and the conditions under which it was made.

    Attributes
    ----------
    kind : str
        The kind of evidence: ``result``, ``split``, ...
    gpu_model : str
        The GPU model.
    driver, library : str or None
        Versions of the driver and of cuBLAS, if they are known or matter.
    date : str
        The time, ISO 8601.
    content : mapping
        Plain data (JSON).
    """

    kind: str
    gpu_model: str
    driver: str | None
    library: str | None
    date: str
    content: Mapping[str, object]


def is_repository(path: FilePath) -> bool:
    """Return whether the name is that of a repository; the file need not exist."""
    return os.fspath(path).lower().endswith(ENDINGS)


class Repository:
    """Profiles and measurements in a SQLite file that only grows.

    An object holds no connection: each call opens and closes the file, so that an object may be
    used from any thread or process.

    Parameters
    ----------
    path : str or path
        The file, created by the first append.

    Attributes
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: FilePath) -> None:
        self.path = Path(path)
        self._source = source_name(path)

    def append(
        self, profiles: Iterable[SoloProfile] = (), measurements: Iterable[Measurement] = ()
    ) -> int:
        """Append records, all or none, and return the sequence number of the last one.

        Profiles come before measurements. The records are on the disk when it returns.

        Returns
        -------
        int
            The largest sequence number; 0 in an empty repository.

        Raises
        ------
        InputError
            When the file is not a repository, has a newer schema, is damaged, cannot be written,
            or is locked by other writers for a minute. Nothing is appended then.
        UnsupportedError
            With SQLite before 3.37.
        """
        rows: list[SoloProfile | Measurement] = [*profiles, *measurements]
        with self._writing() as connection:
            last = _last(connection, "record")
            _insert(connection, last + 1, rows)
        return last + len(rows)

    def record(self, found: Iterable[EvidenceRecord]) -> None:
        """Append evidence, all or none, on the disk when it returns. Raises like `append`."""
        rows = [(*one[:-1], json.dumps(one.content, allow_nan=False)) for one in found]
        now = datetime.now(UTC).isoformat()
        with self._writing() as connection:
            for sequence, row in enumerate(rows, _last(connection, "evidence") + 1):
                _put(connection, "evidence", sequence, now, *row)

    def evidence(self, *kinds: str) -> tuple[EvidenceRecord, ...]:
        """Return the evidence of these kinds in the order of recording. Raises like `data_set`."""
        marks = ", ".join("?" * len(kinds))
        columns = ", ".join(EvidenceRecord._fields)
        with self._reading() as connection:
            if connection is None or "evidence" in _absent(connection):
                return ()
            rows = connection.execute(
                f"SELECT {columns} FROM evidence WHERE kind IN ({marks}) ORDER BY sequence", kinds
            ).fetchall()
        try:
            return tuple(EvidenceRecord._make((*row[:-1], json.loads(row[-1]))) for row in rows)
        except ValueError:
            raise InputError("is damaged: evidence must be JSON", "", self._source) from None

    def data_set(self) -> DataSet:
        """Return all records, in the order of recording; the newest profile is the one in use.

        Like an append, this repairs the file after a killed writer.

        Raises
        ------
        InputError
            When the file does not exist, is not a repository, has a newer schema or is damaged, or
            a writer was killed and this process may not write to repair the file.
        """
        records = [found.record for found in self.since(0)]
        return DataSet.from_data(
            {
                "name": self.path.stem,
                "profiles": [record for record in records if isinstance(record, SoloProfile)],
                "measurements": [record for record in records if isinstance(record, Measurement)],
            },
            self._source,
        )

    def since(self, sequence: int) -> tuple[RepositoryRecord, ...]:
        """Return the records after this sequence number, in order.

        To learn continuously, keep the last number and ask for later records.

        Raises
        ------
        InputError
            As for `data_set`.
        """
        with self._reading() as connection:
            return () if connection is None else tuple(self._read(connection, sequence))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a connection and a transaction to append in."""
        with self._faults("written"), closing(self._connected("rwc")) as connection:
            self._prepare(connection)
            with _transaction(connection, "IMMEDIATE"):
                yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Open a connection and a transaction to read in; None if nothing was written yet."""
        if not os.path.exists(self.path):
            raise InputError("cannot be read: no such file or directory", "", self._source)
        with self._faults("read"), closing(self._connected(self._read_mode())) as connection:
            if _empty(connection):
                yield None
                return
            self._check_kind(connection)
            with _transaction(connection, "DEFERRED"):
                yield connection

    def _read_mode(self) -> str:
        """Return the mode for opening the file to read.

        After a killed writer only a connection with write access can repair the file; without
        write permission, SQLite opens it read-only. SQLite creates its log next to the file: if it
        may not and there is no log, no process writes.
        """
        logs = [self.path.with_name(f"{self.path.name}-{end}") for end in ("wal", "journal")]
        if os.access(self.path.parent, os.W_OK) or any(log.exists() for log in logs):
            return "rw"
        return "ro&immutable=1"

    def _connected(self, mode: str) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _LEAST_SQLITE:
            needed = ".".join(map(str, _LEAST_SQLITE))
            rule = f"a repository needs SQLite {needed} or later"
            raise UnsupportedError(f"{rule}, this Python has {sqlite3.sqlite_version}")
        self._refuse_other_files()
        place = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        connection = sqlite3.connect(place, _WAIT_S, isolation_level=None, uri=True)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _refuse_other_files(self) -> None:
        """Refuse other files; SQLite treats a short file as an empty database to overwrite."""
        if os.path.isdir(self.path):
            raise InputError("must be a profile repository, got a folder", "", self._source)
        # Only its size is checked: opening and closing it here would drop the locks that another
        # thread of this process holds through SQLite.
        if os.path.isfile(self.path) and 0 < os.path.getsize(self.path) < _LEAST_BYTES:
            raise InputError(_NO_REPOSITORY, "", self._source)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check the file, and create the tables in a new one."""
        if _empty(connection):
            with _transaction(connection, "IMMEDIATE"):
                # Another writer may have been faster.
                if _empty(connection):
                    _create(connection)
        self._check_kind(connection)
        if _absent(connection):
            with _transaction(connection, "IMMEDIATE"):
                for table in _absent(connection):
                    _create_table(connection, table)
        _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        # A view may have infinitely many rows.
        views = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'view'").fetchone()
        if mark != APPLICATION_ID or views:
            raise InputError("must be a profile repository, got another database", "", self._source)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            rule = f"must have schema version {SCHEMA_VERSION}, got {version}"
            raise InputError(f"{rule} (a newer Dovetail wrote it)", "", self._source)

    def _read(self, connection: sqlite3.Connection, after: int) -> Iterator[RepositoryRecord]:
        times = dict(connection.execute("SELECT * FROM record WHERE sequence > ?", (after,)))
        found = {**_profiles(connection, after), **_measurements(connection, after)}
        if "condition" not in _absent(connection):
            for sequence, *values in _rows(connection, "condition", _CONDITION, after):
                found[sequence][1].update(_known(_CONDITION, values))
        for sequence in sorted(times):
            kind, data = found.get(sequence, (SoloProfile, {}))
            record = self._checked(sequence, kind, data)
            yield RepositoryRecord(sequence, times[sequence], record)

    def _checked(
        self, sequence: int, kind: type[SoloProfile | Measurement], data: dict[str, object]
    ) -> SoloProfile | Measurement:
        try:
            return kind.from_data(data)
        except InputError as error:
            path = f"record {sequence}: {error.path}"
            raise InputError(error.rule, path, self._source) from None

    @contextmanager
    def _faults(self, done: str) -> Iterator[None]:
        """Turn SQLite's errors into one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(_rule(error, done), "", self._source) from None
        except UnicodeDecodeError:
            # SQLite's own messages quote a damaged schema.
            raise InputError("is damaged: a text in it is not UTF-8", "", self._source) from None


def _rule(error: sqlite3.Error, done: str) -> str:
    # The low byte is the kind of the error, the rest its circumstances.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return _NO_REPOSITORY
        case sqlite3.SQLITE_CORRUPT:
            return f"is damaged: {error}"
        case sqlite3.SQLITE_BUSY:
            return f"cannot be {done}: others have been writing for {_WAIT_S:g} s"
        case sqlite3.SQLITE_READONLY if done == "read":
            return "cannot be read: a writer was killed; open it first as a user who may write"
        case _:
            return f"cannot be {done}: {error}"


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log, which the file then keeps.

    If several connections enable it at the same time, SQLite refuses all but one immediately,
    regardless of their timeout.
    """
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= until_s:
                raise
        time.sleep(_AGAIN_S)


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def _empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


def _absent(connection: sqlite3.Connection) -> list[str]:
    """Return the tables that an older writer did not create."""
    there = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return [table for table in _TABLES if (table,) not in there]


def _create(connection: sqlite3.Connection) -> None:
    for table in _TABLES:
        _create_table(connection, table)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _create_table(connection: sqlite3.Connection, table: str) -> None:
    form = "STRICT, WITHOUT ROWID" if table in _KEYS else "STRICT"
    connection.execute(f"CREATE TABLE {table} ({_TABLES[table]}) {form}")
    for statement in _guards(table):
        connection.execute(statement)


def _guards(table: str) -> Iterator[str]:
    """Yield the triggers that protect the rows of a table; INSERT OR REPLACE fires no DELETE."""
    refuse = f"SELECT RAISE(ABORT, '{table}: a repository is only appended to')"
    for change in ("UPDATE", "DELETE"):
        yield f"CREATE TRIGGER {table}_{change} BEFORE {change} ON {table} BEGIN {refuse}; END"
    there = " AND ".join(f"{key} = NEW.{key}" for key in _key(table))
    yield (
        f"CREATE TRIGGER {table}_REPLACE BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {there}) BEGIN {refuse}; END"
    )


def _last(connection: sqlite3.Connection, table: str) -> int:
    (last,) = connection.execute(f"SELECT coalesce(max(sequence), 0) FROM {table}").fetchone()
    return int(last)


def _insert(
    connection: sqlite3.Connection, first: int, rows: Sequence[SoloProfile | Measurement]
) -> None:
    now = datetime.now(UTC).isoformat()
    for sequence, row in enumerate(rows, first):
        _put(connection, "record", sequence, now)
        if isinstance(row, SoloProfile):
            _insert_profile(connection, sequence, row)
        else:
            _insert_measurement(connection, sequence, row)
        if row.driver is not None or row.library is not None:
            _put(connection, "condition", sequence, row.driver, row.library)


def _insert_profile(connection: sqlite3.Connection, sequence: int, profile: SoloProfile) -> None:
    _put(connection, "profile", sequence, *_values(profile, _PROFILE))
    means = profile.metrics.to_data() if profile.metrics else {}
    for name in {**means, **profile.metrics_variance}:
        variance = profile.metrics_variance.get(name)
        _put(connection, "metric", sequence, name, means.get(name), variance)
    if profile.latency_p99_s is not None:
        _put(connection, "latency", sequence, profile.latency_p99_s)


def _insert_measurement(connection: sqlite3.Connection, sequence: int, found: Measurement) -> None:
    model, *rest = _values(found, _MEASUREMENT)
    status = "failed" if found.failed else "ok"
    _put(connection, "measurement", sequence, model, status, *rest)
    # A failed measurement may have slowdowns, too: lower bounds.
    slowdowns = found.slowdown or found.at_least
    for k, name in enumerate(found.workloads):
        slowdown = slowdowns[k] if slowdowns else None
        share = found.shares[k]
        code = None if share is None else share_code(share)
        _put(connection, "member", sequence, k, name, code, slowdown)
    for k, p99 in enumerate(found.p99 or ()):
        if p99 is not None:
            _put(connection, "tail", sequence, k, p99)
    if found.mode != "mps":
        _put(connection, "mode", sequence, found.mode)


def _values(record: Record, fields: Iterable[str]) -> list[object]:
    return [getattr(record, field) for field in fields]


def _put(connection: sqlite3.Connection, table: str, *values: object) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)


_Found = dict[int, tuple[type[SoloProfile | Measurement], dict[str, object]]]


def _profiles(connection: sqlite3.Connection, after: int) -> _Found:
    """Return the data of each profile by its sequence number."""
    found: _Found = {}
    for sequence, *values in _rows(connection, "profile", _PROFILE, after):
        found[sequence] = (SoloProfile, _known(_PROFILE, values))
    means: dict[int, dict[str, object]] = {}
    variances: dict[int, dict[str, object]] = {}
    for sequence, name, mean, variance in _rows(
        connection, "metric", ("name", "mean", "variance"), after
    ):
        for kind, value in ((means, mean), (variances, variance)):
            if value is not None:
                kind.setdefault(sequence, {})[name] = value
    for sequence, (_, data) in found.items():
        data["metrics"] = means.get(sequence)
        data["metrics_variance"] = variances.get(sequence, {})
    if "latency" not in _absent(connection):
        for sequence, p99_s in _rows(connection, "latency", ("p99_s",), after):
            found[sequence][1]["latency_p99_s"] = p99_s
    return found


def _measurements(connection: sqlite3.Connection, after: int) -> _Found:
    """Return the data of each measurement by its sequence number."""
    members: dict[int, list[tuple[object, ...]]] = {}
    columns = ("workload", "share", "slowdown")
    for sequence, *values in _rows(connection, "member", columns, after):
        members.setdefault(sequence, []).append(tuple(values))
    tails: dict[int, dict[int, float]] = {}
    if "tail" not in _absent(connection):
        for sequence, position, p99 in _rows(connection, "tail", ("position", "p99"), after):
            tails.setdefault(sequence, {})[position] = p99
    found: _Found = {}
    for sequence, status, *values in _rows(
        connection, "measurement", ("status", *_MEASUREMENT), after
    ):
        named = list(zip(*members.get(sequence, []), strict=True)) or [(), (), ()]
        names, shares, slowdowns = named
        shares = tuple(None if code is None else share_of(code) for code in shares)
        data = {"workloads": names, "share": shares, **_known(_MEASUREMENT, values)}
        failed = status == "failed"
        data["slowdown"] = None if failed else slowdowns
        data["at_least"] = slowdowns if failed else None
        if of_member := tails.get(sequence):
            data["p99"] = tuple(of_member.get(k) for k in range(len(names)))
        found[sequence] = (Measurement, data)
    if "mode" not in _absent(connection):
        for sequence, mode in _rows(connection, "mode", ("mode",), after):
            found[sequence][1]["mode"] = mode
    return found


def _known(fields: Iterable[str], values: Iterable[object]) -> dict[str, object]:
    pairs = zip(fields, values, strict=True)
    return {field: value for field, value in pairs if value is not None}


def _rows(
    connection: sqlite3.Connection, table: str, columns: Iterable[str], after: int
) -> sqlite3.Cursor:
    names, order = ", ".join(("sequence", *columns)), ", ".join(_key(table))
    return connection.execute(
        f"SELECT {names} FROM {table} WHERE sequence > ? ORDER BY {order}", (after,)
    )


def _key(table: str) -> tuple[str, ...]:
    return _KEYS.get(table, ("sequence",))
