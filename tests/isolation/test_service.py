"""Isolated pairs in live mode: real services, jobs, schedulers and library over a made-up GPU."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.jobs.journal import read_events  # noqa: E402
from dovetail.executor.jobs.state_machine import JobState  # noqa: E402
from dovetail.executor.live.observation.tracks import WatchOptions  # noqa: E402
from dovetail.executor.mps import processes  # noqa: E402
from dovetail.executor.pools import gpu_health  # noqa: E402
from dovetail.instances.datasets import Measurement, Repository, SoloProfile  # noqa: E402
from dovetail.instances.metrics import Metrics  # noqa: E402
from dovetail.isolation import schedulers  # noqa: E402
from dovetail.isolation.assemble import find_ptxas  # noqa: E402
from dovetail.isolation.schedulers import Schedulers  # noqa: E402
from tests.executor.gpus.gpu_machine import gpu_machine  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.live.test_service import ME  # noqa: E402
from tests.executor.live.test_service_gpu import becomes  # noqa: E402
from tests.executor.waiting import wait_until  # noqa: E402
from tests.isolation import made_up_gpu  # noqa: E402
from tests.isolation.tasks import task  # noqa: E402

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
ROOT = Path(__file__).parents[2]
PATIENT = WatchOptions(profile_most_s=600.0)


@pytest.fixture(scope="module")
def cuda(tmp_path_factory):
    return made_up_gpu.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def machine(monkeypatch, cuda):
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.3)
    with injected() as library, gpu_machine(library) as machine:
        machine.isolation = Schedulers(machine.state / "isolation", idle_s=8.0)
        machine.cuda = cuda
        yield machine
        for process in running(machine):
            processes.kill(process, 10)


def teach(machine, plain_p99=4.5):
    """Let both workloads be known; without isolation, chat is too slow unless the p99 is less."""
    profiles = [
        SoloProfile(
            workload=f"me/{name}",
            gpu_model="Injected H200",
            metrics=Metrics(gpu_util=0.4),
            throughput=1e-3,
            memory_mib=50.0,
        )
        for name in ("chat", "train")
    ]
    plain = Measurement(
        workloads=("me/chat", "me/train"),
        gpu_model="Injected H200",
        slowdown=(1.05, 3.0),
        p99=(plain_p99, 3.0),
    )
    repository = Repository(machine.state / "repository.db")
    repository.append(profiles=profiles, measurements=[plain])


@pytest.fixture
def known(machine):
    teach(machine)


def running(machine):
    program = "dovetail.isolation.server"
    place = str(machine.isolation.directory)
    return [one for one in processes.running(program) if any(place in a for a in one.arguments)]


def jobs(machine):
    """Return a latency-critical job and one that may run in its idle time."""
    file = machine.work / "tasks"
    file.write_bytes(pickle.dumps([task("update_in_place"), task("three_dimensions")]))

    def of(name, pause_s, **fields):
        program = ("-m", "tests.isolation.made_up_job", str(file), str(pause_s))
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "JOB_NAME": name}
        env["LD_LIBRARY_PATH"] = str(machine.cuda)
        job = machine.job(workload=name, memory_mib=50.0, isolation="blocks", **fields)
        return job.replace(command=(sys.executable, *program), env=env)

    return of("chat", 0.05, priority="latency", gsla=1.1), of("train", 0.0)


def start(service, machine):
    """Submit both at once, and return their ids."""
    service.api.drain([], True, ME)
    pair = service.api.submit(jobs(machine), ME)
    service.api.drain([], False, ME)
    return pair


def start_isolated(service, machine):
    chat, train = start(service, machine)
    for job in (chat, train):
        becomes(service, job, JobState.RUNNING)
    assert service.api.job(train).shares == ("idle",)
    assert service.api.job(chat).shares == (None,)
    wait_until(lambda: service.api.job(train).launches.get("isolated", 0) > 3)
    wait_until(lambda: service.api.job(chat).launches.get("announced", 0) > 3)
    return chat, train


def test_launches_that_are_counted_anyway_are_kernels_a_second(machine, known):
    with machine.service(watching=PATIENT) as service:
        start_isolated(service, machine)

        def read():
            usage = service.live.readings.usage.get(machine.names[0])
            return usage.metrics.get("kernels_s", 0.0) if usage else 0.0

        wait_until(lambda: read() > 0)


def finish(machine, name):
    (machine.work / f"finish-{name}").touch()


def right(machine, run):
    """Return whether a run has ended by itself and computed what it had to."""
    log = machine.log(run)
    print(run, "ended with:", log[-300:])
    return "wrong" not in log and "forms" in log


def test_a_pair_is_isolated_and_computes_the_same(machine, known):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
        belief = service.live.beliefs.belief(train, chat, machine.names[0])
        assert "published means" in belief.source
        (scheduler,) = running(machine)
        assert scheduler.uid == os.geteuid()
        for job, name in ((train, "train"), (chat, "chat")):
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.1")
        assert "__dovetail_" in machine.log("j2.1")
        assert "__dovetail_" not in machine.log("j1.1")
        wait_until(lambda: not running(machine), "a scheduler that is not needed ends")


def test_a_latency_critical_job_joins_a_best_effort_job_that_runs_already(machine, known):
    chat, train = jobs(machine)
    with machine.service(watching=PATIENT) as service:
        # By the profile, an iteration is 1,000 s of work: a job that ends soon is waited for.
        (first,) = service.api.submit([train.replace(estimate_s=1e8)], ME)
        becomes(service, first, JobState.RUNNING)
        assert service.api.job(first).shares == (None,)
        wait_until(lambda: sum(service.api.job(first).launches.values()) > 3)
        (second,) = service.api.submit([chat], ME)
        becomes(service, second, JobState.RUNNING)
        assert service.api.job(first).shares == ("idle",)
        assert service.api.job(first).co_runners == ((second,),)
        belief = service.live.beliefs.belief(first, second, machine.names[0])
        assert "published means" in belief.source
        wait_until(lambda: service.api.job(second).launches.get("announced", 0) > 3)
        seen = service.api.job(first).launches.get("isolated", 0)
        wait_until(lambda: service.api.job(first).launches.get("isolated", 0) > seen)
        finish(machine, "chat")
        becomes(service, second, JobState.FINISHED)
        assert service.api.job(first).shares == (None,)
        assert service.api.job(first).state is JobState.RUNNING
        finish(machine, "train")
        becomes(service, first, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.1")


def reported(machine, kind, run):
    """Return whether an event of a run is in the journal."""
    found = (entry.event for entry in read_events(machine.state))
    return any(event.kind == kind and event.run == run for event in found)


def test_a_best_effort_job_alone_runs_on_without_its_scheduler_and_joins_the_next(machine, known):
    chat, train = jobs(machine)
    with machine.service(watching=PATIENT) as service:
        (first,) = service.api.submit([train.replace(estimate_s=1e8)], ME)
        becomes(service, first, JobState.RUNNING)
        # A process that has joined no scheduler yet loses none.
        wait_until(lambda: "iteration" in machine.log("j1.1"))
        (scheduler,) = running(machine)
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_until(lambda: reported(machine, "isolation_lost", "j1.1"))
        wait_until(lambda: not service.api.job(first).unisolated, "it is isolated again")
        (second,) = service.api.submit([chat], ME)
        becomes(service, second, JobState.RUNNING)
        assert service.api.job(first).run == "j1.1"
        assert service.api.job(first).shares == ("idle",)
        assert service.api.job(first).co_runners == ((second,),)
        for job, name in ((second, "chat"), (first, "train")):
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.1")


def test_a_scheduler_that_dies_is_replaced_and_the_pair_is_isolated_again(machine, known):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
        (scheduler,) = running(machine)
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_until(lambda: service.api.job(train).run == "j2.2", "it has been started again")
        becomes(service, train, JobState.RUNNING)
        assert reported(machine, "isolation_lost", "j1.1")
        assert reported(machine, "isolation_regained", "j1.1")
        whys = [state.why for state in service.api.job(train).history]
        assert any("j1 is not isolated: the scheduler" in why for why in whys)
        assert service.api.job(chat).run == "j1.1"
        assert service.api.job(train).shares == ("idle",)
        assert service.api.job(train).co_runners == ((chat,),)
        for job, name in ((chat, "chat"), (train, "train")):
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.2")
        assert "wrong" not in machine.log("j2.1")


def test_a_scheduler_that_hangs_is_killed(machine, known):
    with machine.service(watching=PATIENT) as service:
        _, train = start_isolated(service, machine)
        (scheduler,) = running(machine)
        os.kill(scheduler.pid, signal.SIGSTOP)
        becomes(service, train, JobState.WAITING)
        wait_until(lambda: [one.pid for one in running(machine)] not in ([], [scheduler.pid]))


def test_a_service_that_comes_back_finds_pair_and_scheduler(machine, known):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
        pids = service.api.job(chat).pids, service.api.job(train).pids
        (scheduler,) = running(machine)
    with machine.service(watching=PATIENT) as service:
        for job in (chat, train):
            becomes(service, job, JobState.RUNNING)
        for _ in range(2):
            seen = service.api.job(train).launches.get("isolated", 0)
            wait_until(lambda s=seen: service.api.job(train).launches.get("isolated", 0) > s)
        assert (service.api.job(chat).pids, service.api.job(train).pids) == pids
        assert [one.pid for one in running(machine)] == [scheduler.pid]
        for job, name in ((train, "train"), (chat, "chat")):
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)
        assert service.api.job(chat).unisolated == ""
        assert right(machine, "j1.1")
        assert right(machine, "j2.1")


def test_a_scheduler_that_died_while_there_was_no_service_is_missed(machine, known):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
    (scheduler,) = running(machine)
    os.kill(scheduler.pid, signal.SIGKILL)
    with machine.service(watching=PATIENT) as service:
        becomes(service, train, JobState.WAITING)
        becomes(service, chat, JobState.RUNNING)
        finish(machine, "chat")
        becomes(service, chat, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert "wrong" not in machine.log("j2.1")


def test_jobs_that_run_keep_their_scheduler_without_a_service(machine, known):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
    (scheduler,) = running(machine)
    # Longer than one that is not needed lives.
    at = machine.isolation.status(machine.uuids[0], os.geteuid()).launches["isolated"]
    wait_until(lambda: len(machine.log("j1.1").splitlines()) > 250)
    with machine.service(watching=PATIENT) as service:
        wait_until(lambda: service.api.job(train).launches.get("isolated", 0) > at)
        assert [one.pid for one in running(machine)] == [scheduler.pid]
        assert service.api.job(chat).unisolated == ""


def test_a_service_that_comes_back_and_cannot_isolate_stops_what_has_to_be(
    machine, known, monkeypatch
):
    with machine.service(watching=PATIENT) as service:
        chat, train = start_isolated(service, machine)
    monkeypatch.setattr(schedulers, "find_ptxas", lambda: None)
    with machine.service(watching=PATIENT) as service:
        becomes(service, train, JobState.WAITING)
        assert "does not isolate runs" in service.api.job(train).why
        becomes(service, chat, JobState.RUNNING)
        assert service.api.explain(train)


@pytest.mark.parametrize("plain_p99", [0.95, 4.5])
def test_without_the_library_only_a_pair_that_is_allowed_shares(machine, plain_p99):
    teach(machine, plain_p99)
    with machine.service(watching=PATIENT) as service:
        (shim,) = machine.isolation.directory.glob("*.so")
        shim.unlink()
        chat, train = start(service, machine)
        becomes(service, chat, JobState.RUNNING)
        for job in (chat, train):
            wait_until(lambda j=job: "library" in service.api.job(j).unisolated)
            assert any("not isolated" in s.why for s in service.api.job(job).history)
        if plain_p99 < 1:
            becomes(service, train, JobState.RUNNING)
            assert service.api.job(train).shares == (None,)
            assert service.api.job(train).co_runners == ((chat,),)
        else:
            assert service.api.job(train).state is JobState.WAITING
        finish(machine, "chat")
        becomes(service, chat, JobState.FINISHED)
        becomes(service, train, JobState.RUNNING)
        finish(machine, "train")
        becomes(service, train, JobState.FINISHED)
        assert right(machine, service.api.job(chat).run)
        assert right(machine, service.api.job(train).run)
    kinds = [entry.event.kind for entry in read_events(machine.state)]
    assert kinds.count("isolation_lost") == 2


def test_without_an_assembler_no_pair_is_isolated(machine, known, monkeypatch):
    monkeypatch.setattr(schedulers, "find_ptxas", lambda: None)
    with machine.service(watching=PATIENT) as service:
        chat, train = start(service, machine)
        becomes(service, chat, JobState.RUNNING)
        assert service.api.job(train).state is JobState.WAITING
        assert not running(machine)
        finish(machine, "chat")
        becomes(service, chat, JobState.FINISHED)
        becomes(service, train, JobState.RUNNING)
        assert "LD_PRELOAD" not in machine.log("j2.1")
