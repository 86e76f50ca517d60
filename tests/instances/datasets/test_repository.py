"""The repository is append-only; appends are atomic, and confirmed ones are durable."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings

from dovetail.instances._record import IDLE
from dovetail.instances.datasets import (
    DataSet,
    EvidenceRecord,
    Measurement,
    Repository,
    RepositoryRecord,
    SoloProfile,
    read_dataset,
    write_dataset,
)
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.predictors.fitted.rows import measured_pairs
from tests.instances.datasets.odd import data_sets

A = SoloProfile(workload="a", gpu_model="V100", metrics={"ipc": 1.5}, metrics_variance={"ipc": 0.1})
PAIR = Measurement(workloads=("a", "b"), gpu_model="V100", share=(40, None), slowdown=(1.1, 1.5))


def changed(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def error_of(action):
    with pytest.raises(InputError) as error:
        action()
    assert "\n" not in str(error.value)
    return str(error.value)


@settings(max_examples=12)
@given(first=data_sets, second=data_sets)
def test_what_is_appended_is_read_back_exactly(first, second):
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder, "odd.db"))
        for data in (first, second):
            repository.append(data.profiles, data.measurements)
        assert repository.data_set() == first.merged(second)


def test_a_repository_made_before_tail_latencies_is_read_and_appended_to(tmp_path):
    repository = Repository(tmp_path / "old.db")
    repository.append([A], [PAIR])
    changed(repository.path, "DROP TABLE tail", "DROP TABLE latency")
    assert repository.data_set().measurements == (PAIR,)
    with_tail, with_latency = PAIR.replace(p99=(None, 1.8)), A.replace(latency_p99_s=0.02)
    repository.append([with_latency], [with_tail])
    assert repository.data_set().profiles == (A, with_latency)
    assert repository.data_set().measurements == (PAIR, with_tail)


def test_modes_are_kept_apart_and_lie_in_a_table_that_old_repositories_lack(tmp_path):
    turns = PAIR.replace(share=None, slowdown=(1.9, 2.1), mode="time_sliced")
    repository = Repository(tmp_path / "r.db")
    repository.append([A], [PAIR])
    changed(repository.path, "DROP TABLE mode")
    assert repository.data_set().measurements == (PAIR,)
    repository.append([], [turns])
    data = repository.data_set()
    assert data.measurements == (PAIR, turns)
    for parquet in (False, True) if find_spec("pyarrow") else (False,):
        write_dataset(data, tmp_path / str(parquet), parquet)
        assert read_dataset(tmp_path / str(parquet)).measurements == data.measurements
    for mode, one in (("mps", PAIR), ("time_sliced", turns)):
        made = data.instance(PAIR.gpu_model, 1, memory_mib=1e6, sharing=mode)
        assert made.cluster.sharing == mode
        assert [(e.slowdown, e.mode) for e in made.slowdowns] == [(one.slowdown, mode)]


def test_a_pair_at_idle_is_read_back_and_makes_an_instance(tmp_path):
    isolated = PAIR.replace(share=(None, IDLE))
    repository = Repository(tmp_path / "r.db")
    repository.append([A], [isolated])
    data = repository.data_set()
    assert data.measurements == (isolated,)
    for parquet in (False, True) if find_spec("pyarrow") else (False,):
        write_dataset(data, tmp_path / str(parquet), parquet)
        assert read_dataset(tmp_path / str(parquet)).measurements == (isolated,)
    made = data.instance(PAIR.gpu_model, 1, memory_mib=1e6)
    assert made.cluster.shares == (IDLE,)
    assert made.workloads[PAIR.workloads[1]].isolation == "blocks"
    assert measured_pairs(data) == []


def test_conditions_are_kept_and_lie_in_a_table_that_old_repositories_lack(tmp_path):
    repository = Repository(tmp_path / "r.db")
    repository.append([A])
    with closing(sqlite3.connect(repository.path)) as connection:
        connection.executescript("DROP TABLE condition; DROP TABLE evidence")
    assert repository.data_set().profiles == (A,)
    assert repository.evidence("split") == ()
    known = {"driver": "580.1", "library": "130100"}
    later, pair = A.replace(**known), PAIR.replace(**known)
    repository.append([later], [pair])
    assert repository.data_set().profiles == (A, later)
    assert repository.data_set().measurements == (pair,)


def test_evidence_is_kept_with_the_records(tmp_path):
    repository = Repository(tmp_path / "r.db")
    first = EvidenceRecord("split", "H200", "580.1", "130100", "2026-11-22", {"share": 50})
    second = EvidenceRecord("result", "H200", None, None, "2026-11-23", {"note": "ü"})
    repository.append([A])
    repository.record([first])
    assert repository.append([A]) == 2
    repository.record([second, first])
    assert repository.evidence("split", "result") == (first, second, first)
    assert repository.evidence("result") == (second,)
    assert repository.data_set().profiles == (A, A)
    with closing(sqlite3.connect(repository.path)) as connection, pytest.raises(sqlite3.Error):
        connection.execute("DELETE FROM evidence")
    with pytest.raises(InputError, match="cannot be read"):
        Repository(tmp_path / "none.db").evidence("split")


def test_records_are_numbered_and_timed(tmp_path):
    repository = Repository(tmp_path / "r.db")
    before = datetime.now(UTC)
    assert repository.append([A, A], [PAIR]) == 3
    assert repository.append() == 3
    assert repository.append([A]) == 4
    records = repository.since(0)
    assert [(r.sequence, r.record) for r in records] == [(1, A), (2, A), (3, PAIR), (4, A)]
    times = [datetime.fromisoformat(r.recorded) for r in records]
    assert before <= times[0] == times[2] <= times[3] <= datetime.now(UTC)
    assert repository.since(3) == (RepositoryRecord(4, records[3].recorded, A),)
    assert repository.since(4) == ()


def test_it_is_read_as_a_data_set_and_the_newest_profile_counts(tmp_path):
    repository = Repository(tmp_path / "mine.SQLITE")
    for power in (100.0, 200.0):
        repository.append([A.replace(power_w=power)])
    data = read_dataset(tmp_path / "mine.SQLITE")
    assert data == DataSet(name="mine", profiles=tuple(r.record for r in repository.since(0)))
    assert data.workloads("V100")["a"].power_w == 200


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE profile SET workload = 'b'",
        "DELETE FROM record",
        "DELETE FROM member WHERE position = 1",
        "UPDATE metric SET mean = 2",
        "INSERT OR REPLACE INTO record VALUES (1, 'now')",
        "INSERT OR REPLACE INTO member VALUES (2, 0, 'b', NULL, 9.0)",
        "INSERT INTO profile (sequence, workload, gpu_model, workers) VALUES (9, 'w', 'g', 1)",
        "INSERT INTO member VALUES (2, 9, 'b', 'half', 9.0)",
        "INSERT INTO measurement VALUES (1, 'g', 'perhaps', NULL, NULL, NULL)",
    ],
)
def test_records_cannot_be_changed_or_deleted(tmp_path, statement):
    repository = Repository(tmp_path / "r.db")
    repository.append([A], [PAIR])
    kept = repository.since(0)
    with pytest.raises(sqlite3.IntegrityError):
        changed(tmp_path / "r.db", "PRAGMA foreign_keys = ON", statement)
    assert repository.since(0) == kept


def test_an_append_that_breaks_leaves_nothing(tmp_path):
    repository = Repository(tmp_path / "r.db")
    repository.append([A])

    broken = SoloProfile.model_construct(workload="x", gpu_model=None)
    message = error_of(lambda: repository.append([A, A, broken]))
    assert "cannot be written: NOT NULL constraint failed: profile.gpu_model" in message
    assert [found.record for found in repository.since(0)] == [A]


# --- files that are no repository


def test_files_that_are_no_repository_are_reported(tmp_path):
    path = tmp_path / "r.db"
    repository = Repository(path)
    assert error_of(repository.data_set) == f"{path}: cannot be read: no such file or directory"
    assert not path.exists()
    for content in (b"workload,gpu_model\n" * 100, b"x"):
        path.write_bytes(content)
        for action in (repository.data_set, lambda: repository.append([A])):
            assert error_of(action) == f"{path}: must be a profile repository, got another file"
        assert path.read_bytes() == content
    path.unlink()
    changed(path, "CREATE TABLE mine (x)")
    for action in (repository.data_set, lambda: repository.append([A])):
        assert error_of(action) == f"{path}: must be a profile repository, got another database"
    assert error_of(Repository(tmp_path).data_set) == (
        f"{tmp_path}: must be a profile repository, got a folder"
    )
    path = tmp_path / "none" / "r.db"
    assert error_of(lambda: Repository(path).append([A])) == (
        f"{path}: cannot be written: unable to open database file"
    )


def test_an_empty_file_becomes_a_repository(tmp_path):
    # What a writer leaves that is killed before its first commit.
    path = tmp_path / "r.db"
    path.touch()
    assert Repository(path).since(0) == ()
    assert Repository(path).append([A]) == 1


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    changed(path, "PRAGMA user_version = 2")
    message = f"{path}: must have schema version 1, got 2 (a newer Dovetail wrote it)"
    assert error_of(Repository(path).data_set) == message
    assert error_of(lambda: Repository(path).append([A])) == message


def test_a_database_with_rows_without_end_is_refused(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    changed(
        path,
        "PRAGMA foreign_keys = OFF",
        "ALTER TABLE record RENAME TO before",
        "CREATE VIEW record AS WITH RECURSIVE r (sequence, recorded) AS "
        "(SELECT 1, 'now' UNION ALL SELECT sequence + 1, recorded FROM r) SELECT * FROM r",
    )
    message = f"{path}: must be a profile repository, got another database"
    assert error_of(Repository(path).data_set) == message


def test_a_damaged_file_is_reported(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A] * 500)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    message = error_of(Repository(path).data_set)
    assert message.startswith(f"{path}: is damaged: ")


def test_a_damaged_schema_is_reported(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"\n        sequence INTEGER", b"\n\xa4       sequence INTEGER")
    )
    assert error_of(Repository(path).data_set) == f"{path}: is damaged: a text in it is not UTF-8"


def test_a_record_that_breaks_a_rule_is_reported_by_its_number(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    changed(
        path,
        "INSERT INTO record VALUES (2, 'now')",
        "INSERT INTO measurement VALUES (2, 'V100', 'ok', NULL, NULL, NULL)",
        "INSERT INTO member VALUES (2, 0, 'a', NULL, 1.0), (2, 1, 'b', NULL, 0.0)",
    )
    message = error_of(Repository(path).data_set)
    assert message == f"{path}: record 2: slowdown[1]: must be >= 0.001, got 0.0"
    changed(path, "INSERT INTO record VALUES (3, 'now')")
    Repository(path).append([A])
    path2 = tmp_path / "r2.db"
    Repository(path2).append([A])
    changed(path2, "INSERT INTO record VALUES (2, 'now')")
    assert error_of(Repository(path2).data_set) == (
        f"{path2}: record 2: workload: this field is required"
    )
    changed(path2, "INSERT INTO measurement VALUES (2, 'V100', 'ok', NULL, NULL, NULL)")
    assert error_of(Repository(path2).data_set).startswith(
        f"{path2}: record 2: workloads: must have 2"
    )


def test_reading_where_nothing_may_be_written_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert Repository(path).data_set().profiles == (A,)
    assert os.listdir(tmp_path) == ["r.db"]


def test_an_old_sqlite_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(UnsupportedError, match=r"a repository needs SQLite 3.37 or later, this"):
        Repository(tmp_path / "r.db").append([A])


def test_another_writer_is_waited_for_and_then_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("dovetail.instances.datasets.repository._WAIT_S", 0.1)
    path = tmp_path / "r.db"
    repository = Repository(path)
    repository.append([A])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        message = f"{path}: cannot be written: others have been writing for 0.1 s"
        assert error_of(lambda: repository.append([A])) == message
        assert len(repository.since(0)) == 1  # readers do not wait
        other.execute("ROLLBACK")
    assert repository.append([A]) == 2


def test_many_threads_may_make_a_repository_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        for k in range(40):
            repository = Repository(tmp_path / f"{k}.db")
            made = pool.map(lambda record, made=repository: made.append([record]), [A] * 4)
            assert sorted(made) == [1, 2, 3, 4]


def test_threads_append_and_read_at_once(tmp_path):
    repository = Repository(tmp_path / "r.db")

    def work(_):
        last = repository.append([A] * 3, [PAIR])
        assert repository.since(last - 1)[0].record == PAIR
        return last

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(work, range(20))) == list(range(4, 81, 4))
    kinds = [type(found.record) for found in repository.since(0)]
    assert kinds == [SoloProfile, SoloProfile, SoloProfile, Measurement] * 20


# --- several processes, and processes that are killed

WRITER = """
import sys
from dovetail.instances.datasets import Measurement, Repository, SoloProfile

