"""The service on made-up GPUs, from submission to end; ``gpu_machine`` says what is real."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.jobs.specs import Owner  # noqa: E402
from dovetail.executor.jobs.state_machine import JobState  # noqa: E402
from dovetail.executor.live.observation.tracks import WatchOptions  # noqa: E402
from dovetail.executor.pools import gpu, gpu_health  # noqa: E402
from dovetail.executor.system.bounded_folders import MOST_BYTES  # noqa: E402
from dovetail.instances.datasets import Measurement, Repository  # noqa: E402
from tests.executor.gpus.gpu_machine import gpu_machine, half_is_right, stand_in_cublas  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.local_runs import can_mount  # noqa: E402
from tests.executor.waiting import wait_until  # noqa: E402

from .test_service import ME, is_in  # noqa: E402

NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs of others")
NEEDS_MOUNTS = pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")
OTHER = Owner(name="other", uid=54321, gid=54321)
PATIENT = WatchOptions(profile_most_s=600.0)
"""Nothing is measured within a test's time."""


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.3)
    monkeypatch.setattr(gpu_health, "REST_S", 0.5)
    with injected() as library:
        yield library


@pytest.fixture
def machine(library):
    with gpu_machine(library) as machine:
        yield machine


@pytest.fixture
def pair(library):
    with gpu_machine(library, gpus=2) as machine:
        yield machine


def becomes(service, job, state):
    """Wait until a job is in a state; on a timeout report its explanation."""
    try:
        wait_until(is_in(service, job, state))
    except AssertionError:
        report = [
            service.api.explain(job),
            service.api.service().trouble,
            *service.api.job(job).history,
        ]
        raise AssertionError("\n".join(map(str, report))) from None


def trouble(service, place=0):
    return lambda: service.api.service().devices[place].trouble


# What a rank is given, and what is asked of it.


def test_a_job_is_profiled_as_a_client_and_its_daemon_goes_with_the_service(machine):
    with machine.service() as service:
        (job,) = service.api.submit([machine.job(priority="latency")], ME)
        becomes(service, job, JobState.RUNNING)
        assert machine.variables("j1.1") == {
            "CUDA_VISIBLE_DEVICES": machine.uuids[0],
            "CUDA_MPS_PIPE_DIRECTORY": str(machine.pipes()),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=100M",
        }
        states = [step.state for step in service.api.job(job).history]
        assert states == ["submitted", "starting", "profiling", "running"]
        machine.finish()
        becomes(service, job, JobState.FINISHED)
        assert len(machine.daemons()) == 1
    assert machine.daemons() == []
    (profile,) = Repository(machine.state / "repository.db").data_set().profiles
    assert profile.metrics.sm_active == pytest.approx(0.8)
    assert "NVML GPM" in profile.source
    assert profile.driver == "580.0 (injected)"


def test_a_gang_has_a_daemon_for_each_gpu(pair):
    with pair.service(watching=PATIENT) as service:
        (job,) = service.api.submit([pair.job(workers=2)], ME)
        becomes(service, job, JobState.PROFILING)
        given = [pair.variables("j1.1", rank) for rank in (0, 1)]
        assert {one["CUDA_VISIBLE_DEVICES"] for one in given} == set(pair.uuids)
        places = {one["CUDA_MPS_PIPE_DIRECTORY"] for one in given}
        assert places == {str(pair.pipes(gpu)) for gpu in (0, 1)}
        assert len(pair.daemons()) == 2


def test_an_orphan_of_a_job_is_its_client_and_is_terminated_before_it_is_killed(machine):
    with machine.service(watching=PATIENT) as service:
        job = machine.job()
        script = "trap '' TERM; (\"$@\" &); sleep 600"
        job = job.replace(command=("sh", "-c", script, "sh", *job.command))
        (name,) = service.api.submit([job], ME)
        becomes(service, name, JobState.PROFILING)
        service.api.cancel(name, ME)
        becomes(service, name, JobState.CANCELLED)
        # CUDA's error 810: MPS has ended its work.
        assert "810" in machine.log("j1.1").splitlines()


def test_a_job_that_never_uses_the_gpu_is_not_said_to_run_and_can_finish(machine):
    with machine.service() as service:
        idle = machine.job().replace(
            command=("sh", "-c", "until test -e finish; do sleep 0.1; done")
        )
        (job,) = service.api.submit([idle], ME)
        wait_until(lambda: any(service.api.job(job).pids))
        wait_until(lambda: len(machine.daemons()) == 1)
        assert service.api.job(job).state is JobState.STARTING
        machine.finish()
        becomes(service, job, JobState.FINISHED)


