"""The journal: every event of live mode in a SQLite file, durable before it is acted on.

An append is one transaction of SQLite's write-ahead log (``synchronous = NORMAL``): if the service
is killed, all events of an append are there or none. ``sync`` waits until all appended events are
on the disk and survive a crash of the machine, so that one wait covers both observations and the
decisions made on them. Every row has a check sum, because SQLite notices torn files but not every
changed byte. Environments and long commands are stored once each, in the table ``words``.

A service reads its journal from the last checkpoint (a copy of the state machine in the same
file) and the events after it. Until a journal is compacted, checkpoints only save time: without a
usable one, all events are read. Compaction removes old events that a checkpoint covers; from then
on the journal begins with a checkpoint.

The file should lie on a local disk: SQLite's locks are not safe on network file systems.
"""

from __future__ import annotations

import gc
import math
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from pydantic_core import from_json

from dovetail.executor.jobs import checkpoint
from dovetail.executor.jobs.events import ANY_EVENT, AnyEvent, Edited, Placed, Submitted
from dovetail.executor.jobs.journal_lock import JournalError, JournalLock
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Digests, JobSpec, KnownWords, Run, Words, brief
from dovetail.executor.jobs.state_machine import StateMachine, TransitionError
from dovetail.executor.jobs.states import OVER
from dovetail.instances.errors import source_name
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.reading.sqlite_file import (
    SqliteFile,
    is_empty,
    is_full,
    transaction,
    version_of,
)

JOURNAL: Final = "journal.db"

APPLICATION_ID: Final = 0x44544A4C
"""SQLite's mark of the file type: ``DTJL``."""

SCHEMA_VERSION: Final = 3
"""The version with the table ``words``; a journal of an earlier version is upgraded on opening.

Version 2 and compacted journals of version 1 have the table ``base``; both versions have all words
within the events.
"""

EVENTS_A_CHECKPOINT: Final = 2_500
"""Events between two checkpoints. A start reads at most about this many, in under 0.25 s."""

_LOG_BYTES: Final = 2**22
"""Approximate size of SQLite's log when it is overwritten from its beginning (1,000 pages)."""

_WAIT_S = 10.0

MOST_BYTES: Final = 2**30
"""Limit on the journal's size; beyond it a compaction removes events of any age."""

_MOST_DROPPED: Final = 100_000
"""Events that one compaction examines, since the service waits for it."""

_APPEND_ONLY = tuple(
    f"CREATE TRIGGER event_{change} BEFORE {change} ON event "
    "BEGIN SELECT RAISE(ABORT, 'a journal is only appended to'); END"
    for change in ("UPDATE", "DELETE")
)
_ELSEWHERE: Final[Mapping[type, Any]] = MappingProxyType(
    {Submitted: {"spec": {"env"}}, Edited: {"spec": {"env"}}, Placed: {"run": {"spec": {"env"}}}}
)
"""Environments: a submission has its own in ``words``, and later events have the same one."""

_LIVING = "sequence IN (SELECT sequence FROM job WHERE NOT over)"

_WORDS = (
    "CREATE TABLE IF NOT EXISTS base (sequence INTEGER NOT NULL)",
    "INSERT INTO base SELECT 0 WHERE NOT EXISTS (SELECT * FROM base)",
    "CREATE TABLE words (digest TEXT PRIMARY KEY, text TEXT NOT NULL)",
    "ALTER TABLE event ADD COLUMN env TEXT REFERENCES words",
    "ALTER TABLE event ADD COLUMN command TEXT REFERENCES words",
    "ALTER TABLE job ADD COLUMN command TEXT REFERENCES words",
    "CREATE INDEX event_env ON event (env) WHERE env IS NOT NULL",
    "CREATE INDEX event_command ON event (command) WHERE command IS NOT NULL",
)
"""Upgrade of earlier versions to version 3."""

