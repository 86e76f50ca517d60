"""The journal: every event of live mode in a SQLite file, durable before anything is done for it.

An append is one transaction of SQLite's write-ahead log (``synchronous = NORMAL``): a service that
is killed leaves all of its events or none. ``sync`` waits until all that was appended is on the
disk, and outlasts the machine; so one wait serves what happened and what was decided for it. Every
row has a check sum, because SQLite notices torn files but not every changed byte.

A service reads its journal from the last checkpoint (a copy of the state machine in the same
file) and the events after it. Until a journal is compacted, checkpoints only save time: without a
usable one, all events are read. Compaction removes old events that a checkpoint covers; from then
on the journal begins with a checkpoint.

The file should lie on a local disk: SQLite's locks are not safe on network file systems.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from pydantic_core import from_json

from dovetail.executor.jobs import checkpoint
from dovetail.executor.jobs.events import ANY_EVENT, AnyEvent, Edited, Placed, Submitted
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.state_machine import StateMachine, TransitionError
from dovetail.executor.jobs.states import OVER
from dovetail.executor.system.directories import LOCK, require_own
from dovetail.instances.errors import DovetailError, source_name
from dovetail.instances.raw_files import FilePath

JOURNAL: Final = "journal.db"

APPLICATION_ID: Final = 0x44544A4C
"""SQLite's mark of the kind of file: ``DTJL``."""

SCHEMA_VERSION: Final = 1

COMPACTED_VERSION: Final = 2
"""Of the schema with the table ``base``: up to which event the last compaction went."""

EVENTS_A_CHECKPOINT: Final = 2_500
"""Events between two checkpoints: so many are read at a start, within a quarter of a second."""

_LOG_BYTES: Final = 2**22
"""As long SQLite's log gets, about, before it is written over from its beginning (1,000 pages)."""

_WAIT_S = 10.0
_LEAST_BYTES = 512

_MOST_DROPPED: Final = 100_000
"""Events that one compaction looks at: it holds up the service."""

_APPEND_ONLY = tuple(
    f"CREATE TRIGGER event_{change} BEFORE {change} ON event "
    "BEGIN SELECT RAISE(ABORT, 'a journal is only appended to'); END"
    for change in ("UPDATE", "DELETE")
)
_SAID_BEFORE: Final[Mapping[type, Any]] = MappingProxyType(
    {Placed: {"run": {"spec": {"env"}}}, Edited: {"spec": {"env"}}}
)
_LIVING = "sequence IN (SELECT sequence FROM job WHERE NOT over)"

