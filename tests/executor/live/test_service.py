"""The service on the simulated pool with a real journal: starts, records and refusals."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from itertools import pairwise

import pytest

from dovetail.executor.jobs.journal import Journal, JournalError, read_events
from dovetail.executor.jobs.specs import JobSpec, Owner
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.errors import BusyError, RefusedError, UnknownJobError
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.solver.policies import Decision, Start
from dovetail.solver.policies.state import Reservation
from tests.executor.waiting import LIMIT_S, wait_until

ME = Owner(name="me", uid=os.geteuid(), gid=os.getegid())
OTHER = Owner(name="other", uid=os.geteuid() + 1000, gid=1000)
SPEED = 20.0

TRUTH = Instance.from_data(
    {
        "format": "dovetail-instance/1",
        "name": "truth",
        "cluster": {
            "nodes": [{"id": "n", "gpu_count": 2, "gpu": {"model": "V100", "memory_mib": 16000}}]
        },
        "workloads": {name: {"memory_mib": 1000.0} for name in "AB"},
        "jobs": [],
        "slowdowns": [{"pair": ["A", "B"], "slowdown": [1.2, 1.3]}],
    }
)


def spec(work_s=2.0, owner=ME, workload="A", words=(), **fields):
    """Return a job that takes ``work_s`` simulated seconds alone."""
    command = ("train", f"work_s={work_s}", *words)
    return JobSpec(command=command, workload=workload, owner=owner, cwd="/", **fields)


@contextmanager
def serving(service):
    """Serve in a thread of its own for as long as the block takes."""
    failed = []

    def run():
        try:
            service.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: service.ready.is_set() or failed)
        yield service
    finally:
        service.stop()
        thread.join(LIMIT_S)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


@contextmanager
def service_in(directory, journal=None, pool=None, **options):
    """Serve with the journal and the simulated pool of a directory."""
    with Journal(directory) as own:
        pool = pool or SimulatedNode(directory, TRUTH, SPEED)
        repository = Repository(directory / "repository.db")
        made = Service(
            journal(own) if journal else own, pool, repository, ServiceOptions(**options)
        )
        with serving(made) as service:
            yield service


def is_in(service, job, *states):
    """Tell whether a job is in one of the states."""
    return lambda: service.api.job(job).state in states


def kinds(directory):
    """Return the kinds of all events of a journal."""
    return [entry.event.kind for entry in read_events(directory)]


def test_jobs_run_from_end_to_end(tmp_path):
    with service_in(tmp_path) as service:
        ids = service.api.submit([spec(), spec(workload="B"), spec(workers=2)], ME)
        assert ids == ("j1", "j2", "j3")
        for job in ids:
            wait_until(is_in(service, job, JobState.FINISHED))
        third = service.api.job("j3")
        assert (third.runs, third.gpus, third.statuses) == (1, ("n-0", "n-1"), (0, 0))
        assert [step.state for step in third.history][-3:] == ["starting", "profiling", "finished"]
        assert service.api.service().jobs == {"finished": 3}
    assert kinds(tmp_path).count("placed") == 3


def test_what_failed_is_started_again_as_often_as_its_owner_allows(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=1, words=["status=3"], retries=2)], ME)
        wait_until(is_in(service, "j1", JobState.FAILED))
        assert (service.api.job("j1").runs, service.api.job("j1").why) == (
            3,
            "rank 0 ended with status 3",
        )


def test_jobs_run_on_while_no_service_is_there(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=10), spec(work_s=600)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        wait_until(is_in(service, "j2", JobState.PROFILING))
    with service_in(tmp_path) as service:
        wait_until(is_in(service, "j1", JobState.FINISHED))
        assert service.api.job("j2").state is JobState.PROFILING
        assert [service.api.job(job).runs for job in ("j1", "j2")] == [1, 1]
        service.api.cancel("j2", ME)
        wait_until(is_in(service, "j2", JobState.CANCELLED))


def test_a_run_is_stopped_after_its_walltime(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=600, walltime_s=0.5, retries=5)], ME)
        wait_until(is_in(service, "j1", JobState.FAILED))
        assert service.api.job("j1").why == "its walltime of 0.5 s is over"
        assert service.api.job("j1").runs == 1


def test_no_jobs_are_no_jobs(tmp_path):
    with service_in(tmp_path) as service:
        assert service.api.submit([], ME) == ()
        assert service.api.submit([], ME, "again") == ()
        assert service.api.jobs(over=True) == []


def test_a_walltime_does_not_count_before_anything_runs(tmp_path):
    class Late(SimulatedNode):
        late = True

        def launch(self, run):
            if self.late:
                raise OSError("no process can be made")
            super().launch(run)

    pool = Late(tmp_path, TRUTH, SPEED)
    with service_in(tmp_path, pool=pool) as service:
        service.api.submit([spec(work_s=1, walltime_s=0.5)], ME)
        wait_until(lambda: "no process can be made" in service.api.service().trouble)
        placed_s = service.api.job("j1").since_s
        wait_until(lambda: service.api.service().now_s > placed_s + 1)
        pool.late = False
        wait_until(is_in(service, "j1", JobState.FINISHED))


def test_no_time_is_too_long_for_the_service(tmp_path):
    with service_in(tmp_path, watching=WatchOptions(), sample_s=1e15) as service:
        long = {"walltime_s": 1e15, "estimate_s": 1e15}
        service.api.submit([spec(work_s=2, **long), spec(work_s=1e14, **long)], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))
        service.api.cancel("j2", ME)
        wait_until(is_in(service, "j2", JobState.CANCELLED))


def test_a_grace_longer_than_the_administrator_allows_is_refused(tmp_path):
    with service_in(tmp_path) as service, pytest.raises(InputError) as refused:
        service.api.submit([spec(grace_s=3600.0), spec(grace_s=3600.5)], ME)
    message = "jobs[1].grace_s: must be <= 3600 s (the service's --max-grace), got 3600.5"
    assert str(refused.value) == message
    with service_in(tmp_path, limits=AdmissionLimits(grace_s=7200.0)) as service:
        assert service.api.submit([spec(grace_s=3600.5)], ME) == ("j1",)


def test_drained_devices_take_no_jobs_until_they_are_open_again(tmp_path):
    with service_in(tmp_path) as service:
        view = service.api.drain(["n-0"], True, ME)
        assert [device.trouble for device in view.devices] == ["is being drained by me", ""]
        service.api.submit([spec(), spec()], ME)
        wait_until(is_in(service, "j2", JobState.FINISHED))
        assert [service.api.job(job).gpus for job in ("j1", "j2")] == [("n-1",), ("n-1",)]
        service.api.drain([], True, ME)
        service.api.submit([spec(workers=2)], ME)
        assert service.api.explain("j3").splitlines() == [
            "j3: submitted",
            "it starts alone: its workload has no profile yet",
            "n-0, n-1 take no jobs: each is being drained by me",
        ]
        service.api.drain([], False, ME)
        wait_until(is_in(service, "j3", JobState.FINISHED))


def test_a_dry_run_starts_nothing_and_stops_nothing(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=600)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
    with service_in(tmp_path, dry_run=True) as service:
        service.api.submit([spec()], ME)
        wait_until(lambda: service.api.service().decide_s is not None)
        service.api.cancel("j1", ME)
        assert service.api.job("j1").state is JobState.STOPPING
        second = service.api.job("j2")
        assert second.state is JobState.SUBMITTED
        assert second.waiting_for == "a service that starts jobs: this is a dry run"
        explained = service.api.explain("j2").splitlines()
        assert explained[-2].startswith("starts alone on n-1")
        assert explained[-1] == "this is a dry run: nothing is started"
        assert service.api.service().dry_run
    assert kinds(tmp_path).count("placed") == 1
    with service_in(tmp_path) as service:
        wait_until(is_in(service, "j1", JobState.CANCELLED))
        wait_until(is_in(service, "j2", JobState.FINISHED))


class Full:
    """A journal whose disk is full while ``full`` is set; all else is the real one's."""

    full = False

    def __init__(self, journal):
        self._journal = journal
        self.replay, self.checkpoint = journal.replay, journal.checkpoint
        self.compact, self.sync = journal.compact, journal.sync

    def append(self, events):
        if Full.full:
            raise JournalError("journal.db: cannot be written: database or disk is full")
        return self._journal.append(events)


