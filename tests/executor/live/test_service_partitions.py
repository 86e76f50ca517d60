"""The service with static partitions on a made-up GPU; MPS is a stand-in that has them."""

from __future__ import annotations

import shutil

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.jobs.state_machine import JobState  # noqa: E402
from dovetail.executor.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.pools import gpu_health  # noqa: E402
from dovetail.instances.datasets import Measurement, Repository  # noqa: E402
from dovetail.instances.errors import InputError  # noqa: E402
from tests.executor.gpus.gpu_machine import gpu_machine, half_is_right, stand_in_cublas  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.waiting import wait_until  # noqa: E402

from .test_service import ME  # noqa: E402
from .test_service_gpu import becomes  # noqa: E402

NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
MODEL = "Injected H200 (static partitions)"
RIGHT = half_is_right(gpu_model=MODEL)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.3)
    with injected() as library, gpu_machine(library, release="590", static=True) as machine:
        yield machine


def chunks(machine):
    """Return the chunks of each partition of the GPU, as MPS says."""
    mps = MpsManager(machine.place / "m", program=machine.program, static=True)
    control = next(iter(mps._controls(machine.uuids[0])))
    return [one.chunks for one in control.partitions().partitions]


def measured(model, share, slowdown):
    return Measurement(
        workloads=("me/A", "me/B"),
        gpu_model=model,
        share=share,
        slowdown=(slowdown, slowdown),
        source="made up",
        date="2026-11-21",
    )


def profiled(machine, service, jobs):
    """Run each job alone until its profile and its library are known."""
    for job in service.api.submit(jobs, ME):
        becomes(service, job, JobState.RUNNING)
        assert chunks(machine) == [16]
        wait_until(lambda name=f"{job}.1": name in service._watch._library_seen)
        service.api.cancel(job, ME)
        becomes(service, job, JobState.CANCELLED)


@NEEDS_CC
def test_a_pair_runs_in_two_partitions_which_go_with_it(machine):
    cublas = stand_in_cublas(machine.place / "cublas", "130100")
    # Without caps the pair would be best, but there is no such way to share in this mode.
    found = [measured(MODEL, (None, None), 1.01), measured(MODEL, (50, 50), 1.1)]
    Repository(machine.state / "repository.db").append(measurements=found)
    jobs = [machine.job(cublas, workload=name, memory_mib=50.0) for name in "AB"]
    with machine.service(RIGHT) as service:
        profiled(machine, service, jobs)
        # A job that runs alone has the whole GPU, so nothing joins it.
        alone, other = service.api.submit([jobs[0]], ME) + service.api.submit([jobs[1]], ME)
        becomes(service, alone, JobState.RUNNING)
        wait_until(lambda: "an idle device" in service.api.job(other).waiting_for)
        assert chunks(machine) == [16]
        for job in (other, alone):
            service.api.cancel(job, ME)
            becomes(service, job, JobState.CANCELLED)
        service.api.drain([], True, ME)
        pair = service.api.submit(jobs, ME)
        service.api.drain([], False, ME)
        for job in pair:
            becomes(service, job, JobState.RUNNING)
        assert service.api.job(pair[0]).co_runners == ((pair[1],),)
        wait_until(lambda: all(machine.variables(f"{job}.1") for job in pair))
        given = [machine.variables(f"{job}.1") for job in pair]
        assert not any("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in one for one in given)
        assert len({one["CUDA_MPS_SM_PARTITION"] for one in given}) == 2
        assert chunks(machine) == [8, 8]
        assert [device.model for device in service.api.service().devices] == [MODEL]
    # A restarted service finds both, and removes that of a job that has ended.
    with machine.service(RIGHT) as service:
        wait_until(lambda: service.api.job(pair[1]).state is JobState.RUNNING)
        assert chunks(machine) == [8, 8]
        service.api.cancel(pair[0], ME)
        becomes(service, pair[0], JobState.CANCELLED)
        wait_until(lambda: chunks(machine) == [8])
        machine.finish()
        becomes(service, pair[1], JobState.FINISHED)
        wait_until(lambda: chunks(machine) == [])


def test_evidence_of_percentages_says_nothing_about_partitions(machine):
    limits = half_is_right()
    assert machine.pool(limits).cluster().shares == ()
    pool = machine.pool(RIGHT)
    assert pool.cluster().shares == (50,)
    assert pool.allowed("130100", MODEL) == (50,)
    assert pool.gate.missing("130100", MODEL) == (25, 75, 12, 88)
    assert not pool.cluster().uncapped
    machine.static = False
    pool = machine.pool(RIGHT)
    assert pool.cluster().shares == ()
    assert pool.gate.missing("130100", "Injected H200") == (50, 25, 75, 10, 90)


def test_without_static_partitions_the_pool_does_not_open():
    with injected() as library, gpu_machine(library, release="580", static=True) as machine:
        with pytest.raises(InputError, match="partitions=static is not possible"):
            machine.pool()
        machine.program = "no-such-mps-control"
        with pytest.raises(InputError, match="partitions=static needs MPS"):
            machine.pool()
