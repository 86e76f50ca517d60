"""The contract of live mode's pools: tests that each pool's class inherits."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dovetail.executor.jobs.commands import Release
from dovetail.executor.jobs.events import (
    AnyEvent,
    Placed,
    RankEnded,
    RankGone,
    RankReady,
    RankRefused,
    RankStarted,
    ServiceStarted,
    Submitted,
)
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.pools.shim.kernel import stat_of
from tests.executor.waiting import LIMIT_S, wait_until

ME = Owner(name="me", uid=os.getuid(), gid=os.getgid())
_OVER = (RankEnded, RankGone, RankRefused)


class Commands(NamedTuple):
    """Commands that make a rank behave so in a pool; each writes ``started`` to its log.

    ``brief`` ends with status 0 within a second or two, ``failing`` with status 3, ``awaiting``
    with status 0 after ``let_end``, ``endless`` goes on until it is asked to end, ``deaf`` until
    it is killed.
    """

    brief: tuple[str, ...]
    failing: tuple[str, ...]
    awaiting: tuple[str, ...]
    endless: tuple[str, ...]
    deaf: tuple[str, ...]


class Observed:
    """A pool with all events it has reported."""

    def __init__(self, pool: NodePool) -> None:
        self.pool = pool
        self.events: list[AnyEvent] = []
        self.woken = threading.Event()

    def poll(self) -> list[AnyEvent]:
        """Collect the pool's new events."""
        self.events += self.pool.poll()
        return self.events

    def of(self, run: Run, *kinds: type) -> dict[int, AnyEvent]:
        """Return the last event of these kinds by rank."""
        mine = [event for event in self.poll() if getattr(event, "run", None) == run.id]
        return {event.rank: event for event in mine if isinstance(event, kinds)}

    def wait(self, run: Run, *kinds: type) -> dict[int, AnyEvent]:
        """Return an event of these kinds for every rank, as soon as there is one."""
        names = ", ".join(kind.__name__ for kind in kinds)
        every_rank = set(range(len(run.seats)))
        wait_until(lambda: set(self.of(run, *kinds)) == every_rank, what=f"{run.id}: {names}")
        return self.of(run, *kinds)