@pytest.fixture
def full():
    yield Full
    Full.full = False


def test_while_the_disk_is_full_jobs_run_on_and_nothing_is_promised(tmp_path, full):
    with service_in(tmp_path, full) as service:
        service.api.submit([spec(work_s=20), spec(work_s=600)], ME)
        wait_until(is_in(service, "j2", JobState.PROFILING))
        full.full = True
        with pytest.raises(BusyError, match="disk is full"):
            service.api.submit([spec()], ME)
        with pytest.raises(BusyError, match="disk is full"):
            service.api.cancel("j2", ME)
        wait_until(lambda: "disk is full" in service.api.service().trouble)
        assert {row.job for row in service.api.plan().assignments} == {"j1", "j2"}
        assert [view.id for view in service.api.jobs(over=True)] == ["j1", "j2"]
        full.full = False
        wait_until(is_in(service, "j1", JobState.FINISHED))
        assert service.api.submit([spec()], ME) == ("j3",)
        wait_until(is_in(service, "j3", JobState.FINISHED))
        assert service.api.service().trouble == ""
        assert service.api.job("j2").state is JobState.PROFILING


def test_a_service_that_starts_on_a_full_disk_serves_as_soon_as_there_is_room(tmp_path, full):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=600), spec(work_s=600)], ME)
        wait_until(is_in(service, "j2", JobState.PROFILING))
    full.full = True
    with service_in(tmp_path, full) as service:
        assert [view.state for view in service.api.jobs()] == [JobState.PROFILING] * 2
        assert "disk is full" in service.api.service().trouble
        with pytest.raises(BusyError, match="disk is full"):
            service.api.cancel("j2", ME)
    # It was ended before there was any.
    with service_in(tmp_path, full) as service:
        full.full = False
        wait_until(lambda: service.api.service().trouble == "")
        service.api.cancel("j2", ME)
        wait_until(is_in(service, "j2", JobState.CANCELLED))
        assert service.api.job("j1").runs == 1
    assert kinds(tmp_path).count("service_started") == 2


