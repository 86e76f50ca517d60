"""Parts of the shim by themselves: its exclusive claim, and its log."""

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dovetail.executor.pools.runs import processes
from dovetail.executor.pools.runs.files import RunFiles, whole
from dovetail.executor.pools.runs.processes import holders
from dovetail.executor.pools.runs.progress import HOOK_DIRECTORY
from dovetail.executor.pools.runs.start_barrier import StartBarrier
from dovetail.executor.pools.shim import durable, kernel, output
from dovetail.executor.system.clock import boot_s
from tests.executor.local_runs import a_run, cleared, fork_server, write_shim_spec
from tests.executor.waiting import LIMIT_S, wait_until


@pytest.fixture
def server(tmp_path):
    """Return a server that forks shims."""
    with fork_server(tmp_path) as started:
        yield started


@pytest.fixture
def rank(tmp_path):
    """Return the files of a rank that writes a line and sleeps."""
    with cleared(tmp_path):
        files = RunFiles(tmp_path, "j1.1")
        files.make(whole(a_run("true")))
        write_shim_spec(files.rank(0), "echo started; exec sleep 600")
        yield files.rank(0)


class TestGate:
    def test_a_service_that_dies_before_the_gate_opens_leaves_no_trace(self, server, rank):
        barrier = StartBarrier(server, rank)
        assert barrier.answer(boot_s() + LIMIT_S) == "prepared"
        assert len(holders(rank.token, os.geteuid())) == 2
        barrier.dismiss()
        assert holders(rank.token, os.geteuid()) == []
        assert rank.started() is None
        assert rank.ending() is None

    def test_of_two_launchers_of_a_rank_one_starts_it(self, server, rank):
        barriers = [StartBarrier(server, rank), StartBarrier(server, rank)]
        assert [barrier.answer(boot_s() + LIMIT_S) for barrier in barriers] == [
            "prepared",
            "prepared",
        ]
        for barrier in barriers:
            barrier.open()
        assert sorted(barrier.answer(boot_s() + LIMIT_S) for barrier in barriers) == [
            "started",
            "taken",
        ]
        wait_until(lambda: rank.log.exists() and rank.log.read_text() == "started\n")
        for barrier in barriers:
            barrier.leave()

    def test_a_rank_that_must_never_start_does_not(self, server, rank):
        barrier = StartBarrier(server, rank)
        assert barrier.answer(boot_s() + LIMIT_S) == "prepared"
        assert rank.never_start("it was stopped")
        barrier.open()
        assert barrier.answer(boot_s() + LIMIT_S) == "taken"
        barrier.dismiss()
        assert rank.started().never == "it was stopped"
        assert not rank.never_start("again")
        assert holders(rank.token, os.geteuid()) == []
        assert rank.log.read_text() == ""

    def gate_with_pattern(self, server, rank, pattern):
        lines = {"modules": HOOK_DIRECTORY, "pattern": pattern, "path": str(rank.progress)}
        rank.write_spec({**rank.spec(), "lines": lines})
        return StartBarrier(server, rank)

    def test_a_pattern_that_is_none_is_refused(self, server, rank):
        barrier = self.gate_with_pattern(server, rank, "((")
        expected = "refused missing ), unterminated subpattern at position 1"
        assert barrier.answer(boot_s() + LIMIT_S) == expected
        barrier.dismiss()
        assert holders(rank.token, os.geteuid()) == []

    def test_a_reader_that_fails_harms_nothing_but_the_count(self, server, rank):
        barrier = self.gate_with_pattern(server, rank, "started")
        assert barrier.answer(boot_s() + LIMIT_S) == "prepared"
        barrier.open()
        assert barrier.answer(boot_s() + LIMIT_S) == "started"
        trouble = rank.directory / "shim.log"
        wait_until(lambda: trouble.exists() and "no such group" in trouble.read_text())
        assert rank.log.read_text() == "started\n"
        assert len(holders(rank.token, os.geteuid())) == 2
        barrier.leave()

    def test_what_compiled_code_reports_is_kept(self, server, rank, tmp_path):
        barrier = StartBarrier(server, rank)
        assert barrier.answer(boot_s() + LIMIT_S) == "prepared"
        kept = str(tmp_path / "rehearsal" / "errors.log")
        shims = holders(rank.token, os.geteuid())
        assert kept in {os.readlink(f"/proc/{shim.pid}/fd/2") for shim in shims}
        barrier.dismiss()

    def test_a_damaged_specification_is_reported_in_its_log(self, server, rank):
        (rank.directory / "spec.json").write_text("{")
        barrier = StartBarrier(server, rank)
        assert barrier.answer(boot_s() + LIMIT_S) == ""
        barrier.dismiss()
        assert "JSONDecodeError" in (rank.directory / "shim.log").read_text()


def test_of_many_claims_one_is_made_and_it_is_whole(tmp_path):
    program = (
        "import sys, runpy\n"
        f"claim = runpy.run_path({durable.__file__!r})['claim']\n"
        "sys.stdin.read()\n"
        f"print(claim({str(tmp_path)!r}, {{'by': sys.argv[1]}}))"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", program, str(k)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(8)
    ]
    for racer in racers:
        racer.stdin.close()
        racer.stdin = None
    won = [racer.communicate()[0].strip() == "True" for racer in racers]
    assert sum(won) == 1
    assert json.loads((tmp_path / "started.json").read_text()) == {"by": str(won.index(True))}
    assert [path.name for path in tmp_path.iterdir()] == ["started.json"]


