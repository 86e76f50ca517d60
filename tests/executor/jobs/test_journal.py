"""A journal keeps every event, replays it, belongs to one service, and survives faults."""

import itertools
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import zlib
from contextlib import closing
from copy import deepcopy

import pytest

from dovetail.executor.jobs import checkpoint, events, state_machine
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import (
    JOURNAL,
    Journal,
    JournalError,
    _bytes_in_use,
    read_events,
    read_state_machine,
)
from dovetail.executor.jobs.live_jobs import DeviceState
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import OVER
from dovetail.executor.system.directories import LOCK, lock_pid
from dovetail.instances.datasets import Measurement, SoloProfile
from dovetail.instances.metrics import Metrics
from tests.executor.live.telling import Story, run_of, spec
from tests.executor.waiting import LIMIT_S

WAL = f"{JOURNAL}-wal"


def long_story():
    """Tell of jobs in most of the states that there are."""
    story = Story()
    story.running("g0", env={"PATH": "/bin", "WORT": "Füße\n\x00 \U0001f600"})
    measured = story.running("g0", workers=1)
    story.measured(*story.machine.residents()["g0"])
    story.ended(measured)
    failing = story.submit(workload="text", workers=2, retries=1)
    story.place(failing, "g1", "g2", profiling=True)
    story.bring_up(failing)
    story.profiled(failing)
    story.ended(failing, status=1)
    story.lost(failing, 1)
    story.cancel(story.submit())
    story.submit(workload="speech")
    story.stop(story.running("g0"))
    story.tell(events.DeviceSick, gpu="g1", reason="is too hot")
    story.tell(events.DrainChanged, gpus=("g0",), on=True, by="root")
    return story


@pytest.fixture
def story():
    return long_story()


@pytest.fixture
def folder(tmp_path, story):
    """A directory whose service was killed: its journal was never closed."""
    home = tmp_path / "home"
    live = tmp_path / "live"
    with Journal(live) as journal:
        for event in story.happened:
            journal.append([event])
        home.mkdir()
        for name in (JOURNAL, WAL):
            shutil.copy(live / name, home)
    return home


def prefixes(story):
    """Return the state machine after each of the story's events, and before any."""
    return [replayed(story.happened[:k]) for k in range(len(story.happened) + 1)]


def replayed(happened):
    machine = StateMachine()
    for event in happened:
        machine.apply(event)
    return machine


def as_kept(happened):
    """Return events as a journal keeps them: a job's environment is in its submission only."""
    return [
        event.replace(run=event.run.replace(spec=event.run.spec.replace(env={})))
        if event.kind == "placed"
        else event
        for event in happened
    ]


