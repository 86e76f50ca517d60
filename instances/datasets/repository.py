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
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic_core import from_json

from dovetail.instances.datasets import _first_schema
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError, UnsupportedError, source_name
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.reading.sqlite_file import SqliteFile, is_empty, transaction

REPOSITORY: Final = "repository.db"
"""Its file name in the folder of a service or a campaign."""

ENDINGS = (".db", ".sqlite")
"""The endings of names of repositories."""

SCHEMA_VERSION: Final = 2
"""The version with one table; an earlier one is read, and upgraded by the next append."""

APPLICATION_ID: Final = 0x44545052
"""SQLite's application id of a repository: ``DTPR``."""

_LEAST_SQLITE = (3, 37)  # the first with STRICT tables
_WAIT_S = 60.0

_CONDITIONS: Final = {"gpu_model", "driver", "library", "date"}
"""What every kind of record has; the rest is its content, JSON."""

_NOT_RECORDS: Final = "kind NOT IN ('measurement', 'profile')"
"""The condition of evidence, of which there is little beside the records."""

_REFUSE: Final = "BEGIN SELECT RAISE(ABORT, 'a repository is only appended to'); END"
_SCHEMA: Final = (
    """CREATE TABLE record (
        sequence INTEGER PRIMARY KEY,
        recorded TEXT NOT NULL,
        kind TEXT NOT NULL,
        gpu_model TEXT NOT NULL,
        driver TEXT,
        library TEXT,
        date TEXT,
        content TEXT NOT NULL) STRICT""",
    f"CREATE INDEX record_evidence ON record (kind) WHERE {_NOT_RECORDS}",
    f"CREATE TRIGGER record_UPDATE BEFORE UPDATE ON record {_REFUSE}",
    f"CREATE TRIGGER record_DELETE BEFORE DELETE ON record {_REFUSE}",
    # INSERT OR REPLACE fires no DELETE.
    "CREATE TRIGGER record_REPLACE BEFORE INSERT ON record "
    f"WHEN NEW.sequence <= (SELECT max(sequence) FROM record) {_REFUSE}",
)

_KINDS: Final[Mapping[str, type[SoloProfile | Measurement]]] = MappingProxyType(
    {"profile": SoloProfile, "measurement": Measurement}
)
"""The kinds that are records; every other one is evidence."""


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
        self._file = SqliteFile(
            self.path,
            "a profile repository",
            APPLICATION_ID,
            SCHEMA_VERSION,
            _WAIT_S,
            partial(InputError, path="", source=self._source),
        )

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
        return self._append([*profiles, *measurements])

    def record(self, found: Iterable[EvidenceRecord]) -> None:
        """Append evidence, all or none, on the disk when it returns. Raises like `append`."""
        self._append(list(found))

    def evidence(self, *kinds: str) -> tuple[EvidenceRecord, ...]:
        """Return the evidence of these kinds in the order of recording. Raises like `data_set`."""
        return tuple(map(self._evidence, self._rows(kinds)))

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
        return tuple(
            RepositoryRecord(row.sequence, row.recorded, self._record(row))
            for row in self._rows(_KINDS, sequence)
        )

    def _append(self, found: Collection[_Found]) -> int:
        """Append records in one transaction, and return the last sequence number."""
        with self._writing() as connection:
            (last,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM record").fetchone()
            now = datetime.now(UTC).isoformat()
            _insert(connection, (_row(k, now, one) for k, one in enumerate(found, last + 1)))
        return int(last) + len(found)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open a connection and a transaction to append in; the file is made if need be."""
        with self._file.faults("written"), closing(self._connected("rwc")) as connection:
            if is_empty(connection):
                with transaction(connection):
                    # Another writer may have been faster.
                    if is_empty(connection):
                        self._create(connection)
            self._file.found_version(connection)
            self._file.use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            with transaction(connection):
                if self._file.found_version(connection) == _first_schema.VERSION:
                    self._upgrade(connection)
                yield connection

    def _rows(self, kinds: Collection[str], after: int = 0) -> list[_StoredRow]:
        """Return the rows of these kinds after a sequence number, in order."""
        if not os.path.exists(self.path):
            raise InputError("cannot be read: no such file or directory", "", self._source)
        with (
            self._file.faults("read"),
            closing(self._connected(self._read_mode())) as connection,
            transaction(connection, "DEFERRED"),
        ):
            if is_empty(connection):
                return []
            if self._file.found_version(connection) == _first_schema.VERSION:
                rows = map(_StoredRow._make, _first_schema.rows(connection))
                return [row for row in rows if row.sequence > after and row.kind in kinds]
            among = "" if _KINDS.keys() & kinds else f"AND {_NOT_RECORDS} "
            # As bytes: text that is damaged is found with the record that it is in.
            found = connection.execute(
                f"SELECT {', '.join(_StoredRow._fields[:-1])}, CAST(content AS BLOB) FROM record "
                f"WHERE sequence > ? AND kind IN ({', '.join('?' * len(kinds))}) {among}"
                "ORDER BY sequence",
                (after, *kinds),
            )
            return list(map(_StoredRow._make, found))

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
        return self._file.connected(mode)

    def _create(self, connection: sqlite3.Connection) -> None:
        for statement in _SCHEMA:
            connection.execute(statement)
        self._file.mark(connection)

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Move the records of an earlier version into the one table, with their numbers."""
        rows = list(map(_StoredRow._make, _first_schema.rows(connection)))
        kept = [_row(row.sequence, row.recorded, self._found(row)) for row in rows]
        _first_schema.remove(connection)
        self._create(connection)
        _insert(connection, kept)

    def _found(self, row: _StoredRow) -> _Found:
        return self._record(row) if row.kind in _KINDS else self._evidence(row)

    def _record(self, row: _StoredRow) -> SoloProfile | Measurement:
        data = self._content(row)
        for name in _CONDITIONS:
            if (value := getattr(row, name)) is not None:
                data[name] = value
        try:
            return _KINDS[row.kind].from_data(data)
        except InputError as error:
            path = f"record {row.sequence}: {error.path}"
            raise InputError(error.rule, path, self._source) from None

    def _evidence(self, row: _StoredRow) -> EvidenceRecord:
        return EvidenceRecord._make((*row[2:7], self._content(row)))

    def _content(self, row: _StoredRow) -> dict[str, object]:
        try:
            content = from_json(row.content)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            rule = "is damaged: its content must be a JSON object"
            raise InputError(rule, f"record {row.sequence}", self._source)
        return content


class _StoredRow(NamedTuple):
    """A row of the table."""

    sequence: int
    recorded: str
    kind: str
    gpu_model: str
    driver: str | None
    library: str | None
    date: str | None
    content: bytes | str


_Found = SoloProfile | Measurement | EvidenceRecord


def _row(sequence: int, recorded: str, found: _Found) -> _StoredRow:
    if isinstance(found, EvidenceRecord):
        kind, content = found.kind, json.dumps(found.content, allow_nan=False)
    else:
        kind = "profile" if isinstance(found, SoloProfile) else "measurement"
        content = found.model_dump_json(exclude_defaults=True, exclude=_CONDITIONS)
    conditions = (found.gpu_model, found.driver, found.library, found.date)
    return _StoredRow(sequence, recorded, kind, *conditions, content)


def _insert(connection: sqlite3.Connection, rows: Iterable[_StoredRow]) -> None:
    connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