def environments(directory):
    submitted = (e.event for e in read_events(directory) if e.event.kind == "submitted")
    return [event.spec.env for event in submitted]


def test_what_ended_long_ago_is_removed_from_the_disk(tmp_path, monkeypatch):
    with service_in(tmp_path) as service:
        secret = {"env": {"TOKEN": "secret"}}
        service.api.submit([spec(work_s=1, **secret), spec(work_s=600), spec(work_s=1)], ME)
        wait_until(is_in(service, "j3", JobState.FINISHED))
        wait_until(is_in(service, "j1", JobState.FINISHED))
    for run in ("j1.1", "j2.1"):
        for path in (tmp_path / "runs" / run, tmp_path / "runs" / run / "rank0"):
            os.utime(path, (0, 0))
    for name in ("PRUNE_FIRST_S", "ROOM_S"):
        monkeypatch.setattr(f"dovetail.executor.live.service.{name}", 0.05)
    with service_in(tmp_path) as service:
        wait_until(lambda: not (tmp_path / "runs/j1.1").exists())
        assert {path.name for path in (tmp_path / "runs").iterdir()} == {"j2.1", "j3.1"}
        assert service.api.log_path("j1", 0, ME) is None
        assert service.api.job("j1").state is JobState.FINISHED
        assert service.api.job("j2").state is JobState.PROFILING
        # Files and events are removed by two threads.
        wait_until(lambda: environments(tmp_path) == [{}, {}, {}])
    with service_in(tmp_path, keep_s=0.0) as service:
        wait_until(lambda: kinds(tmp_path).count("submitted") == 1)
        assert [view.id for view in service.api.jobs(over=True)] == ["j1", "j2", "j3"]


def test_others_may_not_cancel_or_read(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=600), spec(work_s=600, public_log=True)], ME)
        wait_until(is_in(service, "j2", JobState.PROFILING))
        with pytest.raises(RefusedError, match="other may not cancel j1 of me"):
            service.api.cancel("j1", OTHER)
        with pytest.raises(RefusedError, match="other may not read the log of j1 of me"):
            service.api.log_path("j1", 0, OTHER)
        with pytest.raises(RefusedError, match="administrator"):
            service.api.drain([], True, OTHER)
        assert service.api.log_path("j2", 0, OTHER).endswith("j2.1/rank0/log")
        assert service.api.log_path("j2", 0, OTHER, 1).endswith("j2.1/rank0/log")
        with pytest.raises(InputError, match=r"^run: must be from 1 to 1, got 2$"):
            service.api.log_path("j2", 0, OTHER, 2)
        with pytest.raises(UnknownJobError, match="no job 'j7'"):
            service.api.cancel("j7", ME)


