"""The launcher with real processes: the whole life of a rank, observed from outside."""

import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.pools import local
from dovetail.executor.pools.local import LocalPool, why_not_as
from dovetail.executor.pools.runs import supervisor
from dovetail.executor.pools.runs.files import RunFiles, owner_of, whole
from dovetail.executor.pools.runs.processes import ProcessId
from dovetail.executor.pools.shim.kernel import stat_of
from tests.executor.local_runs import Watched, a_run, cleared, left_over, python
from tests.executor.waiting import wait_until

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NOBODY = Owner(name="nobody", uid=65534, gid=65534)
# Leaves its session and its parent, and takes no notice of SIGTERM.
ESCAPE = "setsid sh -c \"trap '' TERM; echo \\$\\$ > escaped; while :; do sleep 1; done\" &"


class Plain(LocalPool):
    """The behaviour of every local pool, and a record of the hooks before a kill."""

    def __init__(self, directory, **settings):
        super().__init__(directory, **settings)
        self.before = []

    def before_kill(self, run, rank):
        self.before.append((run.id, rank))


@pytest.fixture
def state(tmp_path):
    """Return a state directory whose processes are killed at the end."""
    with cleared(tmp_path / "state"):
        yield tmp_path / "state"


@pytest.fixture
def make(state):
    """Return a function that makes a pool there, as services one after another do."""
    pools = []

    def new(*runs, **settings):
        for old in pools:
            old.pool.close()
        pools.append(Watched(Plain(state, **settings)))
        pools[-1].pool.resume(runs)
        return pools[-1]

    yield new
    for old in pools:
        old.pool.close()


