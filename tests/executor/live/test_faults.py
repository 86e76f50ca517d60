"""The fault campaign in its short form; ``benchmarks/live/faults.py`` is the long one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

LIVE = Path(__file__).parents[3] / "benchmarks" / "live"


@pytest.fixture
def faults(monkeypatch):
    """Return the campaign; the services' processes find it by this path, too."""
    monkeypatch.syspath_prepend(str(LIVE))
    import faults

    return faults


@pytest.fixture
def cpu(faults):
    """Return the kind of pool that runs real processes."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two devices of the cpu pool need two cores")
    return faults.CPU


def check(tally):
    """Check that a fault had no consequence."""
    assert tally.wrong == []
    assert tally.runs


@pytest.mark.parametrize("points", [(1,), (24,), (50,), (12, 3)])
def test_a_service_that_is_killed_loses_nothing(faults, points):
    tally = faults.killed(faults.SIMULATED, points)
    check(tally)
    assert tally.deaths == len(points)


def test_a_service_is_killed_at_any_time(faults):
    check(faults.killed_at_any_time(faults.SIMULATED, random.Random(3), 1))


def test_a_full_disk_refuses_and_loses_nothing(faults):
    check(faults.disk_full(faults.SIMULATED))


@pytest.mark.parametrize("years", [-1, 1])
def test_a_clock_that_is_set_ends_no_job(faults, years):
    check(faults.clock_set(faults.SIMULATED, years * 365 * 86400.0))


def test_a_journal_that_was_cut_short_starts_nothing_twice(faults):
    tally = faults.journal_cut(faults.SIMULATED, random.Random(0))
    check(tally)


def test_two_services_are_one_too_many(faults):
    check(faults.two_services(faults.SIMULATED))


def test_garbage_on_the_socket_harms_no_job(faults):
    check(faults.garbage(faults.SIMULATED, random.Random(0), 10))


def test_a_flood_is_taken_in(faults):
    tally = faults.flood(faults.SIMULATED, 200)
    check(tally)
    assert tally.jobs == 200


@pytest.mark.parametrize("point", [30])
def test_real_processes_outlive_a_service_that_is_killed(faults, cpu, point):
    check(faults.killed(cpu, [point]))


def test_processes_that_are_killed_are_started_again(faults, cpu):
    tally = faults.jobs_killed(cpu, random.Random(0), 2)
    check(tally)
    assert tally.notes["processes killed"] == 2


def test_the_verdict_sees_what_is_wrong(faults, tmp_path):
    from load import Deed, verdict

    kind = faults.SIMULATED
    todo = [Deed("brief", 0.1)]
    client = faults.Client(faults.Setup(tmp_path, kind.make_pool), todo, kind.command(tmp_path))
    client.settle()
    starts = kind.starts(tmp_path)
    assert starts == ["j1.1 rank0"]
    known = client.acknowledged
    assert verdict(tmp_path, known, todo, starts) == []
    assert verdict(tmp_path, {**known, "other": "j2"}, todo, starts) == [
        "other (j2) was acknowledged and is lost"
    ]
    assert verdict(tmp_path, known, todo, starts * 2) == ["rank j1.1 rank0 was started twice"]
    assert "was started 0 times" in verdict(tmp_path, known, todo, [])[0]
    late = [Deed("brief", 0.1, ends=(), starts=(2, 2))]
    assert len(verdict(tmp_path, known, late, starts)) == 2


@pytest.mark.long
@pytest.mark.parametrize("pool", ["simulated", "cpu"])
def test_the_whole_campaign(pool):
    command = [sys.executable, str(LIVE / "faults.py"), "--pool", pool]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