def test_a_job_on_the_gpu_but_outside_mps_is_stopped(machine, monkeypatch):
    monkeypatch.setattr(gpu, "OUTSIDE_S", 0.2)
    with machine.service() as service:
        outside = machine.job().replace(command=("sh", "-c", "sleep 600; true"))
        (job,) = service.api.submit([outside], ME)
        wait_until(lambda: any(service.api.job(job).pids))
        machine.library.processes["compute"] = [(service.api.job(job).pids[0], 1 << 30)]
        becomes(service, job, JobState.FAILED)
        assert "not under MPS" in service.api.job(job).why


# Caps.


def a_pair(machine, caps, slowdown):
    return Measurement(
        workloads=("me/A", "me/B"),
        gpu_model="Injected H200",
        share=caps,
        slowdown=(slowdown, slowdown),
        source="made up",
        date="2026-11-21",
    )


@NEEDS_CC
@pytest.mark.parametrize(("measured", "share"), [("130100", 50), ("120600", None)])
def test_a_pair_is_capped_only_where_its_cublas_computed_right(machine, measured, share):
    cublas = stand_in_cublas(machine.place / "cublas", "130100")
    found = [a_pair(machine, (None, None), 1.2), a_pair(machine, (50, 50), 1.1)]
    Repository(machine.state / "repository.db").append(measurements=found)
    jobs = [machine.job(cublas, workload=name, memory_mib=50.0) for name in "AB"]
    with machine.service(half_is_right(measured)) as service:
        for job in service.api.submit(jobs, ME):
            becomes(service, job, JobState.RUNNING)
            wait_until(lambda name=f"{job}.1": name in service._watch._library_seen)
            service.api.cancel(job, ME)
            becomes(service, job, JobState.CANCELLED)
        service.api.drain([], True, ME)
        first, second = service.api.submit(jobs, ME)
        service.api.drain([], False, ME)
        becomes(service, first, JobState.RUNNING)
        becomes(service, second, JobState.RUNNING)
        assert service.api.job(first).co_runners == ((second,),)
        wait_until(lambda: machine.variables("j4.1"))
        name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
        caps = [machine.variables(run).get(name) for run in ("j3.1", "j4.1")]
        assert caps == [str(share) if share else None] * 2


@NEEDS_CC
def test_a_job_whose_cublas_is_another_than_it_was_loses_its_cap(machine):
    right = stand_in_cublas(machine.place / "right", "130100")
    other = stand_in_cublas(machine.place / "other", "120600")
    found = [a_pair(machine, (None, None), 1.9), a_pair(machine, (50, 50), 1.1)]
    Repository(machine.state / "repository.db").append(measurements=found)
    jobs = [machine.job(right, workload=name, memory_mib=50.0) for name in "AB"]
    with machine.service(half_is_right()) as service:
        for job in service.api.submit(jobs, ME):
            becomes(service, job, JobState.RUNNING)
            wait_until(lambda name=f"{job}.1": name in service._watch._library_seen)
            service.api.cancel(job, ME)
            becomes(service, job, JobState.CANCELLED)
        service.api.drain([], True, ME)
        changed = machine.job(other, workload="A", memory_mib=50.0)
        first, second = service.api.submit([changed, jobs[1]], ME)
        service.api.drain([], False, ME)
        wait_until(lambda: "its library" in service.api.job(first).why)
        becomes(service, first, JobState.WAITING)
        assert (
            service.api.job(first).why == "its library 120600 is not known to compute right at 50 %"
        )
        service.api.cancel(second, ME)
        becomes(service, first, JobState.RUNNING)
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in machine.variables(f"{first}.1")
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in machine.variables(f"{first}.2")


# Restarts.


def test_a_service_that_comes_back_finds_clients_daemons_and_sick_gpus_again(pair):
    with pair.service(watching=PATIENT) as service:
        (job,) = service.api.submit([pair.job()], ME)
        becomes(service, job, JobState.PROFILING)
        (place,) = (pair.names.index(name) for name in service.api.job(job).gpus)
        pair.library.xids = [(1 - place, 79)]
        wait_until(trouble(service, 1 - place))
        pids, daemons = service.api.job(job).pids, pair.daemons()
    assert pair.daemons() == daemons  # a daemon with a client is kept
    with pair.service(watching=PATIENT) as service:
        wait_until(lambda: service.api.job(job).pids == pids)
        assert service.api.job(job).state is JobState.PROFILING
        assert "Xid 79" in trouble(service, 1 - place)()
        (second,) = service.api.submit([pair.job()], ME)
        pair.finish()
        becomes(service, second, JobState.FINISHED)
        assert service.api.job(second).gpus == service.api.job(job).gpus
        assert pair.daemons() == daemons


# Faults.


def test_a_fault_makes_the_gpu_sick_until_its_clients_have_left(machine):
    with machine.service(watching=PATIENT) as service:
        (job,) = service.api.submit([machine.job()], ME)
        becomes(service, job, JobState.PROFILING)
        machine.tell_standin("fault")
        becomes(service, job, JobState.FAILED)
        assert service.api.job(job).why == "rank 0 ended with status 1"
        wait_until(lambda: not trouble(service)())
        (second,) = service.api.submit([machine.job()], ME)
        becomes(service, second, JobState.PROFILING)