def change(folder, *statements):
    """Change the file behind the journal's back."""
    with closing(sqlite3.connect(folder / JOURNAL, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER event_UPDATE")
        connection.execute("DROP TRIGGER event_DELETE")
        for statement in statements:
            connection.execute(statement)


class TestKeeping:
    def test_numbers_go_on_and_the_brain_comes_back(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            assert (journal.sequence, journal.replay()) == (0, StateMachine())
            assert journal.append(story.happened[:3]) == 3
            assert journal.append([]) == 3
        with Journal(tmp_path) as journal:
            assert journal.append(story.happened[3:]) == len(story.happened) == journal.sequence
            assert journal.replay() == story.machine
        assert [entry.event for entry in read_events(tmp_path)] == as_kept(story.happened)
        assert next(read_events(tmp_path, after=4)) == (5, story.happened[4])

    def test_what_was_never_closed_is_there(self, folder, story):
        assert read_state_machine(folder) == story.machine
        with Journal(folder) as journal:
            assert journal.replay() == story.machine

    def test_every_kind_of_event_comes_back_as_it_was(self, tmp_path):
        job = Story().submit(memory_mib=0.1, walltime_s=1e-9, priority="latency", gsla=1.3)
        profile = SoloProfile(
            workload="w", gpu_model="m", share=50, metrics=Metrics(sm_active=0.3), power_w=1 / 3
        )
        failed = Measurement(workloads=("a", "b"), gpu_model="m", slowdown=None, share=(None, 40))
        known = [
            events.Submitted(at_s=1.1, job="j1", spec=job.spec, request="0 k"),
            events.CancelRequested(at_s=2.0, job="j1", by="ann"),
            events.HoldChanged(at_s=2.5, job="j1", on=True, by="ann"),
            events.PauseChanged(at_s=2.6, job="j1", on=True, by="ann"),
            events.Edited(at_s=2.7, job="j1", spec=job.spec.replace(nice=2), by="ann"),
            events.RestartDue(at_s=2.8, job="j1"),
            events.DrainChanged(at_s=3.0, on=False, by="root"),
            events.Placed(at_s=4.0, run=run_of(job, ("g0",), share=30), profiling=True),
            events.Reserved(at_s=4.5, job="j1", gpus=("g0",), until_s=1 / 3),
            events.StopDecided(at_s=5.0, run="j1.1", reason="r", then="fail"),
            events.RankStarted(at_s=6.0, run="j1.1", rank=0),
            events.RankReady(at_s=7.0, run="j1.1", rank=1),
            events.RankRefused(at_s=8.0, run="j1.1", rank=0, reason="r"),
            events.RankEnded(at_s=9.0, run="j1.1", rank=0, status=-9),
            events.RankLost(at_s=10.0, run="j1.1", rank=0, reason="r"),
            events.RankGone(at_s=11.0, run="j1.1", rank=0, reason="r"),
            events.IsolationLost(at_s=11.5, run="j1.1", reason="r"),
            events.IsolationRegained(at_s=11.6, run="j1.1"),
            events.Profiled(at_s=12.0, run="j1.1", profile=profile),
            events.WorkloadKnown(at_s=13.0, uid=0, workload="w"),
            events.ProfileFailed(at_s=14.0, run="j1.1", reason="r"),
            events.Measured(
                at_s=15.0, runs=("j1.1",), gpu="g0", measurement=failed, window_s=0.1 + 0.2
            ),
            events.Separated(
                at_s=15.1,
                runs=("j1.1", "j2.1"),
                gpu_model="m",
                workloads=("a", "b"),
                shares=(None, 40),
                gsla=1.3,
                slowdown=4 / 3,
            ),
            events.LibrarySeen(at_s=15.2, uid=0, workload="w", library="130100"),
            events.MeasuringBegun(
                at_s=15.3, run="shares-9.1", gpu="g0", gpu_model="m", library="130100", share=50
            ),
            events.MeasuringStopped(at_s=15.4, run="shares-9.1", reason="r"),
            events.MeasuringEnded(at_s=15.5, run="shares-9.1", outcome="stopped", reason="r"),
            events.Recorded(at_s=16.0, sequence=3),
            events.DeviceSick(at_s=17.0, gpu="g0", reason="r"),
            events.DeviceHealed(at_s=18.0, gpu="g0"),
            events.DevicesChanged(at_s=18.5, gpus=("g0", "g1")),
            events.ServiceStarted(at_s=19.0, boot="b", pool="p", gpus=(), version="v"),
        ]
        assert {type(event) for event in known} == set(AnyEvent.__args__[0].__args__)
        with Journal(tmp_path) as journal:
            journal.append(known)
        assert [entry.event for entry in read_events(tmp_path)] == known

    def test_events_that_do_not_fit_are_passed_over_as_they_were(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.append([story.happened[1]])  # there is a job of this id
            assert journal.replay().jobs == story.machine.jobs
            assert journal.replay().sequence == journal.sequence

    def test_only_its_owner_may_look(self, tmp_path):
        home = tmp_path / "deep" / "home"
        with Journal(home) as journal:
            journal.append(long_story().happened)
            for name in (JOURNAL, WAL, LOCK):
                assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(home.stat().st_mode) == 0o700

    def test_nothing_is_ever_changed_in_it(self, folder):
        with closing(sqlite3.connect(folder / JOURNAL)) as connection:
            for statement in ("DELETE FROM event", "UPDATE event SET text = ''"):
                with pytest.raises(sqlite3.IntegrityError, match="only appended to"):
                    connection.execute(statement)


class TestCheckpoints:
    def test_are_written_when_enough_has_happened(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            size = len(story.happened)
            assert not journal.checkpoint(story.machine, every=size + 1)
            assert journal.checkpoint(story.machine, every=size)
            assert not journal.checkpoint(story.machine, every=1)

    def test_save_the_reading_of_what_was_before(self, folder, story):
        with Journal(folder) as journal:
            journal.checkpoint(journal.replay(), every=1)
            story.start()
            journal.append(story.happened[-1:])
        # The first event, which is torn, is never read again.
        change(folder, "UPDATE event SET text = 'torn' WHERE sequence = 1")
        with Journal(folder) as journal:
            assert journal.replay() == story.machine

    def test_of_jobs_that_came_and_went_between_them(self, folder, story):
        with Journal(folder) as journal:
            machine = journal.replay()
            journal.checkpoint(machine, every=1)
            more = [
                events.RankGone(at_s=999.0, run="j3.1", rank=1, reason="a reboot"),
                events.Submitted(at_s=999.0, job=machine.next_job_id(), spec=spec()),
            ]
            journal.append(more)
            for event in more:
                machine.apply(event)
            assert journal.checkpoint(machine, every=1)
        change(folder, "UPDATE event SET text = 'torn' WHERE sequence = 1")
        assert read_state_machine(folder) == machine

    @pytest.mark.parametrize(
        "fault",
        [
            "UPDATE brain SET version = version + 1",
            "UPDATE brain SET text = '{'",
            "UPDATE brain SET sequence = 9999",
            "UPDATE brain SET text = x'00'",
            "DELETE FROM brain",
            "DELETE FROM job WHERE sequence = 2",
            "UPDATE job SET text = replace(text, 'running', 'waiting')",
            "UPDATE job SET text = 5",
            "DELETE FROM job",
        ],
    )
    def test_that_cannot_be_used_are_passed_over(self, folder, story, fault):
        with Journal(folder) as journal:
            journal.checkpoint(journal.replay(), every=1)
        change(folder, fault)
        assert read_state_machine(folder) == story.machine

    def test_without_a_job_that_waited_at_one_and_is_forgotten_by_the_next(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(state_machine, "KEPT_OVER", 1)
        story = Story()
        over, waits, last = (story.submit().id for _ in range(3))
        story.tell(events.CancelRequested, job=over, by="ann")
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.checkpoint(story.machine, every=1)
            known = len(story.happened)
            story.tell(events.CancelRequested, job=waits, by="ann")
            story.tell(events.CancelRequested, job=last, by="ann")
            journal.append(story.happened[known:])
            journal.compact(story.machine, story.at_s + 1)
        assert [*story.machine.jobs] == [last]
        assert read_state_machine(tmp_path) == story.machine

    def test_say_what_a_job_is_but_not_what_was_submitted(self, story):
        secret = next(iter(story.machine.jobs.values()))
        assert "WORT" not in checkpoint.job_text(secret)


class TestCompaction:
    @pytest.fixture
    def compacted(self, tmp_path, story):
        """Return a directory with a compacted journal, and the state machine replayed from it."""
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.compact(story.machine, before_s=1e9)
        return tmp_path

    def texts(self, folder):
        with closing(sqlite3.connect(folder / JOURNAL)) as connection:
            return [text for (text,) in connection.execute("SELECT text FROM event")]

    def test_leaves_what_waits_and_runs_and_goes_on(self, compacted, story):
        left = [entry.event for entry in read_events(compacted)]
        living = {job.id for job in story.machine.jobs.values() if job.state not in OVER}
        assert {(event.kind, event.job) for event in left} == {("submitted", j) for j in living}
        with Journal(compacted) as journal:
            assert journal.replay() == story.machine
            assert journal.sequence == len(story.happened)
            story.start()
            assert journal.append(story.happened[-1:]) == len(story.happened)
            assert journal.replay() == story.machine
        assert read_state_machine(compacted) == story.machine
        assert [entry.sequence for entry in read_events(compacted)][-1] == len(story.happened)

    def test_leaves_what_has_happened_since(self, tmp_path, story):
        moment_s = story.happened[len(story.happened) // 2].at_s
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.compact(story.machine, moment_s)
        since = as_kept([event for event in story.happened if event.at_s >= moment_s])
        assert [entry.event for entry in read_events(tmp_path)][-len(since) :] == since

    def test_again_and_again_of_a_journal_that_loses_all(self, tmp_path):
        story = Story()
        story.cancel(story.submit())
        for _ in range(3):
            with Journal(tmp_path) as journal:
                journal.append(story.happened[journal.sequence :])
                journal.compact(story.machine, before_s=1e9)
                assert list(read_events(tmp_path)) == []
            story.cancel(story.submit())
        assert read_state_machine(tmp_path).submitted == 3

    def test_drops_the_environments_of_what_is_over_and_no_others(self, tmp_path):
        story = Story()
        over, waits = story.submit(env={"A": "secret-1"}), story.submit(env={"A": "secret-2"})
        story.cancel(over)
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.compact(story.machine, before_s=0.0)
            assert len(list(read_events(tmp_path))) == len(story.happened)
            assert journal.replay().jobs[waits.id].spec.env == {"A": "secret-2"}
        assert "secret-1" not in "".join(self.texts(tmp_path))

    def test_makes_the_file_smaller(self, tmp_path):
        story = Story()
        with Journal(tmp_path) as journal:
            for _ in range(50):
                story.cancel(story.submit(env={"A": "a" * 9_999}))
            journal.append(story.happened)
            journal.compact(story.machine, before_s=0.0)
            assert (tmp_path / JOURNAL).stat().st_size < 50 * 9_999 / 2
            assert journal.replay() == story.machine

    def test_a_size_beyond_the_limit_takes_the_oldest_events(self, tmp_path, monkeypatch):
        monkeypatch.setattr("dovetail.executor.jobs.journal._MOST_DROPPED", 100)
        story = Story()
        waits = story.submit()
        for _ in range(300):
            story.cancel(story.submit())
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            assert not journal.compact(story.machine, before_s=0.0)
            assert len(list(read_events(tmp_path))) == len(story.happened)
            most = int(0.8 * _bytes_in_use(journal._connection))
            steps = 1
            while journal.compact(story.machine, before_s=0.0, most_bytes=most):
                steps += 1
            assert steps > 1
            left = [entry.sequence for entry in read_events(tmp_path)]
            # The newest are left, and what was submitted and waits.
            assert 0 < len(left) < len(story.happened) - 100
            assert left[0] == waits.sequence
            assert left[1:] == list(range(left[1], len(story.happened) + 1))
            assert journal.replay() == story.machine

    def test_keeps_what_no_checkpoint_holds(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.checkpoint(story.machine, every=1)
            story.submit()
            journal.append(story.happened[-1:])
            # As where the disk took no checkpoint.
            journal._checkpointed = story.machine.sequence
            journal.compact(story.machine, before_s=1e9)
            assert journal.replay() == story.machine

    @pytest.mark.parametrize("fault", ["DELETE FROM brain", "UPDATE job SET text = 5"])
    def test_cannot_do_without_its_checkpoint(self, compacted, fault):
        change(compacted, fault)
        with pytest.raises(JournalError, match="is damaged: its checkpoint cannot be read"):
            read_state_machine(compacted)

    def test_is_the_only_thing_that_changes_events(self, compacted):
        test = TestKeeping()
        test.test_nothing_is_ever_changed_in_it(compacted)


def test_an_environment_is_written_to_a_journal_once(tmp_path):
    story = Story()
    job = story.running("g0", env={"A": "long"})
    with Journal(tmp_path) as journal:
        journal.append(story.happened)
        assert journal.replay() == story.machine
        assert journal.replay().jobs[job.id].run.spec.env == {"A": "long"}
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as connection:
        stored = connection.execute("SELECT count(*) FROM event WHERE text LIKE '%long%'")
        assert stored.fetchone() == (0,)
        assert connection.execute("SELECT text FROM words").fetchall() == [('{"A":"long"}',)]


LONG = ("train", "x" * 50_000, "y" * 50_000)


def words(folder):
    with closing(sqlite3.connect(folder / JOURNAL)) as connection:
        return connection.execute("SELECT count(*) FROM words").fetchone()[0]


class TestWords:
    """Environments and long commands are stored once, whatever refers to them."""

    @pytest.fixture
    def array(self, tmp_path):
        """A journal with an array of 300 jobs, the words of which have 200 KB."""
        made = spec(env={"A": "a" * 100_000}).with_words(command=LONG)
        happened = [events.Submitted(at_s=1.0, job=f"j{k}", spec=made) for k in range(1, 301)]
        with Journal(tmp_path) as journal:
            journal.append(happened)
        return tmp_path, replayed(happened)

    def test_an_array_takes_the_room_of_a_job(self, array):
        folder, machine = array
        again = read_state_machine(folder)
        assert again == machine
        assert len({id(job.spec.env) for job in again.jobs.values()}) == 1
        assert len({id(job.spec.command) for job in again.jobs.values()}) == 1
        assert (folder / JOURNAL).stat().st_size < 1_000_000

    def test_also_in_a_checkpoint(self, array):
        folder, machine = array
        with Journal(folder) as journal:
            journal.checkpoint(journal.replay(), every=1)
        again = read_state_machine(folder)
        assert again == machine
        assert len({id(job.spec.env) for job in again.jobs.values()}) == 1
        assert len({id(job.spec.command) for job in again.jobs.values()}) == 1
        assert (folder / JOURNAL).stat().st_size < 3_000_000

    def test_of_an_edited_job_and_its_run(self, tmp_path):
        story = Story()
        job = story.submit(env={"A": "b"})
        story.know()
        changed = job.spec.with_words(command=LONG)
        story.tell(events.Edited, job=job.id, spec=changed, by="ann")
        story.place(job, "g0")
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            assert journal.replay() == story.machine
            journal.checkpoint(story.machine, every=1)
            assert journal.replay() == story.machine
            journal.compact(story.machine, before_s=1e9)
            assert journal.replay() == story.machine
        assert words(tmp_path) == 2
        assert read_state_machine(tmp_path).jobs[job.id].run.spec.command == LONG

    def test_go_with_the_last_job_that_has_them(self, array):
        folder, machine = array
        with Journal(folder) as journal:
            for k in range(1, 301):
                event = events.CancelRequested(at_s=2.0, job=f"j{k}", by="ann")
                journal.append([event])
                machine.apply(event)
                if k in (1, 299):
                    journal.compact(machine, before_s=0.0)
                    assert words(folder) == 2
            journal.compact(machine, before_s=0.0)
            assert words(folder) == 0
            assert journal.replay() == machine
        assert machine.jobs["j1"].spec.command[0] == "train"
        assert sum(map(len, machine.jobs["j1"].spec.command)) <= 1000

    @pytest.mark.parametrize(
        "fault", ["UPDATE words SET text = replace(text, 'i', 'j')", "DELETE FROM words"]
    )
    def test_that_are_damaged_are_noticed(self, folder, fault):
        change(folder, fault)
        with pytest.raises(JournalError, match="is damaged at event 2: its words are damaged"):
            read_state_machine(folder)


def as_of_before(folder, version):
    """Make a journal one of before words were stored apart."""
    with Journal(folder) as journal:
        rows = [(n, event.model_dump_json()) for n, event in read_events(folder)]
        if version == 2:
            journal.compact(journal.replay(), before_s=0.0)
    sums = [(text, zlib.crc32(f"{number} {text}".encode()), number) for number, text in rows]
    change(folder)
    with closing(sqlite3.connect(folder / JOURNAL, isolation_level=None)) as connection:
        connection.executemany("UPDATE event SET text = ?, sum = ? WHERE sequence = ?", sums)
        for statement in (
            "DROP INDEX event_env",
            "DROP INDEX event_command",
            "ALTER TABLE event DROP COLUMN env",
            "ALTER TABLE event DROP COLUMN command",
            "ALTER TABLE job DROP COLUMN command",
            "DROP TABLE words",
            *(["DROP TABLE base"] if version == 1 else []),
            "CREATE TRIGGER event_UPDATE BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, ''); END",
            "CREATE TRIGGER event_DELETE BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, ''); END",
            f"PRAGMA user_version = {version}",
        ):
            connection.execute(statement)


class TestBeforeWordsWereApart:
    """Journals of earlier versions are read as they are, and go on as one of this version."""

    @pytest.mark.parametrize("version", [1, 2])
    def test_is_read_upgraded_and_goes_on(self, folder, story, version):
        as_of_before(folder, version)
        assert read_state_machine(folder) == story.machine
        kept = [entry.event for entry in read_events(folder)]
        with Journal(folder) as journal:
            assert journal.replay() == story.machine
            assert [entry.event for entry in read_events(folder)] == kept
            job = story.submit(env={"NEW": "one"})
            journal.append(story.happened[-1:])
            assert journal.replay() == story.machine
            journal.compact(story.machine, before_s=1e9)
            assert journal.replay() == story.machine
        assert read_state_machine(folder).jobs[job.id].spec.env == {"NEW": "one"}


class TestOneServiceADirectory:
    def test_a_second_service_is_refused_and_names_the_first(self, tmp_path):
        with Journal(tmp_path):
            with pytest.raises(JournalError) as caught:
                Journal(tmp_path)
            assert (
                str(caught.value) == f"{tmp_path}: a service already runs here (pid {os.getpid()})"
            )
        Journal(tmp_path).close()

    def test_of_another_process_until_it_is_killed(self, tmp_path):
        with holding(tmp_path) as process:
            with pytest.raises(JournalError, match=rf"here \(pid {process.pid}\)$"):
                Journal(tmp_path)
            process.send_signal(signal.SIGKILL)
            process.wait()
            Journal(tmp_path).close()

    def test_its_jobs_do_not_keep_the_lock(self, tmp_path):
        with Journal(tmp_path):
            child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            Journal(tmp_path).close()
        finally:
            child.kill()
            child.wait()

    def test_others_may_read_while_it_writes(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened[:-1])
            reader = read_events(tmp_path)
            assert next(reader).sequence == 1
            journal.append(story.happened[-1:])
            # One reading is of one moment.
            assert [entry.sequence for entry in reader][-1] == len(story.happened) - 1
            assert read_state_machine(tmp_path) == story.machine


def holding(folder):
    """Start a process that has the journal of a folder, and wait until it does."""
    process = python(
        """
        import sys, time
        from dovetail.executor.jobs.journal import Journal
        journal = Journal(sys.argv[1])
        print("ready", flush=True)
        time.sleep(60)
        """,
        folder,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def python(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class TestWhatIsNoJournal:
    def test_nothing(self, tmp_path):
        with pytest.raises(JournalError, match="cannot be read: no such file or directory"):
            read_state_machine(tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("content", "rule"),
        [
            (b"hello", "is damaged: it was cut short, or is not a journal"),
            (b"hello, world; " * 999, "must be a journal, got another file"),
        ],
    )
    def test_another_file(self, tmp_path, content, rule):
        (tmp_path / JOURNAL).write_bytes(content)
        for use in (Journal, read_state_machine):
            with pytest.raises(JournalError) as caught:
                use(tmp_path)
            assert str(caught.value) == f"{tmp_path / JOURNAL}: {rule}"
        assert (tmp_path / JOURNAL).read_bytes() == content

    def test_another_database(self, tmp_path):
        with closing(sqlite3.connect(tmp_path / JOURNAL)) as connection:
            connection.execute("CREATE TABLE event (a)")
        with pytest.raises(JournalError, match="must be a journal, got another database"):
            Journal(tmp_path)

    def test_one_of_a_newer_dovetail(self, folder):
        change(folder, "PRAGMA user_version = 4")
        with pytest.raises(JournalError, match="must have a schema version from 1 to 3, got 4"):
            Journal(folder)

    def test_an_event_of_a_newer_dovetail(self, folder):
        with Journal(folder) as journal:
            last = journal.append(
                [events.ServiceStarted(at_s=1.0, boot="b", pool="p", gpus=(), version="9")]
            )
        text = '{"kind":"beamed_up"}'
        text_sum = zlib.crc32(f"{last} {text}".encode())
        change(
            folder,
            f"UPDATE event SET text = '{text}', sum = {text_sum} WHERE sequence = {last}",
        )
        with pytest.raises(JournalError, match=f"event {last} cannot be read"):
            read_state_machine(folder)

    def test_a_folder_in_its_place(self, tmp_path):
        (tmp_path / JOURNAL).mkdir()
        with pytest.raises(JournalError, match="must be a journal, got a folder"):
            Journal(tmp_path)

    def test_a_file_in_the_folders_place(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(JournalError, match="cannot be used"):
            Journal(tmp_path / "file")


class TestDamage:
    @pytest.mark.parametrize("text", ["replace(text, 'j1', 'j2')", "CAST(X'7BFFFF' AS TEXT)"])
    def test_a_changed_byte_is_named(self, folder, text):
        change(folder, f"UPDATE event SET text = {text} WHERE sequence = 5")
        with pytest.raises(JournalError, match=r"is damaged at event 5$"):
            read_state_machine(folder)
        with Journal(folder) as journal, pytest.raises(JournalError, match=r"at event 5$"):
            journal.replay()

    @pytest.mark.parametrize("sequence", [1, 5])
    def test_so_is_a_missing_event(self, folder, sequence):
        change(folder, f"DELETE FROM event WHERE sequence = {sequence}")
        with pytest.raises(JournalError, match=f"is damaged at event {sequence}$"):
            read_state_machine(folder)

    def test_an_emptied_file_does_not_take_the_log_with_it(self, folder):
        log = (folder / WAL).read_bytes()
        os.truncate(folder / JOURNAL, 0)
        with pytest.raises(JournalError, match="is damaged: it was cut short"):
            Journal(folder)
        with pytest.raises(JournalError, match="is damaged: it was cut short"):
            read_state_machine(folder)
        assert (folder / WAL).read_bytes() == log

    def test_a_log_cut_anywhere_leaves_what_was_committed_before(self, folder, story, tmp_path):
        whole, states = (folder / WAL).read_bytes().rstrip(b"\0"), prefixes(story)
        rng, found = random.Random(6), []
        for size in sorted(rng.sample(range(len(whole)), 60)):
            (folder / WAL).write_bytes(whole[:size])
            found.append(self.machine_of(folder, tmp_path))
        numbers = [machine.sequence for machine in found if machine is not None]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 10
        assert all(machine == states[machine.sequence] for machine in found if machine is not None)

    @pytest.mark.parametrize("name", [JOURNAL, WAL])
    @pytest.mark.parametrize("closed", [False, True])
    def test_garbage_is_refused_or_after_what_was_committed_before(
        self, folder, story, tmp_path, name, closed
    ):
        if closed:
            Journal(folder).close()
            if name == WAL:
                (folder / WAL).write_bytes(random.Random(1).randbytes(9999))
        whole, states = (folder / name).read_bytes(), prefixes(story)
        rng = random.Random(7)
        for _ in range(60):
            at, size = rng.randrange(len(whole)), rng.choice([1, 8, 4096])
            torn = whole[:at] + rng.randbytes(size) + whole[at + size :]
            (folder / name).write_bytes(torn[: len(whole)])
            machine = self.machine_of(folder, tmp_path)
            assert machine is None or machine == states[machine.sequence]

    @staticmethod
    def machine_of(folder, tmp_path):
        """Return the state machine of a copy, None where it was refused in one line."""
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        try:
            with Journal(copy) as journal:
                machine = journal.replay()
                journal.append([events.Recorded(at_s=1.0, sequence=0)])
                return machine
        except JournalError:
            return None
        finally:
            shutil.rmtree(copy)


def _flip(path, rng, used):
    """Change 64 bytes somewhere in the used part of a file."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(max(1, used - 64))
    data[at : at + 64] = bytes(byte ^ rng.randint(1, 255) for byte in data[at : at + 64])
    path.write_bytes(data)


def _used(path):
    return len(path.read_bytes().rstrip(b"\0"))


FAULTS = {
    "flipped log": lambda home, rng: _flip(home / WAL, rng, _used(home / WAL)),
    "cut log": lambda home, rng: os.truncate(home / WAL, rng.randrange(_used(home / WAL))),
    "removed log": lambda home, rng: (home / WAL).unlink(),
    "flipped file": lambda home, rng: _flip(home / JOURNAL, rng, _used(home / JOURNAL)),
    "removed file": lambda home, rng: (home / JOURNAL).unlink(),
    "removed both": lambda home, rng: [(home / name).unlink() for name in (JOURNAL, WAL)],
    "nothing": lambda home, rng: None,
}


class TestLoss:
    """What was on the disk is there, or the service does not start and says so."""

    @pytest.fixture
    def synced(self, tmp_path, story, request):
        """A directory whose service was killed after all of its events were on the disk."""
        live, home = tmp_path / "live", tmp_path / "home"
        rng, machine = random.Random(request.param), StateMachine()
        with Journal(live) as journal:
            left = list(story.happened)
            while left:
                batch = [left.pop(0) for _ in range(min(len(left), rng.randint(1, 9)))]
                journal.append(batch)
                journal.sync()
                for event in batch:
                    machine.apply(event)
                journal.checkpoint(machine, every=rng.choice([1, 20, 1000]))
            journal.sync()
            shutil.copytree(live, home)
        return home

    @pytest.mark.parametrize(
        ("synced", "fault"),
        list(itertools.product(range(14), FAULTS)),
        indirect=["synced"],
        ids=lambda value: str(value),
    )
    def test_is_named_and_leaves_the_files_as_they_are(self, synced, story, fault, request):
        seed = request.node.callspec.params["synced"]
        FAULTS[fault](synced, random.Random(100 + seed))
        before = {name: (synced / name).exists() for name in (JOURNAL, WAL)}
        bytes_before = {
            name: (synced / name).read_bytes() for name, there in before.items() if there
        }
        refusal = self.refusal(synced, story)
        if refusal is None:
            assert not fault.startswith("removed")
            return
        assert fault != "nothing"
        assert len(refusal.splitlines()) == 1
        if "--accept-loss" in refusal:
            assert {name: (synced / name).read_bytes() for name in bytes_before} == bytes_before
            self.goes_on(synced, story)

    @staticmethod
    def refusal(home, story):
        """Return why a journal is refused; None: all of the story is there."""
        try:
            with Journal(home) as journal:
                assert journal.sequence == len(story.happened)
                assert journal.replay() == replayed(story.happened)
        except JournalError as error:
            return str(error)
        return None

    @staticmethod
    def goes_on(home, story):
        """Start without the lost events, and again as usual."""
        with Journal(home, accept_loss=True) as journal:
            machine = journal.replay()
            assert machine == prefixes(story)[machine.sequence]
            last = journal.append([events.Recorded(at_s=1.0, sequence=0)])
            journal.sync()
        with Journal(home) as journal:
            assert journal.sequence == last

    @pytest.mark.parametrize("synced", range(14), indirect=True)
    def test_a_changed_frame_that_is_mended_is_no_loss(self, synced, story):
        log = (synced / WAL).read_bytes()
        # The first frame: all later ones are lost with it.
        (synced / WAL).write_bytes(log[:100] + bytes(64) + log[164:])
        assert "--accept-loss" in self.refusal(synced, story)
        (synced / WAL).write_bytes(log)
        assert self.refusal(synced, story) is None

    @pytest.mark.parametrize("synced", [0], indirect=True)
    @pytest.mark.parametrize("number", [b"9999", b"x", b"\xff" * 15])
    def test_a_changed_number_is_not_believed(self, synced, number):
        with open(synced / LOCK, "r+b") as lock:
            lock.seek(20)
            lock.write(number)
        Journal(synced).close()

    @pytest.mark.parametrize("synced", [0], indirect=True)
    def test_its_number_is_beside_the_process(self, synced):
        with Journal(synced):
            assert lock_pid(synced / LOCK) == os.getpid()

    def test_what_was_never_synced_may_be_missing(self, folder, story, tmp_path):
        log = (folder / WAL).read_bytes()
        Journal(folder).close()
        (folder / WAL).write_bytes(log[:100])
        Journal(folder).close()


class TestKills:
    @pytest.mark.parametrize("seed", range(3))
    def test_all_that_was_acknowledged_is_there_in_whole_batches(self, tmp_path, seed):
        process = python(
            """
            import sys
            from dovetail.executor.jobs.events import Recorded
            from dovetail.executor.jobs.journal import Journal
            with Journal(sys.argv[1]) as journal:
                machine = journal.replay()
                while True:
                    batch = [Recorded(at_s=1.0, sequence=k) for k in range(7)]
                    print(journal.append(batch), flush=True)
                    for event in batch:
                        machine.apply(event)
                    journal.checkpoint(machine, every=20)
            """,
            tmp_path,
        )
        wanted = random.Random(seed).randint(5, 60)
        acknowledged = [int(process.stdout.readline()) for _ in range(wanted)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [
            int(line)
            for line in process.communicate()[0].splitlines(keepends=True)
            if line.endswith("\n")
        ]
        with Journal(tmp_path) as journal:
            assert journal.sequence in (acknowledged[-1], acknowledged[-1] + 7)
            assert journal.replay().sequence == journal.sequence


def on_a_small_disk(tmp_path, program):
    """Run a program with a file system of 1 MiB in a name space of its own."""
    inside = 'mount -t tmpfs -o size=1m,mode=700 none "$1" && exec "$2" "$3" "$1"'
    mounted = tmp_path / "small"
    mounted.mkdir()
    space = ["unshare", "-rm", "sh", "-c"]
    try:
        subprocess.run(
            [*space, 'mount -t tmpfs none "$0"', mounted], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system cannot be mounted here")
    return subprocess.run(
        [*space, inside, "sh", mounted, sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


class TestAFullDisk:
    def test_nothing_half_written_and_later_appends_possible(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            pages = "PRAGMA max_page_count = {}"
            journal._connection.execute(pages.format(1))  # SQLite takes the pages there are
            job = events.Submitted(
                at_s=1.0, job=story.machine.next_job_id(), spec=spec(env={"A": "a" * 99_999})
            )
            for _ in range(3):
                with pytest.raises(
                    JournalError, match="cannot be written: database or disk is full"
                ):
                    journal.append([events.Recorded(at_s=1.0, sequence=0), job])
            assert journal.sequence == len(story.happened)
            assert journal.replay() == story.machine
            journal._connection.execute(pages.format(10_000))
            assert journal.append([job]) == len(story.happened) + 1
        assert len(read_state_machine(tmp_path).jobs) == len(story.machine.jobs) + 1

    def test_has_no_room_for_a_checkpoint(self, tmp_path, story):
        with Journal(tmp_path) as journal:
            journal.append(story.happened)
            journal.checkpoint(story.machine, every=1)
            kept = deepcopy(story.machine)
            story.submit(env={"A": "a" * 99_999})
            journal.append(story.happened[-1:])
            for _ in range(30):
                story.machine.devices[f"g{len(story.machine.devices)}"] = DeviceState(
                    sick="x" * 9_999
                )
            journal._connection.execute("PRAGMA max_page_count = 1")
            with pytest.raises(JournalError, match="database or disk is full"):
                journal.checkpoint(story.machine, every=1)
            assert not journal.checkpoint(story.machine, every=1)
            kept.apply(story.happened[-1])
            assert journal.replay() == kept

    def test_a_real_one(self, tmp_path):
        """A file system of 1 MiB in a name space of its own is filled, and emptied again."""
        program = tmp_path / "fill.py"
        program.write_text(
            textwrap.dedent(
                """
            import os, sys
            from dovetail.executor.jobs.events import Recorded
            from dovetail.executor.jobs.journal import Journal, JournalError
            folder, full = sys.argv[1], 0
            batch = [Recorded(at_s=1.0, sequence=k) for k in range(100)]
            with Journal(folder) as journal:
                last = journal.append(batch)
                with open(f"{folder}/ballast", "wb", buffering=0) as ballast:
                    try:
                        while ballast.write(b"x" * 4096):
                            pass
                    except OSError:
                        pass
                while full < 5:
                    try:
                        last = journal.append(batch)
                    except JournalError as error:
                        full += 1
                    assert journal.sequence == journal.replay().sequence == last
                os.unlink(f"{folder}/ballast")
                assert journal.append(batch) == last + 100
                assert journal.replay().sequence == last + 100
            print(error if full == 0 else "recovered")
            """
            )
        )
        done = on_a_small_disk(tmp_path, program)
        assert (done.stdout, done.stderr) == ("recovered\n", "")

    def test_at_the_start_a_journal_is_read_and_a_new_one_refused(self, tmp_path):
        program = tmp_path / "start.py"
        program.write_text(
            textwrap.dedent(
                """
            import os, sys
            from dovetail.executor.jobs.events import Recorded
            from dovetail.executor.jobs.journal import Journal, JournalError
            folder = sys.argv[1]
            with Journal(f"{folder}/old") as journal:
                journal.append([Recorded(at_s=1.0, sequence=0)])
            with open(f"{folder}/ballast", "wb", buffering=0) as ballast:
                try:
                    while ballast.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
            for _ in range(2):
                for name in ("old", "new"):
                    try:
                        with Journal(f"{folder}/{name}") as journal:
                            print(name, journal.replay().sequence)
                            journal.append([Recorded(at_s=1.0, sequence=0)])
                    except JournalError as error:
                        print(str(error).removeprefix(folder))
                if os.path.exists(f"{folder}/ballast"):
                    os.unlink(f"{folder}/ballast")
            """
            )
        )
        done = on_a_small_disk(tmp_path, program)
        assert done.stderr == ""
        assert done.stdout.splitlines() == [
            "old 1",
            "/old/journal.db: cannot be written: database or disk is full",
            "/new/journal.db: cannot be opened: database or disk is full",
            "old 1",
            "new 0",
        ]
