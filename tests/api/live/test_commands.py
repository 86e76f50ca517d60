"""The commands of live mode from end to end: real services, real processes."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from itertools import pairwise
from pathlib import Path

import pytest

from dovetail.live.client import Client
from tests.api.live.services import ME, TRUTH, served
from tests.command_line import status_of
from tests.executor.waiting import LIMIT_S, wait_until


@pytest.fixture
def run(capfdbinary, monkeypatch, short_path):
    """Run the command line in this process; return exit status, output and errors."""
    monkeypatch.setenv("DOVETAIL_HOME", str(short_path / "home"))
    monkeypatch.delenv("DOVETAIL_SERVICE", raising=False)

    def call(*arguments):
        status = status_of(*arguments)
        sys.stdout.flush()
        output = capfdbinary.readouterr()
        return status, output.out.decode(), output.err.decode()

    return call


@pytest.fixture
def truth(short_path):
    """Return the file of an instance to simulate."""
    path = short_path / "truth.json"
    path.write_text(json.dumps(TRUTH))
    return path


@pytest.fixture(scope="module")
def home():
    """Return the directory of a service whose pool is simulated, started as people start it."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        path = Path(folder) / "truth.json"
        path.write_text(json.dumps(TRUTH))
        with served(folder, "--pool", f"simulated:{path}"):
            yield folder


@pytest.fixture
def simulated(home, monkeypatch, run):
    """Let commands mean that service; at the end its devices are free again."""
    monkeypatch.setenv("DOVETAIL_HOME", home)
    yield
    with Client() as client:
        for job in client.jobs():
            client.cancel(job.id)
            client.wait(job.id)
        client.drain([], on=False)


def submitted(run, *options, command=("train", "work_s=60")):
    status, out, err = run("submit", "--workload", "resnet", *options, "--", *command)
    assert (status, err) == (0, "")
    return out.strip()


def view(run, job):
    status, out, _ = run("show", job, "--json")
    assert status == 0
    return json.loads(out)


# httpcore leaves the socket open on which it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_jobs_outlive_services_that_are_killed_or_ended(short_path, truth, run):
    home = short_path / "home"
    options = ("--pool", f"simulated:{truth}")
    with served(home, *options) as (process, greeting):
        assert greeting == f"serving the simulated pool, 2 devices, at {home}/api.sock\n"
        assert json.loads((home / "service.json").read_text())["pid"] == process.pid
        job = submitted(run, "--memory-percent", "40")
        wait_until(lambda: view(run, job)["state"] == "profiling")
        shown = r"memory limit +40 % of its GPU a worker \(6,400 MiB\)\n"
        assert re.search(shown, run("show", job)[1])
        process.kill()
        process.wait(timeout=LIMIT_S)
    status, _, err = run("queue")
    gc.collect()
    assert status == 2
    assert err.startswith(f"dovetail: no service answers at {home}/api.sock")
    with served(home, *options) as (process, _):
        found = view(run, job)
        assert (found["state"], found["runs"]) == ("profiling", 1)
        assert (found["memory_mib"], found["memory_percent"]) == (None, 40)
        assert found["memory_limit_mib"] == 0.4 * 16_000
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 0
    assert not (home / "service.json").exists()
    assert not (home / "api.sock").exists()
    stopped = f"dovetail: no service runs in {home}: start one with dovetail serve\n"
    assert run("queue")[::2] == (2, stopped)


def test_one_directory_has_one_service(simulated, home, run):
    first = json.loads((Path(home) / "service.json").read_text())["pid"]
    status, out, err = run("serve", "--pool", f"simulated:{home}/truth.json")
    assert (status, out) == (2, "")
    assert str(first) in err
    assert len(err.splitlines()) == 1
    assert run("queue")[0] == 0