_SCHEMA = (
    "CREATE TABLE event (sequence INTEGER PRIMARY KEY, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE brain (version INTEGER NOT NULL, sequence INTEGER NOT NULL, "
    "jobs INTEGER NOT NULL, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE job (sequence INTEGER PRIMARY KEY REFERENCES event, over INTEGER NOT NULL, "
    "text TEXT NOT NULL, sum INTEGER NOT NULL)",
    *_APPEND_ONLY,
    *_WORDS,
)
_REFERRED_TO = (
    "SELECT env FROM event WHERE env IS NOT NULL "
    "UNION ALL SELECT command FROM event WHERE command IS NOT NULL "
    "UNION ALL SELECT command FROM job WHERE command IS NOT NULL"
)


class JournalEntry(NamedTuple):
    """An event and its number; the first event of a journal has number 1."""

    sequence: int
    event: AnyEvent


class Journal:
    """The journal of the one service of a directory; used by one thread at a time.

    Parameters
    ----------
    directory : str or path
        Created for its owner only if it does not exist. It is locked until ``close`` or the end
        of the process.
    accept_loss : bool
        Open the journal even if events that were on the disk are missing.

    Raises
    ------
    InputError
        If other users could have prepared the directory (``require_own``).
    JournalError
        If another service has locked it, or the file is damaged, no journal, or not writable, or
        events are missing. Neither the file nor its log is changed then.
    """

    def __init__(self, directory: FilePath, accept_loss: bool = False) -> None:
        self._file = _file(directory)
        self._lock = JournalLock(Path(directory))
        try:
            with self._file.faults("opened"):
                self._connection, self._sequence = _opened_whole(
                    self._file, 0 if accept_loss else self._lock.synced
                )
        except BaseException:
            self._lock.close()
            raise
        if self._sequence < self._lock.synced:
            self._lock.note_synced(self._sequence)
        self._checkpointed = 0
        # Events of an earlier service may not be on the disk yet.
        self._synced = 0
        self._stored: set[int] = set()
        self._settled: set[int] = set()

    @property
    def sequence(self) -> int:
        """The number of the last event; 0 in an empty journal."""
        return self._sequence

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Add events, all or none, and return the number of the last one.

        They survive this process immediately, and a crash of the machine once ``sync`` has
        returned.

        Raises
        ------
        JournalError
            If it fails (the disk is full, say). Nothing is appended, and a later append may
            succeed.
        """
        digests = Digests()
        words = chain.from_iterable(map(_words_of, events))
        rows = (
            _row(number, event, digests) for number, event in enumerate(events, self._sequence + 1)
        )
        with self._file.faults("written"), transaction(self._connection):
            _store_words(self._connection, digests.new(words))
            self._connection.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", rows)
        self._sequence += len(events)
        return self._sequence

    def sync(self) -> None:
        """Wait until all events are on the disk.

        Raises
        ------
        JournalError
            If they cannot be written.
        """
        if self._synced == self._sequence:
            return
        # If there is no log, SQLite has moved all of it into the journal's file.
        with self._file.faults("written"), suppress(FileNotFoundError):
            descriptor = os.open(self._file.log, os.O_RDWR | os.O_CLOEXEC)
            try:
                # A file that keeps its length needs no transaction of the file system, which would
                # also wait for the changes of others. SQLite stops reading at the zeros and later
                # overwrites them.
                size = os.fstat(descriptor).st_size
                with suppress(OSError):
                    os.pwrite(descriptor, bytes(max(0, _LOG_BYTES - size)), size)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._synced = self._sequence
        self._lock.note_synced(self._sequence)

    def replay(self) -> StateMachine:
        """Return the state machine as it was after the last event.

        Raises
        ------
        JournalError
            When the file is damaged.
        """
        # All of these many objects stay. Looking for garbage among them would make this take two
        # thirds longer, and cost time repeatedly while the service runs.
        gc.disable()
        try:
            with self._file.faults("read"):
                known = KnownWords(self._connection)
                stored = _from_checkpoint(self._connection, known)
                if stored is not None:
                    self._checkpointed = stored.sequence
                    self._stored = {job.sequence for job in stored.jobs.values()}
                    self._settled = {
                        job.sequence for job in stored.jobs.values() if job.state in OVER
                    }
                machine = _replayed(self._connection, self._file, stored, known)
        finally:
            gc.freeze()
            gc.enable()
        if machine.sequence != self._sequence:
            rule = f"is damaged: {machine.sequence} of {self._sequence} events are left"
            raise self._file.error(rule)
        return machine

    def checkpoint(self, machine: StateMachine, every: int = EVENTS_A_CHECKPOINT) -> bool:
        """Store the state if ``every`` events came since the last time; return True if stored.

        Raises
        ------
        JournalError
            If it cannot be written. The journal is unharmed, and the next attempt is after
            ``every`` more events.
        """
        if machine.sequence - self._checkpointed < every:
            return False
        self._checkpointed = machine.sequence
        chosen = [job for job in machine.jobs.values() if job.sequence not in self._settled]
        digests = Digests()
        rows = (_job_row(job, digests) for job in chosen)
        kept = {job.sequence for job in machine.jobs.values()}
        # They include jobs that ran at the last checkpoint, and have ended and been forgotten.
        forgotten = self._stored - kept
        text = checkpoint.state_text(machine)
        known = (machine.sequence, len(machine.jobs), text)
        state = (checkpoint.VERSION, *known, _sum(machine.sequence, text))
        with self._file.faults("written"), transaction(self._connection):
            self._connection.execute("DELETE FROM brain")
            if not self._stored:
                self._connection.execute("DELETE FROM job")
            self._connection.executemany(
                "DELETE FROM job WHERE sequence = ?", [(number,) for number in forgotten]
            )
            self._connection.execute("INSERT INTO brain VALUES (?, ?, ?, ?, ?)", state)
            _store_words(self._connection, digests.new(_long(job.spec) for job in chosen))
            self._connection.executemany("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?, ?)", rows)
        self._stored = kept
        # Jobs that are over never change again.
        self._settled &= kept
        self._settled.update(job.sequence for job in chosen if job.state in OVER)
        return True

    def compact(self, machine: StateMachine, before_s: float, most_bytes: int = MOST_BYTES) -> bool:
        """Remove events before a moment, and the environments of all jobs that are over.

        A checkpoint holds the state that they led to. Submissions stay until their jobs are over.
        The file shrinks once less than half of it is in use. If more than ``most_bytes`` are in
        use, the oldest events are removed regardless of ``before_s``.

        Parameters
        ----------
        machine : StateMachine
            The state after the last event.
        before_s : float
            The moment, on the clock of the events.
        most_bytes : int
            Limit on the bytes in use.

        Returns
        -------
        bool
            True if there is more to remove, by another call.

        Raises
        ------
        JournalError
            If it cannot be written; the journal is unharmed.
        """
        self.checkpoint(machine, every=1)
        with self._file.faults("written"):
            with transaction(self._connection):
                more = _compact(self._connection, before_s)
            if _bytes_in_use(self._connection) > most_bytes:
                with transaction(self._connection):
                    more = _compact(self._connection, math.inf)
                more = more and _bytes_in_use(self._connection) > most_bytes
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (unused,) = self._connection.execute("PRAGMA freelist_count").fetchone()
            if unused > pages / 2:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return more

    def close(self) -> None:
        """Release the journal for another service."""
        self._connection.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_state_machine(directory: FilePath) -> StateMachine:
    """Return the state machine of a journal without changing it; a service may be writing it.

    Raises
    ------
    JournalError
        If there is none, it is damaged, or it may not be read.
    """
    file = _file(directory)
    with file.faults("read"), closing(_for_reading(file)) as connection:
        connection.execute("BEGIN")
        known = KnownWords(connection)
        return _replayed(connection, file, _from_checkpoint(connection, known), known)


def read_events(directory: FilePath, after: int = 0) -> Iterator[JournalEntry]:
    """Yield the remaining events with a number above ``after``; change nothing.

    Only the submission of a job has its environment.

    Raises
    ------
    JournalError
        As in `read_state_machine`.
    """
    file = _file(directory)
    with file.faults("read"), closing(_for_reading(file)) as connection:
        yield from _entries(connection, file, after, KnownWords(connection))


# From a file to a state machine.


def _replayed(
    connection: sqlite3.Connection, file: SqliteFile, stored: StateMachine | None, known: KnownWords
) -> StateMachine:
    """Return the state machine after all events, starting from a checkpoint's if there is one."""
    machine = stored or StateMachine()
    if machine.sequence < _base(connection):
        raise file.error("is damaged: its checkpoint cannot be read")
    for entry in _entries(connection, file, machine.sequence, known):
        # It was also refused when it happened.
        with suppress(TransitionError):
            machine.apply(entry.event)
    return machine


