"""Programs submitted to a pool without a service: real processes on a CPU core."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dovetail.executor.jobs.specs import Seat
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.runs.processes import tokens
from dovetail.executor.pools.runs.submissions import PoolSubmissions
from tests.executor.waiting import LIMIT_S, wait_until

SEAT = Seat(gpu="cpu-0")


@pytest.fixture
def submissions(tmp_path):
    with PoolSubmissions(CpuPool(tmp_path)) as found:
        yield found


def over(submissions, one):
    assert submissions.wait(lambda: one.over, time.monotonic() + LIMIT_S)
    return one.over


def shell(text):
    return ("sh", "-c", text)


def test_ends_of_programs_are_reported_with_their_last_output(submissions):
    fails = submissions.submit(shell("echo one; echo two >&2; echo; exit 7"), SEAT)
    killed = submissions.submit(shell("kill -9 $$"), SEAT)
    well = submissions.submit(shell("echo $MINE$DOVETAIL_GPU"), SEAT, {"MINE": "my "})
    assert [over(submissions, one) for one in (fails, killed, well)] == [
        "ended with status 7",
        "ended by SIGKILL",
        "ended with status 0",
    ]
    assert [one.status for one in (fails, killed, well)] == [7, -9, 0]
    assert submissions.last_words(fails) == ["one", "two"]
    assert submissions.last_words(killed) == []
    assert submissions.last_words(well) == ["my cpu-0"]


def test_what_cannot_be_started_is_over_and_says_why(submissions):
    absent = submissions.submit(("/no/such/program",), SEAT)
    assert "the program is not found: /no/such/program" in over(submissions, absent)
    elsewhere = submissions.submit(shell("true"), Seat(gpu="cpu-99"))
    assert over(submissions, elsewhere) == "no device 'cpu-99'"
    assert absent.status is elsewhere.status is None


def test_a_program_is_ready_when_it_is_under_its_cap(submissions):
    if submissions.pool.shares != "quota":
        pytest.skip("no control group can be limited here")
    one = submissions.submit(shell("sleep 600"), Seat(gpu="cpu-0", share=50))
    assert submissions.wait(lambda: one.ready, time.monotonic() + LIMIT_S)
    assert one.pid in [process.pid for process, _ in tokens()]


def test_programs_are_asked_to_end_and_their_logs_stay_where_they_failed(submissions, tmp_path):
    obeys = submissions.submit(shell("trap 'exit 0' TERM; echo on; sleep 600 & wait"), SEAT)
    deaf = submissions.submit(shell("trap '' TERM; echo on; sleep 600"), SEAT, name="deaf one")
    both = obeys, deaf
    submissions.wait(lambda: all(map(submissions.last_words, both)), time.monotonic() + LIMIT_S)
    submissions.end(both, 0.5)
    assert (obeys.status, deaf.status) == (0, -signal.SIGKILL)
    (left,) = (tmp_path / "runs").iterdir()
    assert left.name.startswith("deaf_one-")
    assert (left / "rank0" / "log").read_text() == "on\n"


def test_processes_left_by_a_killed_service_are_ended(tmp_path):
    program = (
        "import sys, time\n"
        "from tests.executor.pools.test_submissions import *\n"
        "found = PoolSubmissions(CpuPool(sys.argv[1]))\n"
        "one = found.submit(shell('echo on; sleep 600'), SEAT)\n"
        "found.wait(lambda: found.last_words(one), time.monotonic() + LIMIT_S)\n"
        "print(one.pid, flush=True)\n"
        "time.sleep(60)\n"
    ).replace("sys.argv[1]", "__import__('pathlib').Path(sys.argv[1])")
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        pid = int(child.stdout.readline())
        child.kill()
    os.kill(pid, 0)
    with PoolSubmissions(CpuPool(tmp_path)):
        wait_until(lambda: pid not in [process.pid for process, _ in tokens()])


def test_variables_that_are_no_texts_are_left_out(submissions, monkeypatch):
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff"))
    one = submissions.submit(shell("echo ${ODD-none}"), SEAT)
    over(submissions, one)
    assert submissions.last_words(one) == ["none"]