def test_a_socket_is_neither_taken_from_a_service_nor_from_a_file(simulated, home, run, short_path):
    file = short_path / "plan.json"
    file.write_text("precious")
    options = ("--pool", f"simulated:{home}/truth.json", "--directory", short_path / "other")
    for path, error in (
        (f"{home}/api.sock", "another service listens there"),
        (file, "a file that is not a socket is there"),
    ):
        expected = (2, "", f"dovetail: {path}: --socket: {error}\n")
        assert run("serve", *options, "--socket", path) == expected
    assert run("queue")[0] == 0
    assert file.read_text() == "precious"


def test_a_job_is_submitted_shown_listed_and_cancelled(simulated, run):
    job = submitted(run, "--name", "mine", "--gsla", "1.5")
    wait_until(lambda: view(run, job)["state"] == "profiling")
    assert view(run, job)["gsla"] == 1.5
    status, out, _ = run("queue")
    assert status == 0
    assert re.search(rf"^{job} +{ME} +mine +profiling ", out, re.M)
    assert run("queue", "--user", "nobody-like-this") == (0, "no jobs\n", "")
    status, out, _ = run("show", job)
    assert (status, out.split()[:2]) == (0, [job, "mine"])
    assert run("cancel", job, "--wait", "--json")[0] == 0
    assert view(run, job)["state"] == "cancelled"
    assert run("queue")[1] == "no jobs\n"
    assert json.loads(run("queue", "--all", "--json")[1])[-1]["id"] == job


def test_waiting_ends_as_the_job_does(simulated, run):
    words = ("submit", "--workload", "resnet", "--wait", "--")
    status, out, err = run(*words, "train", "work_s=0.1")
    good = out.partition(":")[0]
    assert (status, err) == (0, f"dovetail: submitted {good}\n")
    assert out.startswith(f"{good}: finished: ")
    status, out, _ = run(*words, "train", "work_s=0.1", "status=3")
    bad, _, message = out.partition(": ")
    assert (status, message) == (1, "failed: rank 0 ended with status 3\n")
    assert run("wait", good)[0] == 0
    assert run("wait", good, bad)[0] == 1


def test_a_job_starts_after_others_or_once_it_is_released(simulated, run):
    first = submitted(run, "--name", "first", command=("train", "work_s=0.3"))
    held = submitted(run, "--hold", command=("train", "work_s=0.1"))
    last = submitted(run, "--after", f"{first},{held}", command=("train", "work_s=0.1"))
    doomed = submitted(run, "--after", last, command=("train", "status=1"))
    orphan = submitted(run, "--after", doomed)
    anyway = submitted(run, "--after-any", doomed, command=("train", "work_s=0.1"))
    assert run("wait", first)[0] == 0
    assert f"{held}  its release (held by {ME}: dovetail release JOB)\n" in run("queue")[1]
    assert f"{last}  {held} to finish\n" in run("queue")[1]
    assert f"it waits for {held} to finish" in run("show", last)[1]
    assert run("release", "--all")[1].startswith(f"{held}: ")
    assert run("wait", last, anyway)[0] == 0
    why = f"cancelled: {doomed}, which had to finish before it, failed\n"
    assert run("wait", orphan) == (1, f"{orphan}: {why}", "")
    for words, message in (
        (("--after", "j99"), "after[0]: must be the id of a job, got 'j99'"),
        (
            ("--after", doomed),
            f"after[0]: must be a job that can still finish, got {doomed} (failed)",
        ),
    ):
        assert run("submit", *words, "--", "train")[::2] == (2, f"dovetail: {message}\n")


def test_an_array_is_one_request(simulated, run):
    words = ("--name", "many", "--workload", "resnet", "--array", "0-2,10-20:5", "--json")
    ids = json.loads(run("submit", *words, "--", "train", "work_s=60")[1])["ids"]
    assert [view(run, job)["index"] for job in ids] == [0, 1, 2, 10, 15, 20]
    assert "many[15]" in run("queue")[1]
    for wrong in ("5-2", "a", "0-99999", "", "1-2:0"):
        status, out, err = run("submit", "--array", wrong, "--", "train")
        assert (status, out) == (2, "")
        assert f"must be indices like 0-9,12,20-30:5, at most 10,000, got {wrong!r}" in err
    assert run("submit", "--array", "0-2%0", "--", "x")[0] == 2
    assert "output: must be a file with %j, %a" in run("submit", "--output", "x/%q", "--", "x")[2]
    assert run("cancel", "--name", "many", "--state", "submitted")[0] == 0
    assert {view(run, job)["state"] for job in ids[3:]} == {"cancelled"}