repository, name, times = Repository(sys.argv[1]), sys.argv[2], int(sys.argv[3])
pair = Measurement(workloads=(name, name), gpu_model="g", slowdown=(1.0, 2.0))
for k in range(times):
    profiles = [SoloProfile(workload=name, gpu_model="g", batch_size=k + 1)] * 3
    print(repository.append(profiles, [pair] * 2), flush=True)
"""
"""Appends five records a time and prints each confirmed sequence number."""

LARGE = """
import sys
from dovetail.instances.datasets import Repository, SoloProfile

profile = SoloProfile(workload="large", gpu_model="g", metrics={"ipc": 1.0})
Repository(sys.argv[1]).append([profile] * 400_000)
print("confirmed", flush=True)
"""


def started(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_writers_at_once_lose_nothing_and_mix_nothing(tmp_path):
    path = tmp_path / "r.db"
    writers = [started(WRITER, path, f"w{k}", 8) for k in range(3)]
    first = int(writers[0].stdout.readline())  # the file is there once something is confirmed
    while any(writer.poll() is None for writer in writers):
        _whole_appends(path)
    answers = [writer.communicate()[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 3
    confirmed = {first, *(int(line) for lines in answers for line in lines)}
    assert confirmed == set(range(5, 121, 5))
    assert _whole_appends(path) == 24


def _whole_appends(path):
    """Return the number of appends; each must be there whole."""
    records = [found.record for found in Repository(path).since(0)]
    groups = [records[k : k + 5] for k in range(0, len(records), 5)]
    for group in groups:
        assert [type(record) for record in group] == [SoloProfile] * 3 + [Measurement] * 2
        names = {record.workload for record in group[:3]} | {*group[3].workloads}
        assert len(names) == 1
    return len(groups)


def test_a_killed_writer_leaves_all_that_it_confirmed(tmp_path):
    path = tmp_path / "r.db"
    for k in range(3):
        writer = started(WRITER, path, "w", 10_000)
        seen = [int(writer.stdout.readline()) for _ in range(5 + 3 * k)]
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split("\n")[:-1]
        confirmed = max([*seen, *map(int, rest)])
        # One append more may be there: committed, and killed before it could say so.
        assert _whole_appends(path) - confirmed // 5 in (0, 1)
    assert [r.sequence for r in Repository(path).since(0)][:confirmed] == [*range(1, confirmed + 1)]


FIRST = """
import os, signal, sqlite3, sys
from dovetail.instances.datasets import Repository, SoloProfile

