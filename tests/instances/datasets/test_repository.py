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
from tests.instances.datasets.first_schema import EVIDENCE, FULL, MEASUREMENTS, PROFILES, SQL
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


def test_modes_are_kept_apart(tmp_path):
    turns = PAIR.replace(share=None, slowdown=(1.9, 2.1), mode="time_sliced")
    repository = Repository(tmp_path / "r.db")
    repository.append([A], [PAIR, turns])
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


def test_evidence_is_kept_with_the_records(tmp_path):
    repository = Repository(tmp_path / "r.db")
    first = EvidenceRecord("split", "H200", "580.1", "130100", "2026-11-22", {"share": 50})
    second = EvidenceRecord("result", "H200", None, None, "2026-11-23", {"note": "ü"})
    repository.append([A])
    repository.record([first])
    assert repository.append([A]) == 3
    repository.record([second, first])
    assert repository.evidence("split", "result") == (first, second, first)
    assert repository.evidence("result") == (second,)
    assert repository.data_set().profiles == (A, A)
    with closing(sqlite3.connect(repository.path)) as connection, pytest.raises(sqlite3.Error):
        connection.execute("DELETE FROM record WHERE kind = 'split'")
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
        "UPDATE record SET gpu_model = 'b'",
        "DELETE FROM record",
        "DELETE FROM record WHERE sequence = 2",
        "INSERT OR REPLACE INTO record VALUES (1, 'now', 'profile', 'g', NULL, NULL, NULL, '{}')",
        "INSERT INTO record VALUES (0, 'now', 'profile', 'g', NULL, NULL, NULL, '{}')",
        "INSERT INTO record VALUES (9, 'now', 'profile', NULL, NULL, NULL, NULL, '{}')",
        "INSERT INTO record VALUES (9, 'now', 'profile', 'g', NULL, NULL, NULL, x'00')",
    ],
)
def test_records_cannot_be_changed_or_deleted(tmp_path, statement):
    repository = Repository(tmp_path / "r.db")
    repository.append([A], [PAIR])
    kept = repository.since(0)
    with pytest.raises(sqlite3.IntegrityError):
        changed(tmp_path / "r.db", statement)
    assert repository.since(0) == kept


def test_an_append_that_breaks_leaves_nothing(tmp_path):
    repository = Repository(tmp_path / "r.db")
    repository.append([A])

    broken = SoloProfile.model_construct(workload="x", gpu_model=None)
    message = error_of(lambda: repository.append([A, A, broken]))
    assert "cannot be written: NOT NULL constraint failed: record.gpu_model" in message
    assert [found.record for found in repository.since(0)] == [A]


# --- files that are no repository


def test_files_that_are_no_repository_are_reported(tmp_path):
    path = tmp_path / "r.db"
    repository = Repository(path)
    assert error_of(repository.data_set) == f"{path}: cannot be read: no such file or directory"
    assert not path.exists()
    for content, rule in (
        (b"workload,gpu_model\n" * 100, "must be a profile repository, got another file"),
        (b"x", "is damaged: it was cut short, or is not a profile repository"),
    ):
        path.write_bytes(content)
        for action in (repository.data_set, lambda: repository.append([A])):
            assert error_of(action) == f"{path}: {rule}"
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
    changed(path, "PRAGMA user_version = 3")
    rule = "must have a schema version from 1 to 2, got 3 (a newer Dovetail wrote it)"
    message = f"{path}: {rule}"
    assert error_of(Repository(path).data_set) == message
    assert error_of(lambda: Repository(path).append([A])) == message