def test_a_service_has_as_many_replicas_as_it_is_told(simulated, run):
    words = ("--service", "--name", "web", "--workload", "resnet", "--replicas", "2", "--json")
    ids = json.loads(run("submit", *words, "--", "train", "work_s=3600")[1])["ids"]
    assert [view(run, job)["replica"] for job in ids] == [0, 1]
    assert run("edit", "--replicas", "3", ids[0])[0] == 0
    (_, _, third) = replicas = json.loads(run("queue", "--json")[1])
    assert [(job["name"], job["replicas"]) for job in replicas] == [("web", 3)] * 3
    wait_until(lambda: "a replica of its service" in view(run, third["id"])["waiting_for"])
    message = "dovetail: nice: cannot be combined with replicas: edit it by itself\n"
    assert run("edit", "--replicas", "3", "--nice", "1", ids[0])[::2] == (2, message)
    message = f"dovetail: --ready: needs a service with a probe, got {ids[0]}\n"
    assert run("wait", "--ready", ids[0])[::2] == (2, message)
    message = "dovetail: jobs[0].walltime_s: must not be given for a service, got 60.0\n"
    assert run("submit", "--service", "--walltime", "1m", "--", "x")[::2] == (2, message)
    assert run("edit", "--replicas", "1", third["id"])[0] == 0
    assert run("cancel", "--now", "--name", "web", "--wait")[0] == 0
    wait_until(lambda: json.loads(run("queue", "--json")[1]) == [])


def test_a_job_is_paused_and_goes_on_or_gives_its_device_up(simulated, home, run):
    job = submitted(run, "--workload", "resnet", command=("train", "work_s=3600"))
    wait_until(lambda: view(run, job)["iterations"])
    assert run("pause", job)[1] == f"{job}: paused: paused by {ME}\n"
    assert run("pause", job)[0] == 0
    assert len(view(run, job)["gpus"]) == 1
    assert run("queue", "--state", "paused")[1].count(job) == 1

    def stands_still():
        runs = json.loads((Path(home) / "simulated.json").read_text())["runs"]
        return any(of["paused"] for of in runs if of["run"]["job"] == job)

    wait_until(stands_still)
    assert view(run, job)["state"] == "paused"
    assert run("resume", "--all")[1] == f"{job}: profiling: resumed by {ME}\n"
    wait_until(lambda: not stands_still())
    wait_until(lambda: view(run, job)["iterations"])
    assert run("cancel", job, "--wait")[0] == 0
    message = f"{job} is cancelled: a job may be paused while it runs"
    assert run("pause", job)[::2] == (2, f"dovetail: {message}\n")
    other = submitted(run, "--workload", "resnet")
    wait_until(lambda: view(run, other)["state"] in ("profiling", "running"))
    run("pause", other)
    assert run("requeue", "--hold", other)[0] == 0
    wait_until(lambda: view(run, other)["state"] in ("submitted", "waiting"))
    assert (view(run, other)["held"], view(run, other)["runs"]) == (ME, 1)
    assert run("cancel", other)[0] == 0