_SCHEMA = (
    "CREATE TABLE event (sequence INTEGER PRIMARY KEY, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE brain (version INTEGER NOT NULL, sequence INTEGER NOT NULL, "
    "jobs INTEGER NOT NULL, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE job (sequence INTEGER PRIMARY KEY REFERENCES event, over INTEGER NOT NULL, "
    "text TEXT NOT NULL, sum INTEGER NOT NULL)",
    *_APPEND_ONLY,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class JournalError(DovetailError):
    """A journal cannot be written, read or locked; one line says why."""


class Entry(NamedTuple):
    """An event and its number; the first of a journal has number 1."""

    sequence: int
    event: AnyEvent


class Journal:
    """The journal of the one service of a directory; used by one thread at a time.

    Parameters
    ----------
    directory : str or path
        Created for its owner only if it does not exist. It is locked until ``close`` or the end
        of the process.

    Raises
    ------
    InputError
        If other users could have prepared the directory (``require_own``).
    JournalError
        If another service has locked it, or the file is damaged, no journal, or not writable.
    """

    def __init__(self, directory: FilePath) -> None:
        folder = Path(directory)
        self._path = folder / JOURNAL
        self._lock = _locked(folder)
        try:
            with _faults(self._path, "opened"):
                self._connection, self._sequence = _for_writing(self._path)
        except BaseException:
            os.close(self._lock)
            raise
        self._checkpointed = 0
        # What an earlier service has left may not be on the disk yet.
        self._synced = 0
        self._stored: set[int] = set()
        self._settled: set[int] = set()

    @property
    def sequence(self) -> int:
        """The number of the last event; 0 in an empty journal."""
        return self._sequence

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Add events, all or none, and return the number of the last one.

        They survive this process at once, and the machine when ``sync`` has returned.

        Raises
        ------
        JournalError
            If it fails (the disk is full, say). Then nothing is appended, and a later append may
            succeed.
        """
        rows = [_row(number, event) for number, event in enumerate(events, self._sequence + 1)]
        with _faults(self._path, "written"), _transaction(self._connection):
            self._connection.executemany("INSERT INTO event VALUES (?, ?, ?)", rows)
        self._sequence += len(rows)
        return self._sequence

    def sync(self) -> None:
        """Wait until all events are on the disk.

        Raises
        ------
        JournalError
            When they are not.
        """
        if self._synced == self._sequence:
            return
        log = self._path.with_name(f"{self._path.name}-wal")
        # Where there is no log, SQLite has put all of it into the journal's file.
        with _faults(self._path, "written"), suppress(FileNotFoundError):
            descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
            try:
                # A file that keeps its length needs no transaction of the file system, in which
                # others' changes would have to be waited for. SQLite reads no further than to the
                # zeros, and writes over them.
                size = os.fstat(descriptor).st_size
                with suppress(OSError):
                    os.pwrite(descriptor, bytes(max(0, _LOG_BYTES - size)), size)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._synced = self._sequence

    def replay(self) -> StateMachine:
        """Return the state machine as it was after the last event.

        Raises
        ------
        JournalError
            When the file is damaged.
        """
        # All of these very many objects stay: looking for garbage among them takes two thirds
        # longer here, and time again and again as long as the service runs.
        gc.disable()
        try:
            with _faults(self._path, "read"):
                stored = _from_checkpoint(self._connection)
                if stored is not None:
                    self._checkpointed = stored.sequence
                    self._stored = {job.sequence for job in stored.jobs.values()}
                    self._settled = {
                        job.sequence for job in stored.jobs.values() if job.state in OVER
                    }
                machine = _replayed(self._connection, self._path, stored)
        finally:
            gc.freeze()
            gc.enable()
        if machine.sequence != self._sequence:
            rule = f"is damaged: {machine.sequence} of {self._sequence} events are left"
            raise JournalError(f"{source_name(self._path)}: {rule}")
        return machine

    def checkpoint(self, machine: StateMachine, every: int = EVENTS_A_CHECKPOINT) -> bool:
        """Store the state if ``every`` events have come since it was stored last; return whether.

        Raises
        ------
        JournalError
            When it cannot be written; the journal is as good as before, and it is tried again
            after as many more events.
        """
        if machine.sequence - self._checkpointed < every:
            return False
        self._checkpointed = machine.sequence
        chosen = [job for job in machine.jobs.values() if job.sequence not in self._settled]
        rows = [_job_row(job) for job in chosen]
        kept = {job.sequence for job in machine.jobs.values()}
        # Among them jobs that ran at the last checkpoint, and ended and were forgotten since.
        forgotten = self._stored - kept
        text = checkpoint.state_text(machine)
        known = (machine.sequence, len(machine.jobs), text)
        state = (checkpoint.VERSION, *known, _sum(machine.sequence, text))
        with _faults(self._path, "written"), _transaction(self._connection):
            self._connection.execute("DELETE FROM brain")
            if not self._stored:
                self._connection.execute("DELETE FROM job")
            self._connection.executemany(
                "DELETE FROM job WHERE sequence = ?", [(number,) for number in forgotten]
            )
            self._connection.execute("INSERT INTO brain VALUES (?, ?, ?, ?, ?)", state)
            self._connection.executemany("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)", rows)
        self._stored = kept
        # What is over never changes again.
        self._settled &= kept
        self._settled.update(job.sequence for job in chosen if job.state in OVER)
        return True

    def compact(self, machine: StateMachine, before_s: float) -> None:
        """Remove events before a moment, and the environments of all jobs that are over.

        A checkpoint holds what they have led to. What was submitted stays as long as its job is
        not over. The file gets smaller once less than half of it is in use.

        Parameters
        ----------
        machine : StateMachine
            As it is after the last event.
        before_s : float
            On the clock of the events.

        Raises
        ------
        JournalError
            When it cannot be written; the journal is as good as before.
        """
        self.checkpoint(machine, every=1)
        with _faults(self._path, "written"):
            with _transaction(self._connection):
                _compact(self._connection, before_s)
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (unused,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            if unused > pages / 2:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Release the journal for another service."""
        self._connection.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_state_machine(directory: FilePath) -> StateMachine:
    """Return the state machine of a journal, which a service may be writing; change nothing.

    Raises
    ------
    JournalError
        When there is none, or it is damaged or may not be read.
    """
    path = Path(directory) / JOURNAL
    with _faults(path, "read"), closing(_for_reading(path)) as connection:
        connection.execute("BEGIN")
        return _replayed(connection, path, _from_checkpoint(connection))


def read_events(directory: FilePath, after: int = 0) -> Iterator[Entry]:
    """Yield the events that are left with a number above ``after``; change nothing.

    Only the submission of a job has its environment.

    Raises
    ------
    JournalError
        As for `read_state_machine`.
    """
    path = Path(directory) / JOURNAL
    with _faults(path, "read"), closing(_for_reading(path)) as connection:
        yield from _entries(connection, path, after)


# From a file to a state machine.


def _replayed(
    connection: sqlite3.Connection, path: Path, stored: StateMachine | None
) -> StateMachine:
    """Return the state machine after all events, from what a checkpoint has stored on."""
    machine = stored or StateMachine()
    if machine.sequence < _base(connection):
        raise JournalError(f"{source_name(path)}: is damaged: its checkpoint cannot be read")
    for entry in _entries(connection, path, machine.sequence):
        # It was refused when it happened, too.
        with suppress(TransitionError):
            machine.apply(entry.event)
    return machine


def _from_checkpoint(connection: sqlite3.Connection) -> StateMachine | None:
    """Return the state machine of the last checkpoint, None where that cannot be used."""
    found = connection.execute("SELECT version, sequence, jobs, text, sum FROM brain").fetchone()
    if found is None:
        return None
    version, sequence, count, text, text_sum = found
    if version != checkpoint.VERSION or _sum(sequence, text) != text_sum:
        return None
    try:
        machine = checkpoint.restored(text, _stored_jobs(connection))
    except ValueError:
        return None
    whole = (machine.sequence, len(machine.jobs)) == (sequence, count)
    return machine if whole and sequence <= _last(connection) else None


def _stored_jobs(connection: sqlite3.Connection) -> Iterator[checkpoint.StoredJob]:
    rows = connection.execute(
        "SELECT job.sequence, over, job.text, job.sum, event.text, event.sum FROM job "
        "LEFT JOIN event ON event.sequence = job.sequence AND NOT over ORDER BY job.sequence"
    )
    for sequence, over, text, text_sum, submitted, submitted_sum in rows:
        if _sum(sequence, text) != text_sum:
            raise ValueError("a job is damaged")
        if over:
            yield checkpoint.StoredJob(text, None)
        elif _sum(sequence, submitted) == submitted_sum:
            yield checkpoint.StoredJob(text, Submitted.model_validate_json(submitted).spec)
        else:
            raise ValueError("an event is damaged")


def _entries(connection: sqlite3.Connection, path: Path, after: int) -> Iterator[Entry]:
    rows = connection.execute(
        "SELECT sequence, text, sum FROM event WHERE sequence > ? ORDER BY sequence", (after,)
    )
    wanted, base = after + 1, _base(connection)
    for sequence, text, text_sum in rows:
        if wanted <= base:
            # Of what a compaction went over, not all is left.
            wanted = min(sequence, base + 1)
        if sequence != wanted or _sum(sequence, text) != text_sum:
            raise JournalError(f"{source_name(path)}: is damaged at event {wanted}")
        try:
            yield Entry(sequence, ANY_EVENT.validate_json(text))
        except ValueError:
            rule = f"event {sequence} cannot be read (a newer Dovetail wrote it)"
            raise JournalError(f"{source_name(path)}: {rule}") from None
        wanted += 1


def _last(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM event").fetchone()
    return max(int(last), _base(connection))


def _base(connection: sqlite3.Connection) -> int:
    """Return the number of the last event that a compaction went over; 0 before the first."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < COMPACTED_VERSION:
        return 0
    (base,) = connection.execute("SELECT sequence FROM base").fetchone()
    return int(base)


def _compact(connection: sqlite3.Connection, before_s: float) -> None:
    # The last checkpoint may be older than the state machine: a full disk refuses checkpoints.
    (base,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM brain").fetchone()
    for change in ("UPDATE", "DELETE"):
        connection.execute(f"DROP TRIGGER event_{change}")
    connection.execute("CREATE TABLE IF NOT EXISTS base (sequence INTEGER NOT NULL)")
    connection.execute("DELETE FROM base")
    connection.execute("INSERT INTO base VALUES (?)", (base,))
    connection.execute(
        f"DELETE FROM event WHERE sequence <= ? AND NOT {_LIVING}",
        (_last_before(connection, base, before_s),),
    )
    connection.executemany(
        "UPDATE event SET text = ?2, sum = ?3 WHERE sequence = ?1",
        [_without_environment(*row) for row in _ended_with_environment(connection)],
    )
    for statement in _APPEND_ONLY:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {COMPACTED_VERSION}")


def _last_before(connection: sqlite3.Connection, base: int, before_s: float) -> int:
    last = 0
    rows = connection.execute(
        f"SELECT sequence, text FROM event WHERE sequence <= ? AND NOT {_LIVING} "
        "ORDER BY sequence LIMIT ?",
        (base, _MOST_DROPPED),
    )
    for sequence, text in rows:
        if from_json(text)["at_s"] >= before_s:
            break
        last = sequence
    return last


def _ended_with_environment(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    return connection.execute(
        "SELECT event.sequence, event.text FROM job JOIN event ON event.sequence = job.sequence "
        'WHERE over AND instr(event.text, \'"env":{"\')'
    ).fetchall()


def _without_environment(sequence: int, text: str) -> tuple[int, str, int]:
    submitted = Submitted.model_validate_json(text)
    return _row(sequence, submitted.replace(spec=submitted.spec.replace(env={})))


def _row(sequence: int, event: AnyEvent) -> tuple[int, str, int]:
    # The submission of a job has its environment already.
    elsewhere = _SAID_BEFORE.get(type(event))
    text = event.model_dump_json(exclude=elsewhere)
    return sequence, text, _sum(sequence, text)


def _job_row(job: LiveJob) -> tuple[int, bool, str, int]:
    text = checkpoint.job_text(job)
    return job.sequence, job.state in OVER, text, _sum(job.sequence, text)


def _sum(sequence: int, text: str) -> int:
    return zlib.crc32(f"{sequence} {text}".encode())


# The file and its lock.


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the directory's lock; it goes with the process."""
    require_own(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        rule = f"a service runs here already (pid {pid})"
        raise JournalError(f"{source_name(folder)}: {rule}") from None
    # For people; over what is there, which takes no room on a full disk.
    with suppress(OSError):
        os.pwrite(lock, f"{os.getpid():<19}\n".encode(), 0)
    return lock


def _unusable(folder: Path, error: OSError) -> JournalError:
    return JournalError(f"{source_name(folder)}: cannot be used: {_reason(error)}")


def _for_writing(path: Path) -> tuple[sqlite3.Connection, int]:
    """Open or make the file; return the connection and the number of the last event."""
    _refuse_cut_short(path)
    # It has environments of jobs: no other user may read it, nor its log.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    _sync_folder(path.parent)
    try:
        return _opened(path)
    except sqlite3.OperationalError:
        # No room for the memory that its readers share: then there are none before the next start.
        if not _is_full(path.parent):
            raise
        return _opened(path, alone=True)


def _opened(path: Path, alone: bool = False) -> tuple[sqlite3.Connection, int]:
    connection = _connected(path, "rw")
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if _is_empty(connection):
            with _transaction(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
        _check_kind(connection, path)
        return connection, _last(connection)
    except BaseException:
        connection.close()
        raise


def _refuse_cut_short(path: Path) -> None:
    """Refuse a file that SQLite takes for empty: it would discard the log of such a file."""
    log = path.with_name(f"{path.name}-wal")
    size = path.stat().st_size if path.exists() else 0
    if size < _LEAST_BYTES and (size or (log.exists() and log.stat().st_size)):
        raise JournalError(f"{source_name(path)}: is damaged: it was cut short")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _for_reading(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise JournalError(f"{source_name(path)}: cannot be read: no such file or directory")
    _refuse_cut_short(path)
    connection = _connected(path, "ro")
    try:
        _check_kind(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    place = f"file:{quote(str(path.absolute()))}?mode={mode}"
    made = sqlite3.connect(place, _WAIT_S, isolation_level=None, check_same_thread=False, uri=True)
    # Damaged text is for the check sums to find, which say where it is.
    made.text_factory = partial(str, encoding="utf-8", errors="replace")
    return made


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(tables == 0)


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != APPLICATION_ID:
        raise JournalError(f"{source_name(path)}: must be a journal, got another database")
    if version not in (SCHEMA_VERSION, COMPACTED_VERSION):
        rule = f"must have schema version {SCHEMA_VERSION} or {COMPACTED_VERSION}, got {version}"
        raise JournalError(f"{source_name(path)}: {rule} (a newer Dovetail wrote it)")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls some faults back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _faults(path: Path, done: str) -> Iterator[None]:
    """Turn errors of SQLite and of the system into errors of one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(f"{source_name(path)}: {_rule(error, path, done)}") from None
    except UnicodeDecodeError:
        # Even what SQLite says of a damaged file may have parts of it.
        raise JournalError(f"{source_name(path)}: is damaged: not all is text") from None
    except OSError as error:
        raise JournalError(f"{source_name(path)}: cannot be {done}: {_reason(error)}") from None


def _rule(error: sqlite3.Error, path: Path, done: str) -> str:
    # The low byte is the kind of an error, the rest its circumstances.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_NOTADB:
            return "must be a journal, got another file"
        case sqlite3.SQLITE_CORRUPT:
            return f"is damaged: {error}"
        case sqlite3.SQLITE_IOERR if _is_full(path.parent):
            return f"cannot be {done}: no space left on device"
        case _:
            return f"cannot be {done}: {error}"


def _is_full(folder: Path) -> bool:
    """Return whether the disk is full, which SQLite does not say if it lacks shared memory."""
    try:
        return shutil.disk_usage(folder).free == 0
    except OSError:
        return False


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