class PoolContract:
    """Subclasses give the maker of their pool and the commands to submit."""

    commands: Commands
    workload = "A"

    def make(self, directory: Path) -> NodePool:
        """Return a pool of at least two devices that keeps its files in a directory."""
        raise NotImplementedError

    def let_end(self) -> None:
        """Let runs of the command ``awaiting`` end; once more for those that were paused."""
        (self._directory / "end").touch()

    def stands_still(self, started: RankStarted) -> bool:
        """Return whether the process of a rank is stopped."""
        stat = None if started.pid is None else stat_of(started.pid)
        return stat is not None and stat.state == "T"

    @pytest.fixture
    def open_pool(self, tmp_path):
        """Return how to open the pool once more, as a service that starts does.

        Whatever still runs at the end is stopped.
        """
        opened: list[Observed] = []

        def again(*runs: Run) -> Observed:
            if opened:
                opened[-1].pool.close()
            observed = Observed(self.make(tmp_path))
            opened.append(observed)
            observed.found = observed.pool.resume(runs)
            observed.pool.attach(observed.woken.set)
            return observed

        yield again
        if opened:
            self._stop_everything(opened[-1])

    def _stop_everything(self, last: Observed) -> None:
        last.pool.close()
        observed = Observed(self.make(self._directory))
        left = observed.pool.resume(())
        for run in left:
            observed.pool.stop(run.id, 0.0)
        for run in left:
            observed.wait(run, *_OVER)
            observed.pool.release(run.id)
        observed.pool.close()

    @pytest.fixture(autouse=True)
    def _remember_directory(self, tmp_path):
        self._directory = tmp_path

    def run_of(self, pool: NodePool, command: tuple[str, ...], job: str = "j1", workers: int = 1):
        """Return the first run of a job on the pool's first devices."""
        gpus = [gpu.id for node in pool.cluster().nodes for gpu in node.devices]
        spec: dict[str, Any] = {"cwd": str(self._directory), "grace_s": 0.2, "workers": workers}
        made = JobSpec(
            command=command,
            workload=self.workload,
            owner=ME,
            env={"PATH": os.environ["PATH"]},
            **spec,
        )
        seats = tuple(Seat(gpu=gpu) for gpu in gpus[:workers])
        return Run(id=f"{job}.1", job=job, spec=made, seats=seats)

    def starts(self, observed: Observed, run: Run, rank: int = 0) -> int:
        """Return how often a rank reported its start."""
        path = observed.pool.log_path(run.id, rank)
        return Path(path).read_text().count("started") if path else 0

    # The pool itself.

    def test_it_has_a_name_and_devices(self, open_pool):
        pool = open_pool().pool
        assert pool.name
        devices = [gpu for node in pool.cluster().nodes for gpu in node.devices]
        assert len(devices) >= 2
        assert set(pool.usage()) == {gpu.id for gpu in devices}

    def test_what_measures_its_shares_knows_its_driver(self, open_pool):
        gate = open_pool().pool.gate
        assert gate is None or gate.driver

    def test_nothing_is_reported_where_nothing_happened(self, open_pool):
        assert list(open_pool().pool.poll()) == []

    # A life.

    def test_a_run_starts_is_ready_and_ends(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief)
        observed.pool.launch(run)
        ended = observed.wait(run, RankEnded)
        assert ended[0].status == 0
        kinds = [type(event) for event in observed.events]
        assert kinds == [RankStarted, RankReady, RankEnded]
        assert self.starts(observed, run) == 1

    def test_it_wakes_the_caller(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief)
        observed.pool.launch(run)
        while not observed.of(run, RankEnded):
            observed.woken.clear()
            if not observed.of(run, RankEnded):
                assert observed.woken.wait(LIMIT_S)

    def test_a_failure_is_reported_with_its_status(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.failing)
        observed.pool.launch(run)
        assert observed.wait(run, RankEnded)[0].status == 3

    def test_logs_are_asked_for_from_any_thread(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief)
        over = threading.Event()

        def asked() -> set[str | None]:
            found: set[str | None] = set()
            while not over.is_set():
                found.add(observed.pool.log_path(run.id, 0))
                over.wait(0.001)
            return found | {observed.pool.log_path(run.id, 0)}

        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(asked) for _ in range(4)]
            try:
                observed.pool.launch(run)
                observed.wait(run, RankEnded)
                observed.pool.release(run.id)
            finally:
                over.set()
            expected = {observed.pool.log_path(run.id, 0)}
            assert None not in expected
            assert all(found.result() - {None} == expected for found in asking)

    def test_the_brain_takes_a_life_in(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief, workers=2)
        machine = StateMachine()
        gpus = tuple(seat.gpu for seat in run.seats)
        begun = {"at_s": 0.0, "boot": "b", "pool": "p", "gpus": gpus, "version": "0"}
        machine.apply(ServiceStarted.model_validate(begun))
        machine.apply(Submitted(at_s=0.0, job=run.job, spec=run.spec))
        for command in machine.apply(Placed(at_s=0.0, run=run)):
            observed.pool.launch(command.run)
        observed.wait(run, RankEnded)
        commands = [command for event in observed.events for command in machine.apply(event)]
        assert machine.jobs["j1"].state is JobState.FINISHED
        assert commands == [Release(run.id)]

    def test_progress_has_an_item_a_rank(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless, workers=2)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        assert len(observed.pool.progress(run.id)) == 2

    # Gangs.

    def test_every_rank_of_a_gang_is_reported(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief, workers=2)
        observed.pool.launch(run)
        assert {rank: event.status for rank, event in observed.wait(run, RankEnded).items()} == {
            0: 0,
            1: 0,
        }
        assert [self.starts(observed, run, rank) for rank in (0, 1)] == [1, 1]

    # Stopping.

    def test_a_run_ends_when_it_is_asked_to(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        observed.pool.stop(run.id, 20.0)
        observed.pool.stop(run.id, 20.0)
        assert observed.wait(run, RankEnded)[0].status == -15

    def test_a_run_that_is_paused_goes_on_later(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.awaiting)
        observed.pool.launch(run)
        started = observed.wait(run, RankStarted)[0]
        observed.wait(run, RankReady)
        observed.pool.pause(run.id, True)
        observed.pool.pause(run.id, True)
        wait_until(lambda: self.stands_still(started))
        self.let_end()
        time.sleep(1.0)
        assert not [event for event in observed.poll() if isinstance(event, RankEnded)]
        observed.pool.pause(run.id, False)
        self.let_end()
        assert observed.wait(run, RankEnded)[0].status == 0

    def test_a_run_that_is_paused_hears_that_it_is_to_end(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        observed.pool.pause(run.id, True)
        observed.pool.stop(run.id, 20.0)
        assert observed.wait(run, RankEnded)[0].status == -15

    def test_a_run_that_does_not_listen_is_killed(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.deaf)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        wait_until(lambda: self.starts(observed, run) == 1)
        observed.pool.stop(run.id, 0.3)
        assert observed.wait(run, RankEnded)[0].status == -9

    def test_a_run_that_was_never_started_can_be_stopped(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief, workers=2)
        again = open_pool(run)
        again.pool.stop(run.id, 0.0)
        again.wait(run, RankRefused, RankGone)
        assert self.starts(again, run) == 0

    # Once, and only once.

    def test_it_is_not_started_twice(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless)
        observed.pool.launch(run)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        wait_until(lambda: self.starts(observed, run) == 1)
        observed.pool.launch(run)
        observed.pool.stop(run.id, 20.0)
        observed.wait(run, RankEnded)
        observed.pool.launch(run)
        assert self.starts(observed, run) == 1

    def test_it_is_not_started_again_once_it_was_released(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief)
        observed.pool.launch(run)
        observed.wait(run, RankEnded)
        observed.pool.release(run.id)
        observed.pool.release(run.id)
        again = open_pool(run)
        again.pool.launch(run)
        again.wait(run, *_OVER)
        assert self.starts(again, run) == 1

    def test_a_released_run_is_reported_as_over(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.brief)
        observed.pool.launch(run)
        observed.wait(run, RankEnded)
        observed.pool.release(run.id)
        again = open_pool(run)
        assert list(again.found) == []
        again.wait(run, *_OVER)

    # A service that comes back.

    def test_a_run_outlives_the_service_and_is_found_again(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless)
        observed.pool.launch(run)
        first = observed.wait(run, RankStarted)[0]
        observed.wait(run, RankReady)
        again = open_pool(run)
        assert list(again.found) == []
        assert again.wait(run, RankStarted)[0] == first
        again.wait(run, RankReady)
        again.pool.launch(run)
        again.pool.stop(run.id, 20.0)
        assert again.wait(run, RankEnded)[0].status == -15
        assert self.starts(again, run) == 1

    def test_an_unobserved_end_is_reported(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.failing)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        assert open_pool(run).wait(run, RankEnded)[0].status == 3

    def test_an_end_is_reported_anew(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.failing)
        observed.pool.launch(run)
        observed.wait(run, RankEnded)
        assert open_pool(run).wait(run, RankEnded)[0].status == 3

    def test_a_run_without_a_trace_is_started(self, open_pool):
        run = self.run_of(open_pool().pool, self.commands.brief)
        again = open_pool(run)
        assert again.of(run, *_OVER, RankStarted) == {}
        again.pool.launch(run)
        assert again.wait(run, RankEnded)[0].status == 0

    def test_a_run_that_was_not_awaited_is_found(self, open_pool):
        observed = open_pool()
        run = self.run_of(observed.pool, self.commands.endless)
        observed.pool.launch(run)
        observed.wait(run, RankReady)
        again = open_pool()
        assert [found.id for found in again.found] == [run.id]
        again.pool.stop(run.id, 20.0)
        again.wait(run, RankEnded)
        again.pool.release(run.id)
        assert list(open_pool().found) == []