def test_a_job_that_waits_is_edited(simulated, run):
    job = submitted(run, "--hold", "--gsla", "2", command=("train", "status=3"))
    before = view(run, job)
    words = ("--name", "n", "--nice", "-5", "--workers", "2", "--walltime", "1h", "--cwd", "/tmp")
    assert run("edit", *words, job, "--", "train", "work_s=0.1")[0] == 0
    after = view(run, job)
    changed = {name for name in before if before[name] != after[name]}
    edited = {"name", "nice", "workers", "walltime_s", "cwd", "command"}
    assert edited <= changed <= edited | {"workload", "memory_mib", "waiting_for", "since_s"}
    assert (after["command"], after["cwd"]) == (["train", "work_s=0.1"], "/tmp")
    assert (
        run("edit", job)[2]
        == "dovetail: JOB: needs an option to change, or a new command after --\n"
    )
    assert "workers: must be <= 2" in run("edit", job, "--workers", "9")[2]
    assert "gsla: must be" in run("edit", job, "--gsla", "0.5")[2]
    assert run("edit", job, "--memory-percent", "40")[0] == 0
    assert (view(run, job)["memory_mib"], view(run, job)["memory_percent"]) == (None, 40)
    assert run("edit", job, "--memory-mib", "400")[0] == 0
    assert (view(run, job)["memory_mib"], view(run, job)["memory_percent"]) == (400, None)
    # Options may stand before or behind the job, and what is behind -- is the command.
    assert run("edit", job, "--nice", "3", "--", "train", "--nice", "4")[0] == 0
    assert (view(run, job)["nice"], view(run, job)["command"]) == (3, ["train", "--nice", "4"])
    assert run("edit", "--nice", "3", job, "--", "train", "--", "x")[0] == 0
    assert view(run, job)["command"] == ["train", "--", "x"]
    assert "the following arguments are required: JOB" in run("edit", "--", "train")[2]
    assert run("edit", job, "--", "train", "work_s=0.1")[0] == 0
    assert run("release", job)[0] == 0
    assert run("wait", job)[0] == 0
    edited = f"{job} is finished: a job may be edited while it waits"
    assert run("edit", job, "--nice", "1")[::2] == (2, f"dovetail: {edited}\n")


def test_history_is_read_page_by_page(simulated, run):
    words = ("--name", "n", "--workload", "resnet", "--json", "--", "train", "work_s=0.1")
    ids = json.loads(run("submit", "--array", "0-4", *words)[1])["ids"]
    bad = submitted(run, "--retries", "1", command=("train", "work_s=0.1", "status=3"))
    running = submitted(run)
    assert run("wait", *ids, bad)[0] == 1

    def listed(*options):
        found = [job["id"] for job in json.loads(run("queue", "--json", *options)[1])]
        return [job for job in found if job in {*ids, bad, running}]

    assert listed() == [running]
    assert listed("--since", "1h") == [*ids, bad]
    assert listed("--since", "0") == []
    assert listed("--state", "failed") == [bad]
    assert listed("--all", "--limit", "2") == [bad, running]
    assert listed("--all", "--limit", "3", "--before", bad) == ids[2:]
    assert listed("--since", "1h", "--name", "n", "--limit", "2", "--before", ids[2]) == ids[:2]
    assert listed("--all", "--user", "nobody-like-this") == []
    assert run("queue", "--before", "j999")[::2] == (
        2,
        "dovetail: before: must be the id of a job, got 'j999'\n",
    )
    assert run("logs", bad, "--run", "1")[1].endswith("simulated: ended with status 3\n")
    assert run("logs", bad, "--run", "3")[2] == "dovetail: run: must be from 1 to 2, got 3\n"
    assert run("logs", bad, "--run", "1", "-f")[2].startswith(
        "dovetail: run: cannot be combined with"
    )