def test_a_database_with_rows_without_end_is_refused(tmp_path):
    path = tmp_path / "r.db"
    Repository(path).append([A])
    changed(
        path,
        "ALTER TABLE record RENAME TO before",
        "CREATE VIEW record AS WITH RECURSIVE r AS (SELECT * FROM before UNION ALL "
        "SELECT sequence + 1, recorded, kind, gpu_model, driver, library, date, content FROM r) "
        "SELECT * FROM r",
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


@pytest.mark.parametrize(
    ("kind", "content", "rule"),
    [
        (
            "measurement",
            b'{"workloads":["a","b"],"slowdown":[1,0]}',
            "slowdown[1]: must be >= 0.001",
        ),
        ("measurement", b'{"workloads":[],"slowdown":[1,0]}', "workloads: must have 2"),
        ("profile", b"{}", "workload: this field is required"),
        ("profile", b'{"workload":"a","colour":1}', "colour: unknown field"),
        ("profile", b"[]", "is damaged: its content must be a JSON object"),
        ("profile", b'{"workload":"a', "is damaged: its content must be a JSON object"),
        ("split", b'{"workload":"\xff"}', "is damaged: its content must be a JSON object"),
    ],
)
def test_a_record_that_breaks_a_rule_is_reported_by_its_number(tmp_path, kind, content, rule):
    repository = Repository(tmp_path / "r.db")
    repository.append([A])
    inserted = (
        "INSERT INTO record VALUES (2, 'now', '{}', 'V100', NULL, NULL, NULL, CAST(x'{}' AS TEXT))"
    )
    changed(repository.path, inserted.format(kind, content.hex()))
    read = (lambda: repository.evidence("split")) if kind == "split" else repository.data_set
    assert error_of(read).startswith(f"{repository.path}: record 2: {rule}")
    assert repository.append([A]) == 3


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

def create(repository, connection):
    created(repository, connection)
    for k in range(20):
        connection.execute(f"CREATE TABLE large{k} (a)")

sqlite3_connect, sqlite3.connect = sqlite3.connect, connect
created, Repository._create = Repository._create, create
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


# --- repositories of the first version of the schema

UPGRADE = """
import os, signal, sqlite3, sys
from dovetail.instances.datasets import Repository, SoloProfile

def connect(*arguments, **options):
    made = sqlite3_connect(*arguments, **options)
    made.execute("PRAGMA cache_size = 1")  # changes are in the log before they are committed
    made.set_trace_callback(lambda statement: statement.startswith(sys.argv[2]) and die())
    return made

def die():
    os.kill(os.getpid(), signal.SIGKILL)

sqlite3_connect, sqlite3.connect = sqlite3.connect, connect
Repository(sys.argv[1]).append([SoloProfile(workload="a", gpu_model="g")])
"""
"""Is killed at a statement of the upgrade."""

NO_CONDITIONS = {"driver": None, "library": None}
PLAIN = FULL.replace(latency_p99_s=None, **NO_CONDITIONS)
PLAIN_PAIR = MEASUREMENTS[0].replace(p99=None, **NO_CONDITIONS)


@pytest.fixture
def old(tmp_path):
    return made_old(tmp_path / "old.db")


def made_old(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SQL.read_text())
    return Repository(path)


def version(repository):
    with closing(sqlite3.connect(repository.path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def records(repository):
    return tuple(found.record for found in repository.since(0))


def test_one_of_the_first_version_is_read_as_it_is_and_an_append_upgrades_it(old):
    wanted = (*PROFILES[:2], *MEASUREMENTS[:3], *PROFILES[2:], *MEASUREMENTS[3:])
    before = old.since(0)
    assert tuple(found.record for found in before) == wanted
    assert [found.sequence for found in before] == [*range(1, len(wanted) + 1)]
    assert {found.recorded[:-13] for found in before[5:]} == {"2026-11-28T12:00:03"}
    assert old.since(4) == before[4:]
    assert old.evidence("split", "result") == EVIDENCE
    assert version(old) == 1
    assert old.append([A]) == len(wanted) + len(EVIDENCE) + 1
    assert version(old) == 2
    assert old.since(0)[:-1] == before
    assert old.since(0)[-1].record == A
    assert old.evidence("split", "result") == EVIDENCE
    with closing(sqlite3.connect(old.path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        assert names.fetchall() == [("record",)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("absent", "first", "pair"),
    [
        (["evidence"], FULL, MEASUREMENTS[0]),
        (["evidence", "condition", "mode", "tail", "latency"], PLAIN, PLAIN_PAIR),
    ],
)
def test_one_of_an_earlier_writer_lacks_tables(old, absent, first, pair):
    changed(old.path, *(f"DROP TABLE {table}" for table in absent))
    for _ in range(2):
        assert records(old)[0] == first
        assert records(old)[2] == pair
        assert old.evidence("split") == ()
        old.append()
    assert version(old) == 2


@pytest.mark.parametrize(
    "statement", ["DROP TABLE IF EXISTS record", "INSERT INTO record", "COMMIT"]
)
def test_a_writer_killed_while_it_upgrades_leaves_the_old_one(old, statement):
    before, evidence = old.since(0), old.evidence("split", "result")
    writer = started(UPGRADE, old.path, statement)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    for wanted in (1, 2):
        assert version(old) == wanted
        assert old.since(0) == before
        assert old.evidence("split", "result") == evidence
        old.append()


def test_one_that_breaks_a_rule_is_refused_and_stays_as_it_is(old):
    changed(old.path, "INSERT INTO record VALUES (11, 'now')")
    for action in (old.data_set, old.append):
        assert error_of(action) == f"{old.path}: record 11: workload: this field is required"
    changed(old.path, "INSERT INTO measurement VALUES (11, 'V100', 'ok', NULL, NULL, NULL)")
    for action in (old.data_set, old.append):
        assert error_of(action).startswith(f"{old.path}: record 11: workloads: must have 2")
    assert version(old) == 1


def test_threads_upgrade_one_and_read_it_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        for k in range(10):
            repository = made_old(tmp_path / f"{k}.db")
            before = records(repository)

            def work(record, repository=repository, before=before):
                last = repository.append([record])
                assert records(repository)[: len(before)] == before
                return last

            assert sorted(pool.map(work, [A] * 4)) == [14, 15, 16, 17]
