"""The service dies at every step, again and again: no job is lost, none is started twice.

What a kill leaves is what is on the disk. Here the service is ended by an exception that nothing
catches, before or after each append to the journal and each order to the (simulated) pool; from
outside, with real kills, ``benchmarks/live`` does it.
"""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import suppress

import pytest

from benchmarks.live.invariants import violations
from dovetail.executor.jobs.journal import Journal, read_state_machine
from dovetail.executor.jobs.states import QUEUED, JobState
from dovetail.executor.live.errors import BusyError
from dovetail.executor.live.service import Service
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.executor.system.directories import LOCK
from dovetail.instances.datasets import Repository
from tests.executor.live.test_service import ME, TRUTH, service_in, spec
from tests.executor.waiting import LIMIT_S, wait_until

_STEPS = ("append", "launch", "stop", "release")


class Killed(BaseException):
    """The service is no more."""


class Doomed:
    """Ends the service at a step, counted over a journal and a pool."""

    def __init__(self, at_step):
        self.left = at_step

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Killed

    def wrap(self, whole):
        """Return ``whole`` with a step before and after each call that changes state."""
        return _Wrapped(whole, self)


class _Wrapped:
    def __init__(self, whole, doomed):
        self._whole, self._doomed = whole, doomed

    def __getattr__(self, name):
        found = getattr(self._whole, name)
        if name not in _STEPS:
            return found

        def stepped(*arguments):
            self._doomed.step()
            answer = found(*arguments)
            self._doomed.step()
            return answer

        return stepped


def life(directory, at_step, until):
    """Run a service until it is killed at a step, or until all is done; return whether it was."""
    doomed = Doomed(at_step)
    killed = threading.Event()
    with Journal(directory) as journal:
        service = Service(
            doomed.wrap(journal),
            doomed.wrap(SimulatedNode(directory, TRUTH, 50.0)),
            Repository(directory / "repository.db"),
        )

        def run():
            try:
                service.run()
            except Killed:
                killed.set()

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: killed.is_set() or service.ready.is_set())
        try:
            until(service, killed)
        finally:
            service.stop()
            thread.join(LIMIT_S)
    assert not thread.is_alive()
    return killed.is_set()


def prepare(directory):
    """Leave four jobs in the journal, with no device open."""

    def submit(service, _):
        service.api.drain([], True, ME)
        service.api.submit([spec(5), spec(5, words=["status=3"], retries=1)], ME)
        service.api.submit([spec(5, workers=2, workload="B"), spec(5000)], ME)
        service.api.drain([], False, ME)

    assert not life(directory, 10**9, submit)


def all_is_done(service, killed):
    """Cancel the job that never ends once it runs, and wait until all have ended."""
    wait_until(lambda: killed.is_set() or service.api.job("j4").state not in QUEUED)
    with suppress(BusyError):
        service.api.cancel("j4", ME)
    wait_until(lambda: killed.is_set() or not service.api.jobs())


def starts_in(directory):
    """Return how often each rank was started, from their logs."""
    return {
        f"{log.parts[-3]}/{log.parts[-2]}": log.read_text().count("started")
        for log in sorted(directory.glob("runs/*/*/log"))
    }


@pytest.mark.parametrize("first", [pytest.param(k, id=f"step {k}") for k in range(1, 13)])
def test_nothing_is_lost_and_nothing_starts_twice(tmp_path, first):
    prepare(tmp_path)
    step, kills = first, 0
    while life(tmp_path, step, all_is_done):
        kills += 1
        step += 2
        assert kills < 60
    machine = read_state_machine(tmp_path)
    assert violations(machine) == ()
    assert [job.state for job in machine.jobs.values()] == [
        JobState.FINISHED,
        JobState.FAILED,
        JobState.FINISHED,
        JobState.CANCELLED,
    ]
    assert [job.runs for job in machine.jobs.values()][:3] == [1, 2, 1]
    assert set(starts_in(tmp_path).values()) == {1}
    assert kills >= 1
    # Every run was released, however late.
    assert json.loads((tmp_path / "simulated.json").read_text())["runs"] == []


def copied(directory, other):
    """Copy the journal of a directory that no service uses."""
    other.mkdir()
    for file in directory.glob("journal.db*"):
        shutil.copy(file, other / file.name)


def restored(kept, directory):
    """Put a copy of the journal back, or none, as a disk that lied would have it."""
    for file in (directory / LOCK, *directory.glob("journal.db*")):
        file.unlink()
    for file in kept.glob("journal.db*") if kept else ():
        shutil.copy(file, directory / file.name)


def test_a_run_whose_start_the_journal_has_lost_is_taken_up(tmp_path):
    with service_in(tmp_path, dry_run=True) as service:
        service.api.submit([spec(5000)], ME)
    copied(tmp_path, tmp_path / "kept")
    with service_in(tmp_path) as service:
        wait_until(lambda: service.api.job("j1").state is JobState.PROFILING)
    restored(tmp_path / "kept", tmp_path)
    with service_in(tmp_path) as service:
        wait_until(lambda: service.api.job("j1").state is JobState.PROFILING)
        assert service.api.job("j1").run == "j1.1"
        service.api.cancel("j1", ME)
        wait_until(lambda: service.api.job("j1").state is JobState.CANCELLED)
    assert starts_in(tmp_path) == {"j1.1/rank0": 1}


def test_a_run_of_no_job_is_ended_and_holds_its_device_until_then(tmp_path, caplog):
    with service_in(tmp_path) as service:
        service.api.submit([spec(5000, words=["deaf=1"], grace_s=1.0)], ME)
        wait_until(lambda: service.api.job("j1").state is JobState.PROFILING)
        (busy,) = service.api.job("j1").gpus
    restored(None, tmp_path)
    with service_in(tmp_path) as service:
        service.api.submit([spec(1), spec(1)], ME)
        wait_until(lambda: not service.api.jobs())
    assert f"j1 cannot start: j1.1 may still be on {busy}" in caplog.text
    assert "ended with status -9" in (tmp_path / "runs/j1.1/rank0/log").read_text()


def test_a_run_of_no_job_is_not_taken_for_one_of_the_same_name(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(5000, words=["deaf=1"], grace_s=1.0)], ME)
        wait_until(lambda: service.api.job("j1").state is JobState.PROFILING)
        (busy,) = service.api.job("j1").gpus
    restored(None, tmp_path)
    with service_in(tmp_path) as service:
        # Its device takes no jobs, so that only the other one can be chosen.
        service.api.drain([busy], True, ME)
        service.api.submit([spec(1)], ME)
        wait_until(lambda: not service.api.jobs())
        job = service.api.job("j1")
    assert job.state is JobState.FINISHED
    assert job.run == "j1.2"
    assert starts_in(tmp_path) == {"j1.1/rank0": 1, "j1.2/rank0": 1}