def test_so_many_of_an_array_run_at_once(simulated, run):
    words = ("--workload", "resnet", "--array", "0-3%1", "--json", "--", "train", "work_s=0.1")
    ids = json.loads(run("submit", *words)[1])["ids"]
    message = "waits for other jobs of its array (at most 1 may run at a time)"
    assert message in run("show", ids[3])[1]
    assert run("wait", *ids)[0] == 0
    spans = [(view(run, job)["started_s"], view(run, job)["ended_s"]) for job in ids]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_jobs_are_named_by_ranges_and_names(simulated, run):
    first = submitted(run, "--name", "sweep", "--array", "0-3", "--hold").split(" to ")[0]
    numbers = [int(first[1:]) + k for k in range(4)]
    whole = f"j{numbers[0]}-j{numbers[-1]}"
    names = [f"j{number}" for number in numbers]
    after = submitted(run, "--after", whole)
    any_of = submitted(run, "--after-any", f"sweep,{after}")
    assert view(run, after)["awaits"] == names
    assert view(run, any_of)["awaits"] == [*names, after]
    wrong = "must be a job, a range like j3-j7 or the name of jobs not over, got"
    assert run("submit", "--after", "nothing", "--", "x")[::2] == (
        2,
        f"dovetail: --after: {wrong} 'nothing'\n",
    )
    for reverse in (f"j{numbers[1]}-j{numbers[0]}", "j1-j99999"):
        assert "must be a range like j3-j7" in run("cancel", reverse)[2]
    status, out, _ = run("cancel", f"{names[0]}-{names[1]}", "--now", names[3])
    assert (status, [line.partition(":")[0] for line in out.splitlines()]) == (
        0,
        [*names[:2], names[3]],
    )
    assert run("cancel", whole, any_of)[0] == 0
    assert [line.partition(":")[0] for line in run("wait", whole)[1].splitlines()] == names


def test_jobs_are_chosen_by_what_they_are(simulated, run):
    running = submitted(run, "--name", "a")
    wait_until(lambda: view(run, running)["state"] == "profiling")
    other = submitted(run, "--name", "a", "--hold")
    assert run("hold", running)[::2] == (
        2,
        f"dovetail: {running} is profiling: a job may be held while it waits\n",
    )
    # It may wait, or run, again before the answer.
    (line,) = run("requeue", "--name", "a")[1].splitlines()
    assert line.startswith(f"{running}: ")
    wait_until(lambda: view(run, running)["runs"] == 2)
    assert f"requeued by {ME}" in {step["why"] for step in view(run, running)["history"]}
    assert run("cancel", "--user", "nobody-like-this") == (0, "", "dovetail: no job matches\n")
    assert run("wait", "--name", "nobody-like-this") == (2, "", "dovetail: no job matches\n")
    choose = "is required, unless --all, --name, --user or --state selects jobs"
    assert run("cancel")[::2] == (2, f"dovetail: JOB: {choose}\n")
    assert run("cancel", running, "--all")[0] == 2
    status, out, err = run("cancel", "j99", running, other, "--now")
    assert (status, err) == (2, "dovetail: no job 'j99'\n")
    assert [line.partition(":")[0] for line in out.splitlines()] == [running, other]
    wait_until(lambda: run("queue")[1] == "no jobs\n")
    assert run("requeue", running)[::2] == (
        2,
        f"dovetail: {running} is cancelled: submit it again\n",
    )


def test_logs(simulated, run):
    job = submitted(run, command=("train", "work_s=0.3"))
    status, out, err = run("logs", "-f", job)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "simulated: ended with status 0"
    assert run("logs", "-n", "1", job)[1] == "simulated: ended with status 0\n"
    assert json.loads(run("logs", "--json", job)[1])["text"] == out
    assert run("logs", "--rank", "1", job)[::2] == (2, "dovetail: rank: must be < 1, got 1\n")
    held = submitted(run, "--hold")
    assert run("logs", held) == (0, "", f"dovetail: {held} has written nothing\n")


def test_logs_that_were_removed_are_not_called_empty(simulated, run):
    job = submitted(run, command=("train", "work_s=0.3"))
    assert run("logs", "-f", job)[1]
    with Client() as client:
        Path(client.job(job).log).unlink()
    removed = "has no output: it wrote nothing, or the service has removed it since"
    assert run("logs", job) == (0, "", f"dovetail: {job} {removed}\n")