def _from_checkpoint(connection: sqlite3.Connection, known: KnownWords) -> StateMachine | None:
    """Return the state machine of the last checkpoint; None if that cannot be used."""
    found = connection.execute("SELECT version, sequence, jobs, text, sum FROM brain").fetchone()
    if found is None:
        return None
    version, sequence, count, text, text_sum = found
    if version != checkpoint.VERSION or _sum(sequence, text) != text_sum:
        return None
    try:
        machine = checkpoint.restored(text, _stored_jobs(connection, known))
    except ValueError:
        return None
    whole = (machine.sequence, len(machine.jobs)) == (sequence, count)
    return machine if whole and sequence <= _last(connection) else None


def _stored_jobs(
    connection: sqlite3.Connection, known: KnownWords
) -> Iterator[checkpoint.StoredJob]:
    refers = _refers_to_words(connection)
    rows = connection.execute(
        "SELECT job.sequence, over, job.text, job.sum, event.text, event.sum, "
        f"{'event.env, job.command' if refers else 'NULL, NULL'} FROM job "
        "LEFT JOIN event ON event.sequence = job.sequence AND NOT over ORDER BY job.sequence"
    )
    for sequence, over, text, text_sum, submitted, submitted_sum, env, command in rows:
        if _sum(sequence, text) != text_sum:
            raise ValueError("a job is damaged")
        if over:
            yield checkpoint.StoredJob(text, None)
        elif _sum(sequence, submitted) == submitted_sum:
            spec = Submitted.model_validate_json(submitted).spec.with_words(**known.named(env=env))
            yield checkpoint.StoredJob(text, spec, known.named(command=command).get("command"))
        else:
            raise ValueError("an event is damaged")