def test_what_cannot_be_looked_at_has_not_ended():
    me = processes.ProcessId(os.getpid(), kernel.stat_of(os.getpid()).started)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    failed = []
    try:
        for look in (lambda: me.alive, me.watch, lambda: processes.holders("x", 1)):
            try:
                look()
            except OSError as error:
                failed.append(error.errno)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed == [errno.EMFILE] * 3
    assert me.alive


class TestLog:
    def test_a_line_longer_than_a_part_is_cut(self, tmp_path):
        log = output.OutputLog(str(tmp_path / "log"), most_bytes=10, files=3)
        log.write(b"a" * 25)
        parts = [(tmp_path / name).read_bytes() for name in ("log.2", "log.1", "log")]
        assert parts == [b"a" * 10, b"a" * 10, b"a" * 5]

    def test_it_goes_on_where_it_was(self, tmp_path):
        for text in (b"one\n", b"two\n"):
            output.OutputLog(str(tmp_path / "log"), most_bytes=8, files=2).write(text)
        assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"

    def test_a_single_part_begins_anew(self, tmp_path):
        log = output.OutputLog(str(tmp_path / "log"), most_bytes=8, files=1)
        for text in (b"one\n", b"two\n", b"three\n"):
            log.write(text)
        assert (tmp_path / "log").read_bytes() == b"three\n"

    def test_refusals_of_the_system_are_counted_and_reported(self, tmp_path):
        log = output.OutputLog(str(tmp_path / "log"), most_bytes=1000, files=2)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            log.write(b"0123456789abc\n")
            log.write(b"lost\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.write(b"again\n")
        assert (tmp_path / "log").read_bytes() == (
            b"0123456789[dovetail: 9 bytes of output lost, the disk took no more]\nagain\n"
        )


NOBODY = {"uid": 65534, "gid": 65534, "groups": [65534]}


@pytest.fixture
def open_folder():
    """Return a folder that others may enter and list; those of a test are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class TestCopies:
    """Files of the user's choice that get output, too."""

    PRINTS = "echo out; echo err >&2"

    def answer(self, server, rank, **more):
        write_shim_spec(rank, self.PRINTS, **more)
        barrier = StartBarrier(server, rank)
        answer = barrier.answer(boot_s() + LIMIT_S)
        if answer == "prepared":
            barrier.open()
            wait_until(rank.ending)
        barrier.dismiss()
        return answer

    def test_errors_go_apart_and_the_log_has_all(self, server, rank, tmp_path):
        out, err = tmp_path / "new" / "folder" / "out", tmp_path / "err"
        err.write_text("kept\n")
        assert self.answer(server, rank, copies=[str(out), str(err)]) == "prepared"
        assert (out.read_text(), err.read_text()) == ("out\n", "kept\nerr\n")
        assert sorted(rank.log.read_text().splitlines()) == ["err", "out"]

    def test_both_go_to_one_file_and_nothing_is_rotated(self, server, rank, tmp_path):
        out = tmp_path / "out"
        out.write_bytes(b"x" * 1000)
        self.answer(server, rank, copies=[str(out)])
        assert out.read_bytes() == b"x" * 1000 + b"out\nerr\n"

    def test_errors_alone(self, server, rank, tmp_path):
        self.answer(server, rank, copies=[None, str(tmp_path / "err")])
        assert (tmp_path / "err").read_text() == "err\n"

    def test_nothing_is_a_place(self, server, rank):
        assert self.answer(server, rank, copies=[os.devnull]) == "prepared"

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_what_is_no_file_is_refused(self, server, rank, tmp_path, kind):
        out = tmp_path / "out"
        {
            "link": lambda: out.symlink_to(tmp_path / "elsewhere"),
            "fifo": lambda: os.mkfifo(out),
            "folder": out.mkdir,
        }[kind]()
        assert self.answer(server, rank, copies=[str(out)]).startswith("refused its output: ")
        assert not (tmp_path / "elsewhere").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run as another user")
    def test_it_writes_as_the_user(self, server, rank, tmp_path, open_folder):
        theirs = open_folder / "theirs"
        theirs.mkdir()
        theirs.chmod(0o777)
        (theirs / "way").symlink_to(open_folder)
        assert self.answer(server, rank, copies=[str(theirs / "out")], user=NOBODY) == "prepared"
        assert (theirs / "out").stat().st_uid == NOBODY["uid"]
        for place in (open_folder / "out", theirs / "way" / "out", theirs / "way" / "new" / "out"):
            answer = self.answer_of_another(server, tmp_path, str(place))
            assert answer.startswith("refused its output: Permission denied: ")
            assert not place.exists()

    def answer_of_another(self, server, tmp_path, place):
        files = RunFiles(tmp_path, f"j{2 + len(list((tmp_path / 'runs').iterdir()))}.1")
        files.make(whole(a_run("true", name=files.run)))
        return self.answer(server, files.rank(0), copies=[place], user=NOBODY)