def test_a_state_without_a_further_reason_is_printed_once(simulated, run):
    assert run("drain")[0] == 0
    held = submitted(run, "--hold")
    assert run("release", held)[1] == f"{held}: submitted\n"
    assert not re.search(r"submitted +submitted", run("show", held)[1])
    assert run("drain", "--off")[0] == 0


def test_devices_are_drained_and_taken_back(simulated, run):
    status, out, _ = run("drain", "n0-0")
    assert status == 0
    assert re.fullmatch(rf"n0-0: .*drained by {ME}\n", out)
    run("drain", "n0-1")
    job = submitted(run)
    why = f"n0-0, n0-1 take no jobs: each is being drained by {ME}"
    assert f"{job} a device that takes jobs; {why}" in " ".join(run("queue")[1].split())
    run("cancel", job)
    assert run("drain", "--off") == (0, "n0-0: takes new jobs\nn0-1: takes new jobs\n", "")
    assert run("drain", "gpu7")[::2] == (
        2,
        "dovetail: gpus[0]: must be one of n0, n0-0, n0-1, got 'gpu7'\n",
    )


def test_the_dashboard_where_there_is_no_terminal(simulated, run):
    job = submitted(run)
    wait_until(lambda: view(run, job)["state"] == "profiling")
    status, out, _ = run("top")
    assert status == 0
    assert "pool simulated" in out
    assert max(map(len, out.splitlines())) <= 100
    data = json.loads(run("top", "--json")[1])
    assert (data["service"]["pool"], [each["id"] for each in data["jobs"]]) == ("simulated", [job])