def _entries(
    connection: sqlite3.Connection, file: SqliteFile, after: int, known: KnownWords
) -> Iterator[JournalEntry]:
    words = "env, command" if _refers_to_words(connection) else "NULL, NULL"
    rows = connection.execute(
        f"SELECT sequence, text, sum, {words} FROM event WHERE sequence > ? ORDER BY sequence",
        (after,),
    )
    wanted, base = after + 1, _base(connection)
    for sequence, text, text_sum, env, command in rows:
        if wanted <= base:
            # A compaction may have removed some of these.
            wanted = min(sequence, base + 1)
        if sequence != wanted or _sum(sequence, text) != text_sum:
            raise file.error(f"is damaged at event {wanted}")
        try:
            event = ANY_EVENT.validate_json(text)
        except ValueError:
            rule = f"event {sequence} cannot be read (a newer Dovetail wrote it)"
            raise file.error(rule) from None
        try:
            whole = _with_words(event, env, command, known)
        except ValueError as error:
            raise file.error(f"is damaged at event {sequence}: {error}") from None
        yield JournalEntry(sequence, whole)
        wanted += 1


# Words, stored separately from the events and jobs that have them.


def _refers_to_words(connection: sqlite3.Connection) -> bool:
    return version_of(connection) >= SCHEMA_VERSION


def _store_words(connection: sqlite3.Connection, words: Iterable[tuple[str, str]]) -> None:
    connection.executemany("INSERT OR IGNORE INTO words VALUES (?, ?)", words)


def _words_of(event: AnyEvent) -> tuple[Words | None, Words | None]:
    """Return the environment and the command that the text of an event leaves out, if any."""
    match event:
        case Submitted(spec=spec):
            return spec.env, _long(spec)
        case Edited(spec=spec) | Placed(run=Run(spec=spec)):
            return None, _long(spec)
    return None, None