def test_jobs_that_can_never_run_are_refused(tmp_path):
    with service_in(tmp_path, limits=AdmissionLimits(any_user=False)) as service:
        with pytest.raises(InputError, match=r"jobs\[1\].workers: must be <= 2 .*, got 3"):
            service.api.submit([spec(), spec(workers=3)], ME)
        too_much = r"^memory_mib: must be <= 16000 \(the largest device\), got 20000$"
        with pytest.raises(InputError, match=too_much):
            service.api.submit([spec(memory_mib=20000.0)], ME)
        with pytest.raises(InputError, match=r"^cwd: must begin with '/', got 'here'$"):
            service.api.submit([spec().replace(cwd="here")], ME)
        for command in (("",), ("train", "a\0b")):
            with pytest.raises(InputError, match=r"^command: must name a program"):
                service.api.submit([spec().replace(command=command)], ME)
        with pytest.raises(InputError, match=r"owner\.uid"):
            service.api.submit([spec(owner=ME)], OTHER)
        with pytest.raises(InputError, match=r"owner\.uid: must be .* \(the service is not root\)"):
            service.api.submit([spec(owner=OTHER)], ME)
        assert service.api.jobs(over=True) == []


def test_a_flood_of_requests_waits_for_the_disk_together(tmp_path):
    synced = set()

    class Counted(Full):
        def __init__(self, journal):
            super().__init__(journal)

            def sync():
                synced.add(journal.sequence)
                journal.sync()

            self.sync = sync

    ids = []
    with service_in(tmp_path, Counted) as service:
        service.api.drain([], True, ME)

        def submit():
            ids.extend(job for _ in range(25) for job in service.api.submit([spec()], ME))

        threads = [threading.Thread(target=submit) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert sorted(ids, key=lambda job: int(job[1:])) == [f"j{k}" for k in range(1, 501)]
        assert len(synced) < 250


def test_a_repeated_request_with_the_same_key_gets_the_same_jobs(tmp_path):
    with service_in(tmp_path) as service:
        service.api.drain([], True, ME)
        first = service.api.submit([spec(), spec(workload="B")], ME, key="monday")
        assert first == ("j1", "j2")
        assert service.api.submit([spec(), spec(workload="B")], ME, key="monday") == first
        assert service.api.submit([spec()], ME) == ("j3",)
        with pytest.raises(InputError, match="key: must be new, got the key of j1 to j2"):
            service.api.submit([spec(), spec()], ME, key="monday")
        service.api.cancel("j1", ME)
    with service_in(tmp_path) as service:
        assert service.api.submit([spec(), spec(workload="B")], ME, key="monday") == first
        assert len(service.api.jobs(over=True)) == 3


def test_keys_of_two_users_are_two(tmp_path):
    administrator = Owner(name="root", uid=0, gid=0)
    with service_in(tmp_path) as service:
        service.api.drain([], True, ME)
        other = spec(owner=OTHER)
        ids = [service.api.submit([other], by, key="k") for by in (administrator, OTHER, OTHER)]
        assert ids == [("j1",), ("j2",), ("j2",)]


def test_one_key_asked_by_many_threads_at_once_is_one_job(tmp_path):
    ids = []
    with service_in(tmp_path) as service:
        service.api.drain([], True, ME)
        asking = [
            threading.Thread(target=lambda: ids.extend(service.api.submit([spec()], ME, key="k")))
            for _ in range(20)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(LIMIT_S)
        assert ids == ["j1"] * 20
        assert len(service.api.jobs()) == 1


class Linked(SimulatedNode):
    """A simulated pool whose runs load a library that is named in their command."""

    def library(self, run):
        return run.spec.command[-1]

    def allowed(self, library, model):
        return {"old": (50,), "new": (20, 80)}.get(library, ())


def test_the_library_that_a_workload_loaded_last_is_known_after_a_restart(tmp_path):
    def allowed(service, words):
        library = service.live.machine.library(spec(words=words))
        return set(service.live.pool.allowed(library, "V100"))

    def pool():
        return Linked(tmp_path, TRUTH, SPEED)

    with service_in(tmp_path, pool=pool(), sample_s=0.05) as service:
        service.api.submit([spec(work_s=20, words=["old"])], ME)
        wait_until(lambda: "library_seen" in kinds(tmp_path))
        wait_until(is_in(service, "j1", JobState.FINISHED))
    with service_in(tmp_path, pool=pool(), sample_s=0.05) as service:
        assert allowed(service, ["old"]) == {50}
        service.api.submit([spec(work_s=20, words=["new"])], ME)
        wait_until(lambda: allowed(service, ["new"]) == {20, 80})
        wait_until(is_in(service, "j2", JobState.FINISHED))
    assert kinds(tmp_path).count("library_seen") == 2


class Stubborn(SimulatedNode):
    """A simulated pool whose first orders fail."""

    def __init__(self, directory):
        super().__init__(directory, TRUTH, SPEED)
        self.failures = {"launch": 1, "stop": 1}

    def _fail_once(self, order):
        if self.failures[order]:
            self.failures[order] = 0
            raise OSError(f"no {order} today")

    def launch(self, run):
        self._fail_once("launch")
        super().launch(run)

    def stop(self, run, grace_s):
        self._fail_once("stop")
        super().stop(run, grace_s)


def test_what_a_pool_fails_to_do_is_done_later(tmp_path, caplog):
    with service_in(tmp_path, pool=Stubborn(tmp_path)) as service:
        service.api.submit([spec(600)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        assert service.api.service().trouble == ""
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j1", JobState.CANCELLED))
        assert service.api.job("j1").runs == 1
    assert "pool: no launch today" in caplog.text
    assert "pool: no stop today" in caplog.text


class Moody:
    """A policy that fails while ``fails`` is set, then starts waiting jobs on the first device."""

    fails = True

    def decide(self, state):
        if Moody.fails:
            raise ZeroDivisionError("in a mood")
        return Decision(starts=tuple(Start(job, (0,)) for job in state.pending.values()))


def test_a_policy_that_fails_or_overbooks_costs_idle_devices_only(tmp_path, caplog):
    policy = "python:tests.executor.live.test_service.Moody"
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([spec(), spec()], ME)
        wait_until(lambda: service.api.service().trouble == "the policy failed: in a mood")
        Moody.fails = False
        service.api.submit([spec()], ME)
        wait_until(lambda: not service.api.jobs())
        assert service.api.service().trouble == ""
        runs = [service.api.job(f"j{k}") for k in (1, 2, 3)]
        assert [view.gpus for view in runs] == [("n-0",)] * 3
        ended = sorted((view.started_s, view.ended_s) for view in runs)
        assert all(first[1] <= second[0] for first, second in pairwise(ended))
    assert "cannot start" in caplog.text


def test_what_is_reserved_for_a_gang_is_so_after_a_restart(tmp_path):
    policy = "dovetail:patience_s=0,patience_stretch=0"
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([spec(work_s=60, estimate_s=60.0)], ME)
        wait_until(lambda: service.api.job("j1").gpus)
        service.api.submit([spec(workers=2, estimate_s=10.0)], ME)
        reason = "n-1, n-0: reserved for it because it has waited too long"
        wait_until(lambda: service.api.job("j2").waiting_for == reason)
        service.api.submit([spec(estimate_s=1e6)], ME)
        reason = "an idle device; n-1 is idle, and reserved for j2"
        assert service.api.job("j3").waiting_for == reason
        service.api.cancel("j3", ME)
    with service_in(tmp_path, policy=policy) as service:
        # It would not end before the gang is to start.
        service.api.submit([spec(workload="B", estimate_s=1e6)], ME)
        wait_until(is_in(service, "j2", JobState.FINISHED))
        wait_until(is_in(service, "j4", JobState.FINISHED))
        assert service.api.job("j2").started_s < service.api.job("j4").started_s
    reserved = [e.event.job for e in read_events(tmp_path) if e.event.kind == "reserved"]
    assert reserved.count("j2") == 1


def test_what_is_reserved_for_a_service_is_named_and_taken_by_no_other(tmp_path):
    with service_in(tmp_path, policy="sjf") as service:
        service.api.submit([spec(work_s=600, estimate_s=600.0)], ME)
        wait_until(lambda: service.api.job("j1").gpus)
        service.api.submit([spec(workers=2, estimate_s=10.0, priority="latency", gsla=1.0)], ME)
        reason = "n-1, n-0: reserved for it because latency-critical jobs come first"
        wait_until(lambda: service.api.job("j2").waiting_for == reason)
        service.api.submit([spec(estimate_s=1.0)], ME)
        reason = "an idle device; n-1 is idle, and reserved for j2"
        wait_until(lambda: service.api.job("j3").waiting_for == reason)
        assert not service.api.job("j3").gpus
        assert "n-1, n-0: reserved for it because " in service.api.explain("j2")
        assert "n-1 is idle, and reserved for j2\n" in service.api.explain("j3")
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j3", JobState.FINISHED))
        assert service.api.job("j2").started_s < service.api.job("j3").started_s


class Reserver:
    """A policy that starts single jobs on the first device, and reserves both for gangs."""

    def decide(self, state):
        single = [job for job in state.pending.values() if job.workers == 1]
        gangs = [number for number, job in state.pending.items() if job.workers == 2]
        return Decision(
            starts=tuple(Start(job, (0,)) for job in single),
            reserved={number: Reservation((0, 1), state.now + 60) for number in gangs},
        )


def test_times_in_the_journal_never_go_back_where_a_decision_starts_and_reserves(tmp_path):
    policy = "python:tests.executor.live.test_service.Reserver"
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([spec(work_s=60), spec(workers=2)], ME)
        wait_until(lambda: "reserved" in kinds(tmp_path))
    assert {"placed", "reserved"} <= {*kinds(tmp_path)}
    times = [entry.event.at_s for entry in read_events(tmp_path)]
    assert times == sorted(times)


def test_another_policy_reserves_nothing(tmp_path):
    policy = "dovetail:patience_s=0,patience_stretch=0"
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([spec(work_s=60)], ME)
        wait_until(lambda: service.api.job("j1").gpus)
        service.api.submit([spec(workers=2)], ME)
        wait_until(lambda: "reserved" in service.api.job("j2").waiting_for)
    with service_in(tmp_path, policy="sjf") as service:
        wait_until(lambda: "reserved" not in service.api.job("j2").waiting_for)


class Capper:
    """A policy that starts every job alone at a cap that was never tried."""

    def decide(self, state):
        jobs = list(state.pending.values())[: sum(state.idle_count)]
        return Decision(starts=tuple(Start(job, (k,), (50,)) for k, job in enumerate(jobs)))


def test_a_job_whose_cap_is_refused_starts_without_one(tmp_path, caplog):
    policy = "python:tests.executor.live.test_service.Capper"
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([spec()], ME)
        wait_until(lambda: not service.api.jobs())
        assert service.api.job("j1").shares == (None,)
    assert "j1 cannot start: " in caplog.text


def test_a_job_that_is_over_shows_how_far_it_came(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec()], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))
        (shown,) = service.api.jobs(over=True)
        # It ended between two looks, and its end was looked at: 2 s of work, an iteration each.
        assert (shown.iterations, shown.total) == (pytest.approx(2.0), 2.0)
    with service_in(tmp_path) as service:
        assert service.api.job("j1").iterations is None


def test_a_job_is_edited_by_its_owner_and_its_place_by_an_administrator(tmp_path):
    with service_in(tmp_path, limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit([spec(held=True, owner=OTHER)], OTHER)
        third = Owner(name="third", uid=os.geteuid() + 1, gid=1)
        for changes, by in (({"nice": 1}, third), ({"command": ("rm",)}, ME), ({}, third)):
            with pytest.raises(RefusedError, match="may not edit j1 of other"):
                service.api.edit("j1", changes, by)
        assert service.api.edit("j1", {"nice": 3}, ME).nice == 3
        for name in ("owner", "env", "after", "most_running"):
            with pytest.raises(InputError, match=f"^{name}: cannot be edited"):
                service.api.edit("j1", {name: None}, OTHER)
        for name in ("retries", "workers", "nice"):
            with pytest.raises(InputError, match=f"^{name}: must be a whole number, got null"):
                service.api.edit("j1", {name: None}, OTHER)
        service.api.edit("j1", {"workload": "B", "command": ("train", "work_s=1")}, OTHER)
        service.api.hold("j1", False, OTHER)
        wait_until(is_in(service, "j1", JobState.FINISHED))
        assert service.api.job("j1").workload == "B"
    assert kinds(tmp_path).count("edited") == 2
    with service_in(tmp_path, limits=AdmissionLimits(any_user=True)) as service:
        assert service.api.job("j1").nice == 3