@contextlib.contextmanager
def on_a_terminal(home, *words):
    """Run a command on a terminal; yield its process and the reading end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "dovetail", *words],
        env={**os.environ, "DOVETAIL_HOME": home, "TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        yield process, ours
    os.close(ours)


def test_what_a_job_writes_does_not_command_a_terminal(simulated, home, run):
    title = "\x1b]0;mine\x07\u202eé\t"
    job = submitted(run, command=("train", "work_s=0.1", title))
    _, piped, _ = run("logs", "-f", job)
    assert title in piped

    def shown(*options):
        seen = b""
        with on_a_terminal(home, "logs", *options, job) as (_, ours), contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                seen += part
        return seen.decode()

    assert r"\x1b]0;mine\x07\u202eé" in shown()
    assert "\x1b" not in shown()
    assert title.partition("\t")[0] in shown("--raw")


def test_the_dashboard_on_a_terminal(simulated, home, run):
    job = submitted(run)
    wait_until(lambda: view(run, job)["state"] == "profiling")
    seen = b""
    with on_a_terminal(home, "top", "--every", "0.2s") as (dashboard, ours):
        while seen.count(b"pool simulated") < 2:
            seen += os.read(ours, 65536)
        dashboard.send_signal(signal.SIGINT)
        # There may be more output until the terminal is closed, and it must not block the process.
        with contextlib.suppress(OSError):
            while os.read(ours, 65536):
                pass
        assert dashboard.wait(timeout=LIMIT_S) == 0
    assert job.encode() in seen


def test_a_folder_that_cannot_be_entered_is_refused_before_a_job_is_made(
    simulated, run, short_path
):
    before = len(json.loads(run("queue", "--all", "--json")[1]))
    (short_path / "file").touch()
    for name in ("none", "file"):
        path = short_path / name
        message = f"dovetail: --cwd: must be a folder that you can enter, got '{path}'\n"
        assert run("submit", "--cwd", path, "--", "train") == (2, "", message)
    assert len(json.loads(run("queue", "--all", "--json")[1])) == before


def test_a_plan_from_live(simulated, run, short_path):
    submitted(run)
    path = short_path / "plan.json"
    status, _, err = run("plan", "--from-live", "-o", path)
    assert (status, err) == (0, "")
    assert json.loads(path.read_text())["format"] == "dovetail-plan/1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan",), "INSTANCE: is required, unless --from-live is given"),
        (("plan", "x.json", "--from-live"), "INSTANCE: cannot be combined with --from-live"),
        (
            ("plan", "--from-live", "--solver", "cpsat"),
            "--solver: cannot be combined with --from-live",
        ),
        (("plan", "--from-live", "--time-limit", "3"), "--time-limit: cannot be combined"),
        (("serve", "--pool", "tpu"), "--pool: must be one of gpu, cpu, simulated, "),
        (("serve", "--pool", "cpu:cores=2"), "--pool: must be one of cores_per_device, devices"),
        (
            ("serve", "--pool", "gpu:GPU-1,partitions=all"),
            "--pool: must be IDs of GPUs or partitions=static, got 'partitions=all'",
        ),
        (("serve", "--pool", "cpu:devices=0"), "--pool: devices must be a whole number >= 1"),
        (("serve", "--pool", "simulated"), "--pool: must name an instance: simulated:INSTANCE"),
        (("serve", "--pool", "simulated:none.json"), "none.json: cannot be read"),
        (("serve", "--listen", "0.0.0.0:0"), "--tokens: is required, too"),
        (("serve", "--tokens", "x"), "--listen: is required, too"),
        (("serve", "--assume-pair", "0.9"), "must be a slowdown from 1 to 1000, got '0.9'"),
        (("serve", "--assume-pair", "nan"), "must be a slowdown from 1 to 1000, got 'nan'"),
        (("serve", "--assume-sets", "sum"), "--assume-sets: invalid choice: 'sum'"),
        (("serve", "--socket", "s" * 200), "--socket: must have at most 107 bytes as a socket"),
        (("submit", "--progress", "(", "--", "x"), "must be a regular expression"),
        (("submit", "--progress", "step", "--", "x"), "must have a group for the iterations"),
        (("submit", "--walltime", "soon", "--", "x"), "must be a time like 90, 15m, 2h or 1d"),
        (("submit", "--gsla", "nan", "--", "x"), "--gsla: must be a finite number, got 'nan'"),
        (("submit", "--weight", "inf", "--", "x"), "--weight: must be a finite number"),
        (("submit", "--nice", "21", "--", "x"), "--nice: must be a whole number from -20 to 20"),
        (("serve", "--watch", "warm_up_s=-3"), "with finite values >= 0, got 'warm_up_s=-3'"),
        (("submit", "--workers", "0", "--", "x"), "must be a whole number >= 1, got '0'"),
        (("submit", "--replicas", "2", "--", "x"), "--replicas: needs --service"),
        (
            ("submit", "--service", "--replicas", "2", "--array", "0-1", "--", "x"),
            "--replicas: cannot be combined with --array",
        ),
        (
            ("submit", "--service", "--replicas", "10001", "--", "x"),
            "--replicas: must be <= 10,000, got 10001",
        ),
        (("submit",), "the following arguments are required: COMMAND"),
        (("top", "--every", "0"), "must be >= 0.1 s and <= 1d, got '0'"),
        (("top", "--every", "2d"), "must be >= 0.1 s and <= 1d, got '2d'"),
        (("cancel", "j1", "--grace", "now"), "must be a time like 90, 15m, 2h or 1d, got 'now'"),
        (("serve", "--listen", "here"), "must be HOST:PORT, got 'here'"),
    ],
)
def test_mistakes_are_reported_in_one_line(run, words, message, monkeypatch, short_path):
    monkeypatch.chdir(short_path)
    words = (*words, "--pool", "cpu") if words[0] == "serve" and "--pool" not in words else words
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "module", "message"),
    [
        (("serve",), "uvicorn", "dovetail serve needs uvicorn: pip install './dovetail[live]'"),
        (("serve",), "fastapi", "dovetail serve needs fastapi: pip install './dovetail[live]'"),
    ],
)
def test_without_the_extra(run, monkeypatch, words, module, message):
    monkeypatch.setenv("DOVETAIL_SERVICE", "/none.sock")
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("application", "server"):
        monkeypatch.delitem(sys.modules, f"dovetail.live.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert run(*words) == (2, "", f"dovetail: {message}\n")


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_following_a_job_says_that_the_service_ends_before_it(short_path, truth, run, ended_by):
    home = short_path / "home"
    with served(home, "--pool", f"simulated:{truth}") as (process, _):
        job = submitted(run)
        wait_until(lambda: view(run, job)["state"] == "profiling")
        words = [sys.executable, "-m", "dovetail", "logs", "-f", job]
        with subprocess.Popen(
            words,
            env={**os.environ, "DOVETAIL_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as follower:
            assert follower.stdout.readline().startswith("simulated: started")
            process.send_signal(ended_by)
            assert follower.wait(timeout=LIMIT_S) == 2
            (message,) = follower.stderr.read().splitlines()
    what = "went away" if ended_by is signal.SIGKILL else f"ended before {job}"
    assert message == f"dovetail: the service at {home}/api.sock {what}"


def test_a_dry_run_starts_nothing_and_prints_what_it_would(short_path, truth, run):
    options = ("--pool", f"simulated:{truth}", "--dry-run")
    with served(short_path / "home", *options) as (_, greeting):
        assert greeting.endswith(" (dry run: nothing is started)\n")
        job = submitted(run)
        status, out, _ = run("plan", "--from-live", "--json")
        assert status == 0
        (assigned,) = json.loads(out)["assignments"]
        assert assigned["job"] == job
        assert view(run, job)["runs"] == 0
        assert "dry run: nothing is started" in run("show")[1]


def test_what_json_cannot_carry_stays_behind(simulated, run, monkeypatch):
    monkeypatch.setitem(os.environ, "ODD", "\udcff")
    status, _, err = run("submit", "--workload", "resnet", "--", "train")
    assert status == 0
    assert err == "dovetail: the job does not get ODD, which is not UTF-8 text\n"
    assert run("submit", "--", "train\udcff")[::2] == (
        2,
        "dovetail: COMMAND: must be UTF-8 text, got b'train\\xff'\n",
    )


def test_real_processes_on_the_cores_of_this_machine(short_path, run, monkeypatch):
    monkeypatch.setenv("GREETING", "good morning")
    monkeypatch.chdir(short_path)
    with served(short_path / "home", "--pool", "cpu:devices=1"):
        script = 'echo "$GREETING from $PWD"; echo "$@"; exit 7'
        words = ("sh", "-c", script, "--", "--lr", "--", "x y")
        status, out, _ = run("submit", "--wait", "--", *words)
        assert (status, out) == (1, "j1: failed: rank 0 ended with status 7\n")
        assert run("logs", "j1")[1] == f"good morning from {short_path}\n--lr -- x y\n"
        shown = "".join(run("show", "j1")[1].split())
        assert f"logfile{short_path}/home/runs/j1.1/rank0/log" in shown


def test_a_grace_that_is_longer_than_the_job_s_own_is_not_given(simulated, run):
    shorter, longer = (submitted(run, "--grace", grace) for grace in ("10s", "1h"))
    for job in (shorter, longer):
        wait_until(lambda job=job: view(run, job)["state"] in ("profiling", "running"))
    message = "its own grace of 10 s, which --grace cannot lengthen"
    err = run("cancel", "--grace", "30m", shorter, longer)[2]
    assert err == f"dovetail: {shorter} is killed after {message}\n"


def test_the_program_itself_prints_what_is_followed_as_it_comes(simulated, home, run):
    job = submitted(run)
    wait_until(lambda: view(run, job)["state"] == "profiling")
    with subprocess.Popen(
        [sys.executable, "-m", "dovetail", "logs", "-f", job],
        env={**os.environ, "DOVETAIL_HOME": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout.readline().startswith("simulated: started")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(timeout=LIMIT_S) == 130
        assert follower.stderr.read() == "dovetail: interrupted\n"
