"""The outbox: each measurement reaches the repository exactly once, despite failures."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing

import pytest

from dovetail.executor.jobs import events
from dovetail.executor.live.observation.learning import Recorder
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from tests.executor.waiting import LIMIT_S, wait_until

SOLO = SoloProfile(
    workload="ann/vision",
    gpu_model="M",
    throughput=0.1 + 0.2,
    metrics={"sm_active": 1 / 3},
    metrics_variance={"sm_active": 1e-9},
    source="live; made up",
    date="2026-11-21T10:00:00.123456+00:00",
)
PAIR = Measurement(
    workloads=("ann/vision", "bob/speech"),
    gpu_model="M",
    share=(None, 40),
    slowdown=(1.1, 4 / 3),
    date="2026-11-21T10:01:00+00:00",
)
PROFILED = events.Profiled(at_s=1.0, run="j1.1", profile=SOLO)
MEASURED = events.Measured(
    at_s=2.0, runs=("j1.1", "j2.1"), gpu="g0", measurement=PAIR, window_s=60.0
)


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository.db")


def settled(recorder):
    """Wait for the pending append; return the recorder's events about it."""
    wait_until(lambda: recorder._under_way is None or recorder._under_way.done())
    return recorder.recorded()


def test_what_is_unrecorded_comes_into_the_repository(repository):
    rung = []
    recorder = Recorder(repository, lambda: rung.append(1))
    recorder.offer({7: PROFILED, 9: MEASURED})
    assert settled(recorder) == 9
    wait_until(lambda: rung)
    assert recorder.recorded() is None
    found = repository.data_set()
    assert found.profiles == (SOLO,)
    assert found.measurements == (PAIR,)
    recorder.close()


def test_nothing_is_appended_again_before_it_is_journalled_that_it_was(repository):
    recorder = Recorder(repository)
    recorder.offer({7: PROFILED})
    assert settled(recorder) == 7
    recorder.offer({7: PROFILED})
    assert settled(recorder) is None
    recorder.offer({7: PROFILED, 9: MEASURED})
    assert settled(recorder) == 9
    assert len(repository.since(0)) == 2
    recorder.close()


def test_a_service_that_starts_again_finds_what_it_had_appended(repository):
    first = Recorder(repository)
    first.offer({7: PROFILED})
    settled(first)
    first.close()
    second = Recorder(repository)
    second.offer({7: PROFILED, 9: MEASURED})
    assert settled(second) == 9
    assert [found.record for found in repository.since(0)] == [SOLO, PAIR]
    second.close()


def test_equal_figures_of_two_moments_are_two_records(repository):
    recorder = Recorder(repository)
    later = SOLO.replace(date="2026-11-21T10:00:00.123457+00:00")
    recorder.offer({1: PROFILED, 2: PROFILED.replace(profile=later)})
    assert settled(recorder) == 2
    assert len(repository.since(0)) == 2
    recorder.close()


def test_a_repository_that_cannot_be_written_is_tried_again(tmp_path):
    path = tmp_path / "folder" / "repository.db"
    recorder = Recorder(Repository(path), rest_s=0.1)
    recorder.offer({1: PROFILED})
    assert settled(recorder) is None
    assert "cannot be written" in recorder.trouble
    assert "\n" not in recorder.trouble
    path.parent.mkdir()
    recorder.offer({1: PROFILED})
    assert settled(recorder) == 1
    assert recorder.trouble == ""
    recorder.close()


def test_one_that_others_are_writing_delays_nothing(repository, tmp_path):
    repository.append()
    recorder = Recorder(repository)
    with closing(sqlite3.connect(tmp_path / "repository.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        recorder.offer({1: PROFILED})
        recorder.offer({1: PROFILED, 2: MEASURED})
        assert recorder.recorded() is None
        other.execute("ROLLBACK")
    assert settled(recorder) == 1
    recorder.offer({2: MEASURED})
    assert settled(recorder) == 2
    recorder.close()


KILLED = """
    import os, signal, sys
    from dovetail.executor.live.observation.learning import Recorder
    from dovetail.instances.datasets import Repository
    from tests.executor.live.test_recorder import MEASURED, PROFILED

    class Killed(Repository):
        def append(self, profiles=(), measurements=()):
            last = super().append(profiles, measurements)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return last

    recorder = Recorder(Killed(sys.argv[1]))
    recorder.offer({7: PROFILED, 9: MEASURED})
    recorder.close()
"""


def test_a_kill_between_repository_and_journal_records_nothing_twice(tmp_path):
    path = tmp_path / "repository.db"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    paths = os.pathsep.join([os.getcwd(), *sys.path])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, timeout=LIMIT_S)
    assert done.returncode == -9
    recorder = Recorder(Repository(path))
    recorder.offer({7: PROFILED, 9: MEASURED})
    assert settled(recorder) == 9
    assert [found.record for found in Repository(path).since(0)] == [SOLO, PAIR]
    recorder.close()


def test_at_the_end_it_does_not_wait_until_others_let_go_of_the_repository(repository):
    repository.append()
    recorder = Recorder(repository)
    with closing(sqlite3.connect(repository.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        recorder.offer({1: PROFILED})
        ending = threading.Thread(target=recorder.close)
        ending.start()
        wait_until(lambda: not ending.is_alive())
        other.execute("ROLLBACK")
    assert settled(recorder) == 1