@contextmanager
def no_descriptors():
    """Have every descriptor in use that this process may have."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, usual[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_without_descriptors_a_keeper_waits_for_some(make, tmp_path, caplog, monkeypatch):
    steps = []
    step = supervisor.RunSupervisor._guarded_step
    monkeypatch.setattr(
        supervisor.RunSupervisor, "_guarded_step", lambda self: (steps.append(1), step(self))
    )
    pool, end = make(), tmp_path / "end"
    os.mkfifo(end)
    pool.pool.launch(a_run(f"read x < {end}"))
    pool.wait_for("rank_ready")
    writing = os.open(end, os.O_RDWR)
    steps.clear()
    with no_descriptors():
        os.write(writing, b"\n")
        wait_until(lambda: caplog.records)
        time.sleep(1)
        assert len(steps) < 50
        assert len(caplog.records) < 5
    os.close(writing)
    assert pool.wait_for("rank_ended").status == 0


@AS_ROOT
def test_whose_a_run_is_stays_known(make, state):
    pool, home = make(), state / "runs" / "j1.1"
    pool.pool.launch(a_run("exec sleep 1000", owner=NOBODY))
    pool.wait_for("rank_ready")
    assert owner_of(home) == NOBODY.uid
    pool.pool.stop("j1.1", 0.0)
    pool.wait_for("rank_ended")
    pool.pool.release("j1.1")
    assert owner_of(home) == NOBODY.uid
    assert (home / "owner").read_text() == str(NOBODY.uid)
    assert not (home / "run.json").exists()


def test_whose_a_run_is_stays_known_if_its_release_is_cut_short(state, monkeypatch):
    other = Owner(name="other", uid=4242, gid=4242)
    files = RunFiles(state, "j1.1")
    part = whole(a_run("true", owner=other))
    files.make(part)

    def killed(*_):
        raise KeyboardInterrupt

    for cut in ("ftruncate", "rename"):
        files.name(part)
        assert owner_of(files.directory) == other.uid
        with monkeypatch.context() as patch:
            patch.setattr(os, cut, killed)
            with pytest.raises(KeyboardInterrupt):
                files.forget_specs(part)
        assert owner_of(files.directory) == other.uid
        assert files.read_part() is None
    files.forget_specs(part)
    assert {path.name for path in files.directory.iterdir()} == {"owner", "rank0"}


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "rename"])
def test_what_is_secret_goes_even_if_nothing_can_be_written(make, state, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    released = []
    monkeypatch.setattr(Plain, "released", lambda self, run: released.append(run.id))
    pool = make()
    pool.pool.launch(a_run("true"))
    pool.wait_for("rank_ended")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        pool.pool.release("j1.1")
    assert released == ["j1.1"]
    assert not (state / "runs" / "j1.1" / "run.json").exists()


class TestPrelaunch:
    """A run of one rank is sent to the start barrier in the service's thread."""

    @pytest.fixture
    def quick(self, make, monkeypatch):
        monkeypatch.setattr(Plain, "quick_hooks", True)
        return make()

    def test_the_program_starts_before_its_supervisor_has_a_thread(self, quick, monkeypatch):
        begin = supervisor.RunSupervisor.begin
        monkeypatch.setattr(supervisor.RunSupervisor, "begin", lambda self: None)
        run = a_run("echo up; exec sleep 1000")
        quick.pool.prelaunch(run)
        assert log(quick) == ""
        quick.pool.launch(run)
        wait_for_log(quick, "up")
        monkeypatch.setattr(supervisor.RunSupervisor, "begin", begin)
        quick.pool.launch(run)
        quick.wait_for("rank_ready")

    def test_what_is_stopped_right_after_its_launch_has_its_grace(self, quick, monkeypatch):
        begin = supervisor.RunSupervisor.begin
        monkeypatch.setattr(supervisor.RunSupervisor, "begin", lambda self: None)
        run = a_run("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")
        quick.pool.prelaunch(run)
        quick.pool.launch(run)
        wait_for_log(quick, "up")
        monkeypatch.setattr(supervisor.RunSupervisor, "begin", begin)
        quick.pool.stop(run.id, 60.0)
        wait_until(lambda: {"rank_ended", "rank_gone", "rank_refused"} & {*dict(quick.kinds())})
        assert "bye\n" in log(quick)
        assert quick.wait_for("rank_ended").status == 3

    def test_without_a_launch_it_is_refused_in_time(self, quick, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor.COMMIT_S", 0.1)
        quick.pool.prelaunch(a_run("echo up"))
        assert quick.wait_for("rank_refused").later
        assert log(quick) == ""

    def test_what_is_stopped_before_its_launch_never_runs(self, quick):
        run = a_run("echo up")
        quick.pool.prelaunch(run)
        quick.pool.stop(run.id, 0.0)
        quick.pool.launch(run)
        assert "stopped before it was started" in quick.wait_for("rank_refused").reason
        assert log(quick) == ""


def log(pool, run="j1.1", rank=0):
    path = pool.pool.log_path(run, rank)
    return Path(path).read_text() if path else ""


def wait_for_log(pool, text, run="j1.1", rank=0):
    wait_until(lambda: text in log(pool, run, rank), what=f"{text!r} in the log")


def escaped(directory):
    """Return the process that ESCAPE made, once it is there."""
    path = directory / "escaped"
    wait_until(lambda: path.exists() and path.read_text().strip())
    pid = int(path.read_text())
    return ProcessId(pid, stat_of(pid).started)


class TestOutput:
    @pytest.mark.usefixtures("shadowed")
    def test_both_streams_are_in_the_log(self, make, state):
        pool = make()
        pool.pool.launch(a_run("echo out; echo err >&2; exit 3"))
        assert pool.wait_for("rank_ended").status == 3
        assert log(pool) == "out\nerr\n"
        wait_until(lambda: left_over(state) == [])

    def test_it_is_private_unless_it_is_public(self, make):
        pool = make()
        for name, public in (("j1.1", False), ("j2.1", True)):
            pool.pool.launch(a_run("true", name=name, public_log=public))
            pool.wait_for("rank_ended", run=name)
        modes = [os.stat(pool.pool.log_path(run, 0)).st_mode & 0o777 for run in ("j1.1", "j2.1")]
        assert modes == [0o600, 0o644]

    def test_it_is_kept_in_parts_that_end_with_a_line(self, make):
        pool = make(log_bytes=1000, log_files=3)
        # 500 lines of 10 bytes: 100 a part, and of five parts the last three are kept.
        pool.pool.launch(
            a_run("i=0; while [ $i -lt 500 ]; do printf '%09d\\n' $i; i=$((i+1)); done")
        )
        pool.wait_for("rank_ended")
        newest = pool.pool.log_path("j1.1", 0)
        parts = [Path(f"{newest}{end}").read_text().splitlines() for end in (".2", ".1", "")]
        assert [line for part in parts for line in part] == [f"{i:09d}" for i in range(200, 500)]
        assert [len(part) for part in parts] == [100, 100, 100]
        assert not Path(f"{newest}.3").exists()

    def test_lines_of_progress_are_counted(self, make):
        pool = make()
        run = a_run("echo 'step 41/90'; sleep 600", progress_pattern=r"step (\d+)/")
        pool.pool.launch(run)
        wait_until(lambda: pool.pool.progress("j1.1") not in ((), [None]))
        assert pool.pool.progress("j1.1")[0].iterations == 41

    def test_a_pattern_that_takes_for_ever_does_not_delay_a_stop_of_its_job(self, make):
        pool = make()
        line = "a" * 60 + "!"
        pool.pool.launch(a_run(f"echo {line}; sleep 600", progress_pattern="(a+)+$"))
        wait_until(lambda: log(pool))
        pool.pool.stop("j1.1", 0.2)
        pool.wait_for("rank_ended")

    def test_calls_of_the_job_are_counted(self, make):
        pool = make()
        program = "from dovetail_progress import *\nfor _ in range(7): latency(1e-6), step()"
        pool.pool.launch(a_run(python(program)))
        assert pool.wait_for("rank_ended").status == 0
        [found] = pool.pool.progress("j1.1")
        assert found.iterations == 7
        assert found.latencies == ((0, 7),)


class TestEnvironment:
    def run_env(self, pool, **spec):
        pool.pool.launch(a_run(("env", "-0"), **spec))
        pool.wait_for("rank_ended")
        return dict(entry.split("=", 1) for entry in log(pool).split("\0") if entry)

    def test_it_is_the_submitters(self, make):
        env = self.run_env(make(), env={"PATH": "/usr/bin:/bin", "MINE": "a b\nc", "HOME": "/h"})
        assert (env["PATH"], env["MINE"], env["HOME"]) == ("/usr/bin:/bin", "a b\nc", "/h")
        assert (env["DOVETAIL_JOB"], env["DOVETAIL_RUN"], env["DOVETAIL_RANK"]) == (
            "j1",
            "j1.1",
            "0",
        )

    def test_what_would_lead_it_astray_is_taken_out(self, make):
        misleading = {
            "CUDA_VISIBLE_DEVICES": "0",
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/other",
            "DOVETAIL_JOB": "j9",
            "RANK": "3",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": "x",
        }
        env = self.run_env(make(), env={"PATH": os.defpath, **misleading})
        assert {name: env.get(name) for name in misleading} == {
            **dict.fromkeys(misleading),
            "DOVETAIL_JOB": "j1",
        }

    def test_nothing_of_the_service_leaks(self, make, monkeypatch):
        monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
        assert "SECRET_OF_THE_SERVICE" not in self.run_env(make(), env={"PATH": os.defpath})

    def test_nor_do_its_open_files(self, make):
        ends = os.pipe()
        for end in ends:
            os.set_inheritable(end, True)
        pool = make()
        pool.pool.launch(a_run("exec readlink /proc/self/fd/*"))
        pool.wait_for("rank_ended")
        for end in ends:
            os.close(end)
        # Its input, its output twice, and the page for its progress.
        first, second, page, third, *others = log(pool).splitlines()
        assert page.startswith("/memfd:dovetail-progress")
        assert first == "/dev/null"
        assert second == third
        assert second.startswith("pipe:")
        assert not [name for name in others if name.startswith(("pipe:", "socket:"))]

    def test_ranks_of_gangs_find_each_other(self, make):
        pool = make()
        for name in ("j1.1", "j2.1"):
            run = a_run(
                "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_PORT; sleep 600", name=name, gpus="ab"
            )
            pool.pool.launch(run)
        said = {}
        for name in ("j1.1", "j2.1"):
            for rank in (0, 1):
                wait_for_log(pool, "\n", name, rank)
                said[name, rank] = log(pool, name, rank).split()
        assert {key: words[:3] for key, words in said.items()} == {
            (name, rank): [str(rank), "2", "0"] for name in ("j1.1", "j2.1") for rank in (0, 1)
        }
        ports = [{said[name, rank][3] for rank in (0, 1)} for name in ("j1.1", "j2.1")]
        assert [len(ports[0]), len(ports[1]), len(ports[0] | ports[1])] == [1, 1, 2]

    def test_it_is_forgotten_when_the_run_is_released(self, make, state):
        pool = make()
        pool.pool.launch(a_run("true", env={"PASSWORD": "x"}))
        pool.wait_for("rank_ended")
        spec = state / "runs" / "j1.1" / "rank0" / "spec.json"
        assert spec.stat().st_mode & 0o077 == 0
        pool.pool.release("j1.1")
        assert {path.name for path in (state / "runs").rglob("*.json")} == {
            "started.json",
            "exit.json",
        }
        assert log(pool) == ""


class TestRefusals:
    @pytest.mark.parametrize(
        ("spec", "reason"),
        [
            (
                {"command": ("no-such-program",)},
                "rank 0: the program is not found: no-such-program",
            ),
            ({"command": ("/etc/passwd",)}, "rank 0: the program cannot be executed: /etc/passwd"),
            (
                {"command": ("true",), "cwd": "/no/such"},
                "rank 0: No such file or directory: /no/such",
            ),
            ({"command": ("true",), "cwd": "/etc/passwd"}, "rank 0: Not a directory: /etc/passwd"),
            (
                {"command": ("true",), "env": {"A": "\0"}},
                "rank 0: a NUL character is in its command or environment",
            ),
            (
                {"command": ("true",), "env": {"A=": "b"}},
                "rank 0: an environment variable's name is empty or has a '=' in it",
            ),
        ],
    )
    def test_a_rank_that_cannot_be_started_is_reported_in_a_line(self, make, state, spec, reason):
        pool = make()
        pool.pool.launch(a_run(**spec))
        refused = pool.wait_for("rank_refused")
        assert refused.reason == reason
        assert pool.kinds() == [("rank_refused", 0)]
        wait_until(lambda: left_over(state) == [])

    def test_a_program_that_the_kernel_refuses(self, make, tmp_path):
        program = tmp_path / "program"
        program.write_bytes(b"\x7fELF\0\0\0\0")
        program.chmod(0o755)
        pool = make()
        pool.pool.launch(a_run((str(program),)))
        assert pool.wait_for("rank_refused").reason == f"rank 0: Exec format error: {program}"

    def test_a_launcher_that_says_nothing_is_no_fault_of_its_job(self, make, monkeypatch, state):
        monkeypatch.setattr("sys.executable", "/bin/false")
        pool = make()
        pool.pool.launch(a_run("true"))
        refused = pool.wait_for("rank_refused")
        assert refused.reason == "rank 0: its launcher died or did not answer"
        assert refused.later
        wait_until(lambda: left_over(state) == [])

    def test_a_gang_starts_whole_or_not_at_all(self, make, tmp_path, state):
        pool = make()
        # Its ranks share a command, so it is the device that makes rank 1 impossible.
        pool.pool.rank_environment = lambda run, rank: {"PATH": "/none"} if rank else {}
        pool.pool.launch(a_run(("touch", f"{tmp_path}/touched"), gpus="ab"))
        for rank in (0, 1):
            reason = pool.wait_for("rank_refused", rank).reason
            assert reason == "rank 1: the program is not found: touch"
        assert not (tmp_path / "touched").exists()
        wait_until(lambda: left_over(state) == [])

    @AS_ROOT
    def test_a_service_of_another_user(self):
        assert why_not_as(NOBODY) is None
        os.seteuid(1)
        try:
            reason = why_not_as(NOBODY)
        finally:
            os.seteuid(0)
        assert reason == "a service of user 1 cannot run jobs of nobody (user 65534)"


class TestStopping:
    POLITE = python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    DEAF = "trap '' TERM; echo up; while :; do sleep 1; done"

    def test_a_responsive_job_is_only_asked(self, make):
        pool = make()
        pool.pool.launch(a_run(self.POLITE))
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 60.0)
        assert pool.wait_for("rank_ended").status == 7
        assert pool.pool.before == []

    def test_a_job_that_ignores_it_is_killed_after_the_hook(self, make, state):
        pool = make()
        pool.pool.launch(a_run(self.DEAF))
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 0.2)
        assert pool.wait_for("rank_ended").status == -9
        assert pool.pool.before == [("j1.1", 0)]
        wait_until(lambda: left_over(state) == [])

    def test_a_stopped_process_gets_the_signal_too(self, make):
        pool = make()
        pool.pool.launch(a_run(self.POLITE))
        wait_for_log(pool, "up")
        os.kill(pool.wait_for("rank_started").pid, signal.SIGSTOP)
        pool.pool.stop("j1.1", 60.0)
        assert pool.wait_for("rank_ended").status == 7

    def test_the_whole_process_group_is_asked(self, make):
        pool = make()
        pool.pool.launch(
            a_run("sh -c 'trap \"echo asked; exit\" TERM; echo up; read x < fifo'", cwd=self.fifo)
        )
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 60.0)
        pool.wait_for("rank_ended")
        assert "asked" in log(pool)

    @pytest.fixture(autouse=True)
    def make_fifo(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        self.fifo = str(tmp_path)

    def test_a_second_order_may_only_shorten_the_grace(self, make):
        pool = make()
        pool.pool.launch(a_run(self.DEAF))
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 600.0)
        pool.pool.stop("j1.1", 0.0)
        pool.pool.stop("j1.1", 600.0)
        assert pool.wait_for("rank_ended").status == -9

    def test_a_stop_goes_on_where_the_service_left_it(self, make, state):
        run = a_run(self.DEAF)
        first = make()
        first.pool.launch(run)
        wait_for_log(first, "up")
        first.pool.stop("j1.1", 0.5)
        wait_until((state / "runs/j1.1/stop.json").exists)
        second = make(run)
        # The order is not given again.
        ended = second.wait_for("rank_ended")
        assert (ended.status, ended.asked) == (-9, True)

    def test_a_launcher_that_does_not_answer_is_killed_with_all_it_guards(
        self, make, state, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor.SHIM_KILL_S", 0.3)
        pool = make()
        pool.pool.launch(a_run(f"{ESCAPE} sleep 600", cwd=str(tmp_path)))
        other = escaped(tmp_path)
        record = json.loads((state / "runs/j1.1/rank0/started.json").read_text())
        os.kill(record["shim"], signal.SIGSTOP)
        pool.pool.stop("j1.1", 0.0)
        assert pool.wait_for("rank_gone").reason == "its launcher was killed"
        assert not other.alive
        assert left_over(state) == []


class TestPauses:
    def test_all_of_its_processes_are_stopped_also_in_other_sessions(self, make, state):
        pool = make()
        count = 'for i in $(seq 900); do echo "$0 $i"; sleep 0.05; done'
        run = a_run(f"setsid sh -c '{count}' other & sh -c '{count}' own; wait")
        pool.pool.launch(run)
        pool.wait_for("rank_ready")
        wait_for_log(pool, "other 3")
        pool.pool.pause(run.id, True)

        def stopped():
            found = [stat_of(process.pid) for process in left_over(state)]
            return sum(stat is not None and stat.state == "T" for stat in found) >= 3

        wait_until(stopped)
        time.sleep(0.3)
        before = log(pool)
        time.sleep(0.5)
        assert log(pool) == before
        pool.pool.pause(run.id, False)
        wait_until(lambda: len(log(pool)) > len(before) + 20)
        pool.pool.pause(run.id, True)
        wait_until(stopped)
        pool.pool.stop(run.id, 20.0)
        assert pool.wait_for("rank_ended").status == -15


class TestNothingIsLeft:
    def test_what_outlives_the_rank_is_ended_with_it(self, make, state, tmp_path):
        pool = make()
        pool.pool.launch(
            a_run(f"{ESCAPE} while ! [ -s escaped ]; do sleep 0.1; done", cwd=str(tmp_path))
        )
        other = escaped(tmp_path)
        assert pool.wait_for("rank_ended").status == 0
        assert not other.alive
        wait_until(lambda: left_over(state) == [])

    def test_a_kill_of_the_launcher_leaves_nothing(self, make, state, tmp_path):
        pool = make()
        pool.pool.launch(a_run(f"{ESCAPE} sleep 600", cwd=str(tmp_path)))
        other, rank = escaped(tmp_path), pool.wait_for("rank_started")
        record = json.loads((state / "runs/j1.1/rank0/started.json").read_text())
        os.kill(record["shim"], signal.SIGKILL)
        assert pool.wait_for("rank_gone").reason == "its launcher was killed"
        assert not other.alive
        assert not ProcessId(rank.pid, rank.pid_started).alive
        assert left_over(state) == []

    def test_nor_does_an_unobserved_end(self, make, state, tmp_path):
        run = a_run(f"{ESCAPE} sleep 600", cwd=str(tmp_path))
        first = make()
        first.pool.launch(run)
        other = escaped(tmp_path)
        record = json.loads((state / "runs/j1.1/rank0/started.json").read_text())
        first.pool.close()
        os.kill(record["shim"], signal.SIGKILL)
        second = make(run)
        assert second.wait_for("rank_gone").reason == "its launcher was killed"
        assert not other.alive
        assert left_over(state) == []

    def test_a_launcher_whose_directory_was_removed_ends_with_its_job(self, make, state, tmp_path):
        pool = make()
        pool.pool.launch(a_run(f"until [ -e {tmp_path}/end ]; do sleep 0.05; done"))
        pool.wait_for("rank_ready")
        shutil.rmtree(state / "runs" / "j1.1")
        (tmp_path / "end").touch()
        wait_until(lambda: not left_over(state))

    def test_a_job_that_is_killed_is_reported_with_its_signal(self, make):
        pool = make()
        pool.pool.launch(a_run("kill -KILL $$"))
        assert pool.wait_for("rank_ended").status == -9


class TestFoundAgain:
    """By pid, start time and boot; never by pid alone."""

    @pytest.fixture
    def left(self, make, state):
        """Return a run whose service has gone, and the path of its files."""
        run = a_run(("sleep", "600"))
        pool = make()
        pool.pool.launch(run)
        pool.wait_for("rank_ready")
        pool.pool.close()
        return run, state / "runs/j1.1/rank0/started.json"

    def test_after_a_restart_of_the_machine_it_is_gone(self, make, left):
        run, path = left
        path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
        pool = make(run)
        assert pool.wait_for("rank_gone").reason == "the machine was restarted"

    def test_after_a_restart_of_the_machine_a_run_without_a_trace_is_gone(self, make, state):
        run = a_run("touch started", cwd=str(state))
        make().pool.close()
        (state / "boot").write_text("another")
        for _ in range(2):
            pool = make(run)
            assert pool.wait_for("rank_gone").reason == "the machine was restarted"
            pool.pool.launch(run)
            pool.pool.close()
        assert not (state / "started").exists()

    def test_another_process_with_its_number_is_not_taken_for_it(self, make, left, state):
        run, path = left
        record = json.loads(path.read_text())
        me = subprocess.Popen(["sleep", "600"])
        try:
            path.write_text(json.dumps({**record, "shim": me.pid}))
            pool = make(run)
            # The real shim is found by its token, the stranger is left in peace.
            pool.wait_for("rank_gone")
            assert left_over(state) == []
            assert me.poll() is None
        finally:
            me.kill()
            me.wait()

    def test_the_devices_of_a_damaged_record_are_busy_until_it_is_stopped(self, make, left, state):
        run, path = left
        path.write_bytes(b"\0" * 40)
        pool = make(run)
        assert "started.json: cannot be read" in pool.wait_for("rank_lost").reason
        assert len(left_over(state)) == 2
        pool.pool.stop("j1.1", 0.0)
        pool.wait_for("rank_gone")
        assert left_over(state) == []

    def test_a_record_that_can_be_read_again_is_believed_again(
        self, make, left, state, monkeypatch
    ):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._TROUBLE_S", 0.05)
        run, path = left
        record = path.read_text()
        path.write_text("")
        pool = make(run)
        pool.wait_for("rank_lost")
        path.write_text(record)
        pool.wait_for("rank_ready")
        assert pool.kinds() == [("rank_lost", 0), ("rank_started", 0), ("rank_ready", 0)]

    def test_a_damaged_record_of_what_runs_no_more(self, make, left, state):
        run, path = left
        for process in left_over(state):
            process.send(signal.SIGKILL)
        wait_until(lambda: not left_over(state))
        path.write_text("{}")
        assert make(run).wait_for("rank_gone").reason.endswith("started.json: cannot be understood")

    def test_one_rank_of_a_gang_that_has_no_trace_is_started_on_the_same_port(self, make, state):
        run = a_run("echo $MASTER_PORT; exec sleep 600", gpus="ab")
        first = make()
        first.pool.launch(run)
        for rank in (0, 1):
            first.wait_for("rank_ready", rank)
            wait_for_log(first, "\n", rank=rank)
        first.pool.close()
        record = json.loads((state / "runs/j1.1/rank1/started.json").read_text())
        os.kill(record["shim"], signal.SIGKILL)
        wait_until(lambda: len(left_over(state)) == 2)
        shutil.rmtree(state / "runs/j1.1/rank1")
        second = make(run)
        second.pool.launch(run)
        for rank in (0, 1):
            second.wait_for("rank_ready", rank)
        wait_for_log(second, "\n", rank=1)
        assert log(second, rank=0) == log(second, rank=1)


@AS_ROOT
class TestUsers:
    @pytest.fixture
    def home(self):
        """Return a directory that every user can reach."""
        path = Path(tempfile.mkdtemp(prefix="dovetail-test-"))
        path.chmod(0o711)
        with cleared(path / "state"):
            yield path
        shutil.rmtree(path)

    def test_a_job_runs_as_its_owner(self, home):
        pool = Watched(Plain(home / "state"))
        command = "id -u; id -g; id -G; echo $HOME $USER; umask; cat /etc/shadow"
        pool.pool.launch(a_run(command, owner=NOBODY, env={}))
        pool.wait_for("rank_ended")
        said = log(pool).splitlines()
        assert said[:5] == ["65534", "65534", "65534", "/nonexistent nobody", "0022"]
        assert "Permission denied" in said[5]
        path = pool.pool.log_path("j1.1", 0)
        found = os.stat(path)
        assert (found.st_uid, found.st_mode & 0o707) == (0, 0o600)
        # Its owner may read it, and nobody else.
        for user, word in ((NOBODY.uid, "read"), (12345, "may not")):
            told = subprocess.run(
                ["sh", "-c", 'cat "$0" > /dev/null && echo read || echo may not', path],
                user=user, group=user, extra_groups=[], capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert told.stdout.strip() == word
        pool.pool.close()

    def test_it_may_write_its_progress_and_nothing_else(self, home):
        pool = Watched(Plain(home / "state"))
        command = (
            "printf x 1<> $DOVETAIL_PROGRESS && echo written\n"
            "cat /dev/zero > $DOVETAIL_PROGRESS || echo bounded\n"
            "cat /dev/zero >> $DOVETAIL_PROGRESS || echo bounded\n"
            "cat /dev/zero 1<> $DOVETAIL_PROGRESS || echo bounded\n"
            "dd if=/dev/zero of=$DOVETAIL_PROGRESS conv=notrunc seek=1 || echo bounded\n"
            f"D={home}/state/runs/j1.1/rank0\n"
            "echo more >> $D/log || echo output\n"
            "cat $D/spec.json || echo private\n"
            "echo '{}' > $D/exit.json || echo refused\n"
            "rm -f $D/started.json || echo kept\n"
            "ls $D/../.. || echo hidden"
        )
        pool.pool.launch(a_run(command, owner=NOBODY))
        pool.wait_for("rank_ended")
        said = [line for line in log(pool).splitlines() if " " not in line]
        assert said == [
            *("written", *["bounded"] * 4, "output", "private", "refused", "kept", "hidden")
        ]
        pool.pool.close()

    def test_a_directory_that_its_owner_may_not_enter(self, home):
        (home / "private").mkdir(mode=0o700)
        pool = Watched(Plain(home / "state"))
        pool.pool.launch(a_run("true", owner=NOBODY, cwd=str(home / "private")))
        reason = pool.wait_for("rank_refused").reason
        assert reason == f"rank 0: Permission denied: {home}/private"
        pool.pool.close()

    def test_it_is_stopped_and_killed_like_any_other(self, home):
        pool = Watched(Plain(home / "state"))
        pool.pool.launch(a_run("trap '' TERM; echo up; while :; do sleep 1; done", owner=NOBODY))
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 0.1)
        assert pool.wait_for("rank_ended").status == -9
        pool.pool.close()


@AS_ROOT
class TestFullDisk:
    """On a real file system of 512 KiB."""

    @pytest.fixture
    def small(self, tmp_path):
        path = tmp_path / "small"
        path.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(path)], check=False
        )
        if mounted.returncode:
            pytest.skip("no file system can be mounted here")
        with cleared(path / "state"):
            yield path
        subprocess.run(["umount", str(path)], check=True)

    def fill(self, path):
        with open(path / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    def test_nothing_is_started_that_could_not_be_reported(self, small):
        pool = Watched(Plain(small / "state"))
        self.fill(small)
        pool.pool.launch(a_run("true"))
        assert "No space left on device" in pool.wait_for("rank_refused").reason
        wait_until(lambda: left_over(small / "state") == [])
        pool.pool.close()

    def test_a_job_runs_on_and_its_status_is_kept(self, small, tmp_path):
        pool = Watched(Plain(small / "state"))
        os.mkfifo(tmp_path / "fifo")
        chatty = "while :; do echo filling up the disk; done & read x < fifo; kill $!; exit 6"
        pool.pool.launch(a_run(chatty, cwd=str(tmp_path)))
        pool.wait_for("rank_ready")
        self.fill(small)
        wait_until(lambda: os.statvfs(small).f_bavail == 0)
        with open(tmp_path / "fifo", "w") as fifo:
            fifo.write("end\n")
        assert pool.wait_for("rank_ended").status == 6
        pool.pool.close()


class TestAKeeperInTrouble:
    """A hook that fails makes devices busy, never free."""

    def test_while_it_is_asked_whether_a_rank_is_ready(self, make, state, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._TROUBLE_S", 0.05)
        pool = make()
        failures = iter((True, True, False))

        def is_ready(run, rank, pid):
            if next(failures, False):
                raise RuntimeError("the device does not answer")
            return True

        pool.pool.is_ready = is_ready
        pool.pool.launch(a_run(("sleep", "600")))
        pool.wait_for("rank_ready")
        assert pool.kinds() == [("rank_started", 0), ("rank_lost", 0), ("rank_ready", 0)]
        assert pool.events[1].reason == "its supervisor failed: the device does not answer"
        assert pool.pool.trouble == ""

    def test_it_says_so_as_long_as_that_lasts(self, make):
        pool = make()

        def is_ready(run, rank, pid):
            raise RuntimeError("the device does not answer")

        pool.pool.is_ready = is_ready
        pool.pool.launch(a_run(("sleep", "600")))
        pool.wait_for("rank_lost")
        assert pool.pool.trouble == "j1.1: its supervisor failed: the device does not answer"
        pool.pool.stop("j1.1", 0.0)
        pool.wait_for("rank_ended")
        assert pool.pool.trouble == ""

    def test_what_has_ended_is_not_looked_at_without_a_pause(self, make, tmp_path, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._TROUBLE_S", 3600.0)
        pool, looks = make(), []

        def ending(files):
            looks.append(files)
            raise OSError("too many open files")

        os.mkfifo(tmp_path / "fifo")
        pool.pool.launch(a_run(f"read x < {tmp_path}/fifo; exit 3"))
        pool.wait_for("rank_ready")
        monkeypatch.setattr("dovetail.executor.pools.runs.files.RankFiles.ending", ending)
        (tmp_path / "fifo").write_text("end\n")
        pool.wait_for("rank_lost")
        # Only orders wake it: each makes it look once.
        for more in range(3):
            wait_until(lambda seen=more: len(looks) > seen)
            pool.pool.stop("j1.1", 600.0)
        wait_until(lambda: len(looks) > 3)
        assert len(looks) == 4

    @pytest.mark.parametrize("grace_s", [30 * 86_400.0, 1e9, 1e15])
    def test_no_grace_is_too_long_for_it(self, make, grace_s):
        pool = make()
        pool.pool.launch(a_run("trap '' TERM; echo up; while :; do sleep 1; done"))
        pool.pool.launch(a_run(("sleep", "600"), name="j2.1"))
        wait_for_log(pool, "up")
        pool.wait_for("rank_ready", run="j2.1")
        for run in ("j1.1", "j2.1"):
            pool.pool.stop(run, grace_s)
        assert pool.wait_for("rank_ended", run="j2.1").status == -signal.SIGTERM
        pool.pool.stop("j1.1", 0.0)
        assert pool.wait_for("rank_ended", run="j1.1").status == -signal.SIGKILL

    def test_an_end_that_a_stopped_launcher_does_not_report(self, make, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._LOOK_S", 0.05)
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._UNREPORTED_S", 0.2)
        pool = make()
        pool.pool.launch(a_run(("sleep", "600")))
        pid = pool.wait_for("rank_started").pid
        shim = stat_of(pid).parent
        os.kill(shim, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        reason = pool.wait_for("rank_lost").reason
        assert reason.startswith("its process has ended")
        assert pool.pool.trouble == f"j1.1: {reason}"
        os.kill(shim, signal.SIGCONT)
        assert pool.wait_for("rank_ended").status == -signal.SIGKILL
        assert pool.pool.trouble == ""

    def test_while_it_launches(self, make, state):
        pool = make()
        pool.pool.rank_environment = lambda run, rank: {}["no such device"]
        pool.pool.launch(a_run("true"))
        assert pool.wait_for("rank_refused").reason == "'no such device'"
        wait_until(lambda: left_over(state) == [])

    def test_without_descriptors_a_launch_is_refused_and_leaves_none_open(
        self, make, state, monkeypatch
    ):
        def exhausted(*_):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        pool = make()
        monkeypatch.setattr(os, "pidfd_open", exhausted)
        before = len(os.listdir("/proc/self/fd"))
        # The first rank is at the start barrier when the second cannot be brought to one.
        pool.pool.rank_environment = lambda run, rank: {"": ""} if rank else {}
        pool.pool.launch(a_run("true", gpus="ab"))
        for rank in (0, 1):
            pool.wait_for("rank_refused", rank)
        monkeypatch.setattr(socket, "socketpair", exhausted)
        pool.pool.launch(a_run("true", name="j2.1"))
        refused = pool.wait_for("rank_refused", run="j2.1")
        assert "Too many open files" in refused.reason
        assert refused.later
        # One of its own for each of the two supervisors.
        assert len(os.listdir("/proc/self/fd")) == before + 2
        wait_until(lambda: left_over(state) == [])

    def test_before_a_kill(self, make, state, monkeypatch):
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor.SHIM_KILL_S", 0.1)
        monkeypatch.setattr("dovetail.executor.pools.runs.supervisor._TROUBLE_S", 0.05)
        pool = make()

        def before_kill(run, rank):
            raise RuntimeError("the device does not answer")

        pool.pool.before_kill = before_kill
        pool.pool.launch(a_run("trap '' TERM; echo up; while :; do sleep 1; done"))
        wait_for_log(pool, "up")
        pool.pool.stop("j1.1", 0.0)
        # Its launcher is killed after the job, and may have reported the job's end before.
        wait_until(lambda: {("rank_ended", 0), ("rank_gone", 0)} & {*pool.kinds()})
        wait_until(lambda: left_over(state) == [])


def test_only_what_was_released_long_ago_is_removed(make, state):
    pool = make()
    for name in ("j1.1", "j2.1", "j3.1"):
        pool.pool.launch(a_run("true", name=name))
        pool.wait_for("rank_ended", run=name)
    pool.pool.launch(a_run(("sleep", "600"), name="j4.1"))
    pool.wait_for("rank_ready", run="j4.1")
    for name in ("j1.1", "j2.1"):
        pool.pool.release(name)
    (state / "runs" / "no run").mkdir()
    old = [
        path for path in (state / "runs").rglob("*") if path.is_dir() and "j2.1" not in str(path)
    ]
    for path in old:
        os.utime(path, (0, 0))
    pool.pool.prune(keep_s=3600.0)
    assert not (state / "runs/j1.1").exists()
    assert {path.name for path in (state / "runs").iterdir()} == {"j2.1", "j3.1", "j4.1", "no run"}
    # No service keeps it: only its specification says that it was not released.
    pool.pool.close()
    pool.pool.prune(keep_s=3600.0)
    assert (state / "runs/j3.1").exists()


def test_many_at_once(make, state):
    pool = make()
    names = [f"j{k}.1" for k in range(1, 17)]
    for k, name in enumerate(names):
        pool.pool.launch(a_run(f"exit {k}", name=name))
    ended = {name: pool.wait_for("rank_ended", run=name).status for name in names}
    assert ended == {name: k for k, name in enumerate(names)}
    for name in names:
        pool.pool.release(name)
    wait_until(lambda: left_over(state) == [])


def test_ids_that_are_no_file_names_are_refused(make):
    with pytest.raises(Exception, match="a run's id must be letters"):
        make().pool.log_path("../j1", 0)


def test_at_the_end_runs_that_hang_are_not_waited_for_one_after_another(state, monkeypatch):
    hanging = threading.Semaphore(0)
    go_on = threading.Event()

    class Hanging(Plain):
        def rank_bounds(self, run, rank):
            hanging.release()
            go_on.wait()
            return super().rank_bounds(run, rank)

    # Were one waited for by itself, it would not end within this test.
    monkeypatch.setattr(local, "LEAVE_S", 1.0)
    monkeypatch.setattr(supervisor, "LEAVE_S", 3600.0)
    pool = Hanging(state)
    names = [f"j{k}.1" for k in range(3)]
    for name in names:
        pool.launch(a_run("true", name=name))
    for _ in names:
        hanging.acquire()
    threads = [kept._thread for kept in pool._supervisors.values()]
    ending = threading.Thread(target=pool.close, daemon=True)
    ending.start()
    wait_until(lambda: not ending.is_alive())
    go_on.set()
    for thread in threads:
        thread.join()
