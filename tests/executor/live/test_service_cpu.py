"""The service with real processes, on processor cores."""

from __future__ import annotations

import os
import textwrap
import time
from contextlib import contextmanager

import pytest

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.pool import SAMPLE_S
from dovetail.executor.system.directories import LOCK
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import InputError
from tests.executor.live.test_service import ME, is_in, serving, spec
from tests.executor.local_runs import cleared, python
from tests.executor.waiting import wait_until

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}


@pytest.fixture
def directory(tmp_path):
    with cleared(tmp_path):
        yield tmp_path


class Killed(BaseException):
    """The service is no more."""


@contextmanager
def service_on_cores(directory, watching=None, sample_s=SAMPLE_S, devices=1, **replaced):
    with Journal(directory) as journal:
        pool = CpuPool(directory, devices=devices)
        for name, method in replaced.items():
            setattr(pool, name, method)
        repository = Repository(directory / "repository.db")
        options = ServiceOptions(watching=watching or WatchOptions(), sample_s=sample_s)
        made = Service(journal, pool, repository, options)
        with serving(made) as service:
            yield service


def job(code, directory, **fields):
    """Return a job that runs Python code in a directory."""
    return spec().replace(command=python(code), cwd=str(directory), env=ENV, **fields)


def test_real_jobs_run_one_after_the_other_and_outlive_the_service(directory):
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    with service_on_cores(directory) as service:
        service.api.submit([job(wait, directory), job("raise SystemExit(3)", directory)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        (pid,) = service.api.job("j1").pids
    with service_on_cores(directory) as service:
        wait_until(lambda: service.api.job("j1").pids == (pid,))
        assert service.api.job("j1").state is JobState.PROFILING
        (directory / "go").touch()
        wait_until(lambda: not service.api.jobs())
        views = service.api.jobs(over=True)
        assert [(view.state, view.runs, view.statuses) for view in views] == [
            (JobState.FINISHED, 1, (0,)),
            (JobState.FAILED, 1, (3,)),
        ]
        assert "ended with status 3" in views[1].why


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_jobs_of_one_round_start_in_parallel(directory):
    """Each loads until the other has loaded, too: neither ever would if one start waited."""
    load = """
        import pathlib, sys, time
        pathlib.Path(sys.argv[1]).touch()
        while not pathlib.Path(sys.argv[2]).exists():
            time.sleep(0.02)
    """
    with service_on_cores(directory, devices=2) as service:
        jobs = [job(textwrap.dedent(load), directory) for _ in range(2)]
        names = ["first", "second"]
        both = [
            one.replace(command=(*one.command, *order), workload=order[0])
            for one, order in zip(jobs, (names, names[::-1]), strict=True)
        ]
        service.api.drain([], True, ME)
        service.api.submit(both, ME)
        service.api.drain([], False, ME)
        wait_until(lambda: not service.api.jobs())
        states = [view.state for view in service.api.jobs(over=True)]
        assert states == [JobState.FINISHED] * 2


def test_a_job_that_ended_while_no_service_ran_ended_then(directory):
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    with service_on_cores(directory) as service:
        service.api.submit([job(wait, directory)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
    (directory / "go").touch()
    wait_until((directory / "runs/j1.1/rank0/exit.json").exists)
    # Separate the service's start from the job's end by more than two clocks can differ.
    time.sleep(1.0)
    with service_on_cores(directory) as service:
        wait_until(lambda: not service.api.jobs())
        assert service.api.job("j1").ended_s < service.api.service().started_s


def test_a_job_that_is_cancelled_leaves_no_process(directory):
    with service_on_cores(directory) as service:
        service.api.submit([job("import time\ntime.sleep(600)", directory, grace_s=5.0)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        (pid,) = service.api.job("j1").pids
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j1", JobState.CANCELLED))
        assert not os.path.exists(f"/proc/{pid}")


def test_what_takes_no_notice_of_being_asked_can_be_killed_now(directory):
    deaf = (
        "import pathlib, signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
        "pathlib.Path('deaf').touch()\ntime.sleep(600)"
    )
    with service_on_cores(directory) as service:
        service.api.submit([job(deaf, directory, grace_s=3600.0)], ME)
        wait_until((directory / "deaf").exists)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        service.api.cancel("j1", ME)
    with service_on_cores(directory) as service:
        wait_until(lambda: (directory / "runs/j1.1/stop.json").exists())
        assert service.api.job("j1").state is JobState.STOPPING
        service.api.cancel("j1", ME, grace_s=0.0)
        wait_until(is_in(service, "j1", JobState.CANCELLED))


def test_a_job_that_was_asked_to_end_has_not_finished_where_the_journal_has_lost_that(directory):
    saves = (
        "import pathlib, signal, sys, time\nsignal.signal(15, lambda *_: pathlib.Path('asked')"
        ".touch())\npathlib.Path('ready').touch()"
        "\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    )
    with service_on_cores(directory) as service:
        service.api.submit([job(saves, directory, grace_s=600.0, requeue=False)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        wait_until((directory / "ready").exists)
    before = (directory / "journal.db").read_bytes()
    with service_on_cores(directory) as service:
        service.api.cancel("j1", ME)
        wait_until((directory / "asked").exists)
    (directory / "journal.db").write_bytes(before)
    (directory / LOCK).unlink()
    (directory / "go").touch()
    wait_until((directory / "runs/j1.1/rank0/exit.json").exists)
    with service_on_cores(directory) as service:
        wait_until(lambda: not service.api.jobs())
        why = "rank 0 was asked to end, and the journal does not say why"
        assert [(view.state, view.why) for view in service.api.jobs(over=True)] == [
            (JobState.FAILED, why)
        ]


def run_until_release(directory):
    """Run a job with a service that is killed when it would release it."""

    def killed(run):
        raise Killed

    with service_on_cores(directory, release=killed) as service:
        service.api.submit([job("pass", directory)], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))


def test_a_run_that_was_not_released_before_a_kill_is_released_at_the_next_start(directory):
    with pytest.raises(Killed):
        run_until_release(directory)
    # It holds the environment of the job.
    spec_file = directory / "runs/j1.1/rank0/spec.json"
    assert spec_file.exists()
    with service_on_cores(directory):
        wait_until(lambda: not spec_file.exists())


def test_the_p99_that_a_server_reports_gets_into_the_repository(directory):
    server = """
        import time
        from dovetail_progress import latency, step
        while True:
            began_s = time.perf_counter()
            time.sleep(0.002)
            latency(time.perf_counter() - began_s)
            step()
    """
    soon = WatchOptions(warm_up_s=0.1, settle_s=0.1, profile_s=1.0, profile_most_s=300.0)
    with service_on_cores(directory, soon, sample_s=0.05) as service:
        code = textwrap.dedent(server)
        service.api.submit([job(code, directory, priority="latency", memory_mib=64.0)], ME)
        wait_until(is_in(service, "j1", JobState.RUNNING))
        repository = Repository(directory / "repository.db")
        wait_until(lambda: repository.path.exists() and repository.since(0))
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j1", JobState.CANCELLED))
    (profile,) = repository.data_set().profiles
    assert profile.latency_p99_s >= 0.002 * 0.978


SWEEP = """
import os, pathlib, time
place = pathlib.Path(f"on-{os.environ['DOVETAIL_GPU']}")
place.touch(exist_ok=False)  # fails where another is there
time.sleep(0.2)
place.unlink()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processor cores")
def test_a_sweep_of_jobs_that_need_most_of_a_device_runs_without_two_on_one(directory):
    # facebookincubator/submitit 1689: tasks of an array, and gangs, of which no two fit together.
    with Journal(directory) as journal:
        pool = CpuPool(directory, devices=2)
        most_mib = 0.6 * min(gpu.memory_mib for gpu in pool.cluster().nodes[0].devices)
        with serving(Service(journal, pool, Repository(directory / "r.db"))) as service:
            tasks = [job(SWEEP, directory, memory_mib=most_mib) for _ in range(4)]
            gangs = [job(SWEEP, directory, memory_mib=most_mib, workers=2) for _ in range(2)]
            ids = service.api.submit([*tasks, *gangs], ME)
            with pytest.raises(InputError, match=r"workers: must be <= 2"):
                service.api.submit([job(SWEEP, directory, workers=9)], ME)
            for name in ids:
                wait_until(is_in(service, name, JobState.FINISHED))