def connect(*arguments, **options):
    made = sqlite3_connect(*arguments, **options)
    # A table that does not fit into the cache is written, log first, before it is committed.
    made.execute("PRAGMA cache_size = 1")
    made.set_trace_callback(lambda statement: statement == "COMMIT" and die())
    return made

def die():
    os.kill(os.getpid(), signal.SIGKILL)

sqlite3_connect, sqlite3.connect = sqlite3.connect, connect
Repository(sys.argv[1]).append([SoloProfile(workload="a", gpu_model="g")])
"""
"""Is killed while it makes the file."""


@pytest.fixture
def half_made(tmp_path):
    path = tmp_path / "r.db"
    writer = started(FIRST, path)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    assert os.path.getsize(f"{path}-journal") > 512, "what was written is to be rolled back"
    return path


def test_a_reader_completes_a_file_whose_writer_was_killed(half_made):
    assert Repository(half_made).since(0) == ()
    assert Repository(half_made).append([A]) == 1
    assert Repository(half_made).data_set().profiles == (A,)


def test_a_reader_that_cannot_complete_the_file_reports_it(half_made, monkeypatch):
    monkeypatch.setattr(Repository, "_read_mode", lambda self: "ro")
    assert error_of(Repository(half_made).data_set) == (
        f"{half_made}: cannot be read: a writer was killed; open it first as a user who may write"
    )


def test_a_writer_killed_in_the_middle_leaves_nothing_of_it(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A], [PAIR])
    kept = Repository(path).since(0)
    writer = started(LARGE, path)
    log = Path(f"{path}-wal")
    while not (log.exists() and log.stat().st_size > 2**20):
        assert writer.poll() is None, "it must still be writing"
        time.sleep(0.005)
    assert Repository(path).since(0) == kept  # readers do not see what is not committed
    writer.send_signal(signal.SIGKILL)
    assert writer.communicate()[0] == ""
    assert Repository(path).since(0) == kept
    assert Repository(path).append([A]) == 3
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
