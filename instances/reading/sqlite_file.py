"""SQLite files of one kind: opening and checking them, transactions, and faults as one line.

A file says what it is: SQLite's application id is its kind, ``user_version`` its schema. The files
should lie on a local disk: SQLite's locks are not safe on network file systems.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from dovetail.instances.errors import DovetailError

_LEAST_BYTES = 512
_AGAIN_S = 0.01


@dataclass(frozen=True)
class SqliteFile:
    """A file of one kind, which may not exist yet.

    Attributes
    ----------
    path : Path
        The file.
    kind : str
        What it must be, for messages: ``a journal``.
    application_id : int
        SQLite's mark of this kind.
    version : int
        The newest version of the schema; it and all before it are readable.
    wait_s : float
        Seconds to wait for other writers.
    error : callable
        Makes an error from a broken rule.
    """

    path: Path
    kind: str
    application_id: int
    version: int
    wait_s: float
    error: Callable[[str], DovetailError]

    def connected(self, mode: str) -> sqlite3.Connection:
        """Open the file in a mode of SQLite's URIs, without transactions of Python's own.

        Raises
        ------
        DovetailError
            As in `refuse_cut_short`.
        """
        self.refuse_cut_short()
        place = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        return sqlite3.connect(
            place, self.wait_s, isolation_level=None, check_same_thread=False, uri=True
        )

    def refuse_cut_short(self) -> None:
        """Refuse a file that SQLite would treat as empty, and whose log it would discard.

        Raises
        ------
        DovetailError
            If it is one, or a folder.
        """
        if self.path.is_dir():
            raise self.error(f"must be {self.kind}, got a folder")
        # Only its size is checked: opening and closing it here would drop the locks that another
        # thread of this process holds through SQLite.
        if (size := _size(self.path)) < _LEAST_BYTES and (size or _size(self.log)):
            raise self.error(f"is damaged: it was cut short, or is not {self.kind}")

    @cached_property
    def log(self) -> Path:
        """The write-ahead log of the file."""
        return self.path.with_name(f"{self.path.name}-wal")

    def mark(self, connection: sqlite3.Connection) -> None:
        """Make a file one of this kind and of the newest version, within a transaction."""
        connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute(f"PRAGMA user_version = {self.version}")

    def found_version(self, connection: sqlite3.Connection) -> int:
        """Return the version of the schema.

        Raises
        ------
        DovetailError
            If the file is of another kind, or of a newer version.
        """
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        # A view may have infinitely many rows.
        views = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'view'").fetchone()
        if mark != self.application_id or views:
            raise self.error(f"must be {self.kind}, got another database")
        version = version_of(connection)
        if not 1 <= version <= self.version:
            rule = f"must have a schema version from 1 to {self.version}, got {version}"
            raise self.error(f"{rule} (a newer Dovetail wrote it)")
        return version

    def use_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Enable the write-ahead log, which the file then keeps.

        If several connections enable it at the same time, SQLite refuses all but one immediately,
        regardless of their timeout.
        """
        until_s = time.monotonic() + self.wait_s
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
    def faults(self, done: str) -> Iterator[None]:
        """Turn errors of SQLite and of the system into one line.

        Parameters
        ----------
        done : str
            What the file cannot be if there is one: ``written``.
        """
        try:
            yield
        except sqlite3.Error as error:
            raise self.error(self._rule(error, done)) from None
        except UnicodeDecodeError:
            # SQLite's own messages quote a damaged schema.
            raise self.error("is damaged: a text in it is not UTF-8") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise self.error(f"cannot be {done}: {reason}") from None

    def _rule(self, error: sqlite3.Error, done: str) -> str:
        # The low byte is the kind of an error, the rest its circumstances.
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_NOTADB:
                return f"must be {self.kind}, got another file"
            case sqlite3.SQLITE_CORRUPT:
                return f"is damaged: {error}"
            case sqlite3.SQLITE_BUSY:
                return f"cannot be {done}: others have been writing for {self.wait_s:g} s"
            case sqlite3.SQLITE_READONLY if done == "read":
                return "cannot be read: a writer was killed; open it first as a user who may write"
            case sqlite3.SQLITE_IOERR if is_full(self.path.parent):
                return f"cannot be {done}: no space left on device"
            case _:
                return f"cannot be {done}: {error}"


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Do all that follows, or nothing."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself on some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether a file has no tables."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the schema that a file says it has."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def is_full(folder: Path) -> bool:
    """Return whether the disk is full; SQLite does not say so if it lacks shared memory."""
    try:
        return shutil.disk_usage(folder).free == 0
    except OSError:
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