def _long(spec: JobSpec) -> Words | None:
    """Return the command if it is too long for the text of an event, else None."""
    return None if brief(spec.command) is spec.command else spec.command


def _shortened(event: AnyEvent) -> AnyEvent:
    """Return an event with its command shortened if that is long."""
    match event:
        case Submitted(spec=spec) | Edited(spec=spec) if _long(spec):
            return event.model_copy(update={"spec": spec.with_words(command=brief(spec.command))})
        case Placed(run=run) if _long(run.spec):
            short = run.spec.with_words(command=brief(run.spec.command))
            return event.model_copy(update={"run": run.model_copy(update={"spec": short})})
    return event


def _with_words(
    event: AnyEvent, env: str | None, command: str | None, known: KnownWords
) -> AnyEvent:
    """Return an event with the words that its digests name.

    Raises
    ------
    ValueError
        If the journal does not have them.
    """
    found = known.named(env=env, command=command)
    match event:
        case Submitted(spec=spec) | Edited(spec=spec) if found:
            return event.model_copy(update={"spec": spec.with_words(**found)})
        case Placed(run=run) if found:
            spec = run.spec.with_words(**found)
            return event.model_copy(update={"run": run.model_copy(update={"spec": spec})})
    return event


def _last(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM event").fetchone()
    return max(int(last), _base(connection))


def _base(connection: sqlite3.Connection) -> int:
    """Return the number of the last event that a compaction covered; 0 if there was none."""
    if version_of(connection) == 1:
        return 0
    (base,) = connection.execute("SELECT sequence FROM base").fetchone()
    return int(base)


def _bytes_in_use(connection: sqlite3.Connection) -> int:
    pragmas = ("page_count", "freelist_count", "page_size")
    pages, unused, size = (connection.execute(f"PRAGMA {one}").fetchone()[0] for one in pragmas)
    return int((pages - unused) * size)


def _compact(connection: sqlite3.Connection, before_s: float) -> bool:
    """Remove the oldest events before a moment; return whether there are more of them."""
    # The last checkpoint may be older than the state machine: a full disk refuses checkpoints.
    (base,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM brain").fetchone()
    for change in ("UPDATE", "DELETE"):
        connection.execute(f"DROP TRIGGER event_{change}")
    connection.execute("UPDATE base SET sequence = ?", (base,))
    last, more = _last_before(connection, base, before_s)
    connection.execute(f"DELETE FROM event WHERE sequence <= ? AND NOT {_LIVING}", (last,))
    connection.executemany(
        "UPDATE event SET text = ?2, sum = ?3 WHERE sequence = ?1",
        [_without_environment(*row) for row in _ended_with_environment(connection)],
    )
    connection.execute(
        "UPDATE event SET env = NULL, command = NULL "
        f"WHERE (env IS NOT NULL OR command IS NOT NULL) AND sequence <= ? AND NOT {_LIVING}",
        (base,),
    )
    connection.execute(f"DELETE FROM words WHERE digest NOT IN ({_REFERRED_TO})")
    for statement in _APPEND_ONLY:
        connection.execute(statement)
    return more


def _last_before(connection: sqlite3.Connection, base: int, before_s: float) -> tuple[int, bool]:
    """Return the last event to remove, and whether there may be more behind it."""
    last = count = 0
    rows = connection.execute(
        f"SELECT sequence, text FROM event WHERE sequence <= ? AND NOT {_LIVING} "
        "ORDER BY sequence LIMIT ?",
        (base, _MOST_DROPPED),
    )
    for sequence, text in rows:
        if from_json(text)["at_s"] >= before_s:
            return last, False
        last, count = sequence, count + 1
    return last, count == _MOST_DROPPED


def _ended_with_environment(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Return events from before version 3 that have the environments of jobs that are over."""
    return connection.execute(
        "SELECT event.sequence, event.text FROM job JOIN event ON event.sequence = job.sequence "
        'WHERE over AND instr(event.text, \'"env":{"\')'
    ).fetchall()


def _without_environment(sequence: int, text: str) -> tuple[int, str, int]:
    kept = _text(Submitted.model_validate_json(text))
    return sequence, kept, _sum(sequence, kept)


def _row(
    number: int, event: AnyEvent, digests: Digests
) -> tuple[int, str, int, str | None, str | None]:
    text = _text(event)
    env, command = map(digests.of, _words_of(event))
    return number, text, _sum(number, text), env, command


def _text(event: AnyEvent) -> str:
    return _shortened(event).model_dump_json(exclude=_ELSEWHERE.get(type(event)))


def _job_row(job: LiveJob, digests: Digests) -> tuple[int, bool, str, int, str | None]:
    text = checkpoint.job_text(job)
    command = digests.of(_long(job.spec))
    return job.sequence, job.state in OVER, text, _sum(job.sequence, text), command


def _sum(sequence: int, text: str) -> int:
    return zlib.crc32(f"{sequence} {text}".encode())


# The file.


def _file(directory: FilePath) -> SqliteFile:
    path = Path(directory) / JOURNAL
    return SqliteFile(
        path,
        "a journal",
        APPLICATION_ID,
        SCHEMA_VERSION,
        _WAIT_S,
        lambda rule: JournalError(f"{source_name(path)}: {rule}"),
    )


def _opened_whole(file: SqliteFile, synced: int) -> tuple[sqlite3.Connection, int]:
    """Open or create the file unless it lacks events; return it and its last event's number."""
    if synced:
        last = _last_readable(file)
        if last is not None:
            _refuse_loss(file, last, synced)
    connection, last = _for_writing(file)
    try:
        _refuse_loss(file, last, synced)
    except JournalError:
        connection.close()
        raise
    return connection, last


def _for_writing(file: SqliteFile) -> tuple[sqlite3.Connection, int]:
    """Open or create the file; return the connection and the number of the last event."""
    file.refuse_cut_short()
    # It has environments of jobs: no other user may read it or its log.
    os.close(os.open(file.path, os.O_RDWR | os.O_CREAT, 0o600))
    _sync_folder(file.path.parent)
    try:
        return _opened(file)
    except sqlite3.OperationalError:
        # No space for the memory that readers share: there can be none until the next start.
        if not is_full(file.path.parent):
            raise
        return _opened(file, alone=True)


def _opened(file: SqliteFile, alone: bool = False) -> tuple[sqlite3.Connection, int]:
    connection = _connected(file, "rw")
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        file.use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        if is_empty(connection):
            with transaction(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
                file.mark(connection)
        if file.found_version(connection) < SCHEMA_VERSION:
            with transaction(connection):
                for statement in _WORDS:
                    connection.execute(statement)
                file.mark(connection)
        return connection, _last(connection)
    except BaseException:
        connection.close()
        raise


def _last_readable(file: SqliteFile) -> int | None:
    """Return the number of the last event that a reader finds; None on a full disk.

    SQLite removes the log when a journal is opened for writing, along with damaged frames that may
    be the only trace of some events.
    """
    file.refuse_cut_short()
    if not file.path.exists():
        return 0
    try:
        with closing(_connected(file, "ro")) as connection:
            if is_empty(connection):
                return 0
            file.found_version(connection)
            return _last(connection)
    except sqlite3.OperationalError:
        if is_full(file.path.parent):
            return None
        raise


def _refuse_loss(file: SqliteFile, last: int, synced: int) -> None:
    """Refuse a journal with fewer events than were on the disk."""
    if last < synced:
        count = synced - last
        lost = f"{count} event{'s' if count > 1 else ''} that were on disk"
        rule = f"is damaged or missing: it ends at event {last} and lacks {lost}"
        raise file.error(f"{rule} (to continue without: --accept-loss)")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _for_reading(file: SqliteFile) -> sqlite3.Connection:
    if not file.path.exists():
        raise file.error("cannot be read: no such file or directory")
    connection = _connected(file, "ro")
    try:
        file.found_version(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(file: SqliteFile, mode: str) -> sqlite3.Connection:
    made = file.connected(mode)
    # Damaged text is left to the check sums, which say where it is.
    made.text_factory = partial(str, encoding="utf-8", errors="replace")
    return made