def test_the_co_runner_of_a_fault_is_started_again(machine):
    found = [a_pair(machine, (None, None), 1.2)]
    Repository(machine.state / "repository.db").append(measurements=found)
    jobs = [machine.job(workload=name, memory_mib=50.0) for name in "AB"]
    with machine.service() as service:
        for job in service.api.submit(jobs, ME):
            becomes(service, job, JobState.RUNNING)
            service.api.cancel(job, ME)
            becomes(service, job, JobState.CANCELLED)
        service.api.drain([], True, ME)
        pair = service.api.submit(jobs, ME)
        service.api.drain([], False, ME)
        for job in pair:
            becomes(service, job, JobState.RUNNING)
        machine.library.xids = [(0, 31)]
        machine.tell_standin("fault")
        for job in pair:
            wait_until(lambda job=job: service.api.job(job).runs == 2)
            becomes(service, job, JobState.RUNNING)
            reasons = [step.why for step in service.api.job(job).history]
            assert any("of j3.1 and j4.1" in why or "of j3.1, j4.1" in why for why in reasons)


def test_a_daemon_that_dies_under_its_client_takes_the_job_along_and_is_replaced(machine):
    with machine.service(watching=PATIENT) as service:
        (job,) = service.api.submit([machine.job()], ME)
        becomes(service, job, JobState.PROFILING)
        (daemon,) = machine.daemons()
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: service.api.job(job).runs == 2)
        becomes(service, job, JobState.PROFILING)
        assert "the MPS server of its GPU failed" in [s.why for s in service.api.job(job).history]
        wait_until(lambda: not trouble(service)())
        assert machine.daemons() != [daemon]


def test_a_gpu_that_falls_silent_is_sick_until_it_answers(machine):
    with machine.service() as service:
        machine.library.lost = {0}
        wait_until(trouble(service))
        assert "GPU is lost" in trouble(service)()
        machine.library.lost = set()
        wait_until(lambda: not trouble(service)())


def test_a_refusal_of_mps_fails_no_job(machine, monkeypatch):
    """Jobs wait while another user's MPS is on the GPU."""
    from dovetail.executor.mps.control import Control

    foreign = machine.place / "foreign"
    foreign.mkdir(mode=0o700)
    other = Control(foreign, machine.uuids[0], os.geteuid(), machine.program)
    other.start()
    with machine.service(watching=PATIENT) as service:
        (job,) = service.api.submit([machine.job()], ME)
        wait_until(lambda: "MPS of others" in trouble(service)())
        becomes(service, job, JobState.SUBMITTED)
        assert service.api.job(job).runs <= 1
        other.quit(1.0)
        becomes(service, job, JobState.PROFILING)


# Users.


@NEEDS_ROOT
@NEEDS_MOUNTS
def test_a_job_that_fills_the_folder_of_its_daemon_takes_nothing_from_other_users(pair):
    pair.state.chmod(0o755)
    fills = 'head -c 300000000 /dev/zero > "$CUDA_MPS_PIPE_DIRECTORY/x"; exec "$@"'
    with pair.service(watching=PATIENT) as service:
        job = pair.job(owner=OTHER)
        job = job.replace(command=("sh", "-c", fills, "sh", *job.command))
        (theirs,) = service.api.submit([job], ME)
        wait_until(lambda: "No space left on device" in pair.log("j1.1"))
        gpu = pair.names.index(service.api.job(theirs).gpus[0])
        folder = pair.pipes(gpu, OTHER.uid)
        assert 0 < (folder / "x").stat().st_size <= MOST_BYTES
        assert folder.stat().st_dev != folder.parent.stat().st_dev
        # Neither the folders of other users nor the service's disk have lost anything by it.
        (mine,) = service.api.submit([pair.job()], ME)
        becomes(service, mine, JobState.PROFILING)
        assert pair.log("j2.1")


@NEEDS_ROOT
def test_a_gpu_passes_from_one_user_to_another_once_the_first_has_left(machine):
    machine.state.chmod(0o755)
    with machine.service(watching=PATIENT) as service:
        mine, theirs = service.api.submit([machine.job(), machine.job(owner=OTHER)], ME)
        becomes(service, mine, JobState.PROFILING)
        assert service.api.job(theirs).state is JobState.SUBMITTED
        assert machine.pipes().exists()
        service.api.cancel(mine, ME)
        becomes(service, theirs, JobState.PROFILING)
        given = machine.variables("j2.1")
        assert given["CUDA_MPS_PIPE_DIRECTORY"] == str(machine.pipes(uid=OTHER.uid))
        assert machine.pipes(uid=OTHER.uid).stat().st_uid == OTHER.uid
        assert len(machine.daemons()) == 1
