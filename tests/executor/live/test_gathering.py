"""The service measures shares itself: made-up evidence, but real services, journals and processes.

On processor cores, the programs that measure are real processes; faults are those of real programs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.executor.gpus.splits import SplitKey, read_splits
from dovetail.executor.jobs.journal import Journal, read_events, read_state_machine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.rounds.gathering import Gatherer, GatherOptions
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.made_up_shares import MadeUpProgram, SimulatedProgram
from dovetail.executor.pools.runs.files import home_token
from dovetail.executor.pools.runs.processes import tokens
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Repository
from dovetail.instances.instance import Instance
from tests.executor.live.test_service import ME, is_in, serving, spec
from tests.executor.local_runs import cleared, python
from tests.executor.waiting import wait_until

CPU = SplitKey("cpu-1-core", "made-up", "made-up")
GPU = SplitKey("V100", "made-up", "made-up")
OPTIONS = GatherOptions(idle_s=0.0, rest_s=3600.0)
RIGHT = "print('{\"wrong\": 0}')"
HANGS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("here", flush=True)
time.sleep(3600)
"""

TRUTH = Instance.from_data(
    {
        "format": "dovetail-instance/1",
        "name": "truth",
        "cluster": {
            "shares": [40, 50, 60],
            "nodes": [{"id": "n", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}}],
        },
        "workloads": {name: {"memory_mib": 1000.0} for name in "AB"},
        "jobs": [],
        "slowdowns": [{"pair": ["A", "B"], "share": [50, 50], "slowdown": [1.1, 1.1]}],
    }
)


class Scripted(MadeUpProgram):
    """Measures with Python code, and counts how often it was asked to."""

    def __init__(self, code):
        self.code, self.begun = code, 0

    def command(self, _):
        self.begun += 1
        return python(self.code)


@pytest.fixture
def directory(tmp_path):
    with cleared(tmp_path):
        yield tmp_path


@contextmanager
def service_in(directory, pool, options=OPTIONS, **more):
    with Journal(directory) as journal:
        repository = Repository(directory / "repository.db")
        chosen = ServiceOptions(directory=directory, gathering=options, sample_s=0.1, **more)
        made = Service(journal, pool, repository, chosen)
        with serving(made) as service:
            yield service


def cores(directory, code=RIGHT, offers=(50, 10)):
    """Return a pool of one core whose shares need made-up evidence, measured by some code."""
    pool = CpuPool(directory, devices=1, made_up=read_splits(directory))
    if pool.shares != "quota":
        pool.close()
        pytest.skip("no cgroup can be limited here")
    pool.gate.program, pool.gate.offers = Scripted(code), offers
    return pool


def told(service):
    return service.api.service().evidence


def gathered(directory):
    """Return the events of measuring in a journal, without those of its progress."""
    events = [entry.event for entry in read_events(directory)]
    return [event for event in events if event.kind.startswith("measuring")]


def outcomes(directory):
    return [event.outcome for event in gathered(directory) if event.kind == "measuring_ended"]


def processes_of(directory):
    """Return the processes of all runs of a directory."""
    home = f"{home_token(directory)}/"
    return [process for process, token in tokens() if token.startswith(home)]


def job(code, directory, **fields):
    env = {"PATH": os.environ["PATH"]}
    return spec().replace(command=python(code), cwd=str(directory), env=env, **fields)


def log_of(directory):
    """Return the output of the last run that measured."""
    runs = sorted((directory / "runs").glob("shares-*"), key=lambda run: run.stat().st_mtime)
    path = runs[-1] / "rank0" / "log" if runs else directory / "none"
    return path.read_text() if path.exists() else ""


def is_measuring(service, directory, word="here"):
    """Tell whether a program measures and has printed a word."""
    return lambda: told(service).state == "measuring" and word in log_of(directory)


# What is measured.


def test_a_fresh_service_measures_its_shares_and_then_jobs_share_with_caps(directory):
    quick = WatchOptions(warm_up_s=0.1, settle_s=0.1, profile_s=0.3, window_s=0.3)
    pool = SimulatedNode(directory, TRUTH, 20.0, made_up=read_splits(directory))
    assert pool.cluster().shares == ()
    with service_in(directory, pool, watching=quick) as service:
        wait_until(lambda: told(service).state == "done")
        assert told(service).text == "V100, made-up evidence: 40, 50, 60 % right"
        wait_until(lambda: service.live.devices.cluster.shares == (40, 50, 60))
        service.api.submit([spec(600, workload="A"), spec(600, workload="B")], ME)
        wait_until(is_in(service, "j1", JobState.RUNNING))
        assert "made up" in service.api.service().notice
    assert outcomes(directory) == ["right"] * 3
    begun = [event.share for event in gathered(directory) if event.kind == "measuring_begun"]
    assert begun == [50, 40, 60]
    assert read_splits(directory).allowed(GPU) == (40, 50, 60)


def test_what_is_known_is_not_measured_again(directory):
    with service_in(
        directory, SimulatedNode(directory, TRUTH, made_up=read_splits(directory))
    ) as service:
        wait_until(lambda: told(service).state == "done")
    pool = SimulatedNode(directory, TRUTH, made_up=read_splits(directory))
    assert pool.cluster().shares == (40, 50, 60)
    with service_in(directory, pool) as service:
        wait_until(lambda: told(service).state == "done")
    assert outcomes(directory) == ["right"] * 3


def test_a_program_runs_at_the_share_and_its_result_is_stored(directory):
    with service_in(
        directory, cores(directory, 'import os\nprint(os.environ["DOVETAIL_SHARE"])\n' + RIGHT)
    ) as service:
        wait_until(lambda: told(service).state == "done")
        assert log_of(directory).splitlines()[0] == "10"
    first, second = read_splits(directory).evidence
    assert (first.share, second.share, first.key) == (50, 10, CPU)
    assert processes_of(directory) == []


def test_the_made_up_program_of_the_pool_computes_something(directory):
    pool = cores(directory)
    pool.gate.program, pool.gate.offers = MadeUpProgram(), (90,)
    with service_in(directory, pool) as service:
        wait_until(lambda: told(service).state == "done")
    assert read_splits(directory).allowed(CPU) == (90,)


def test_a_share_that_computes_wrongly_is_told_and_never_used(directory):
    wrong = 'import os\nprint(\'{"wrong": %d}\' % (os.environ["DOVETAIL_SHARE"] == "50"))'
    with service_in(directory, cores(directory, wrong)) as service:
        wait_until(lambda: told(service).state == "done")
        assert told(service).text == "cpu-1-core, made-up evidence: 10 % right, 50 % wrong"
        wait_until(lambda: service.live.devices.cluster.shares == (10,))
    assert outcomes(directory) == ["wrong", "right"]
    assert "50 % (50 SMs) computes wrong in 1 of 1 products" in gathered(directory)[1].reason


def test_evidence_of_others_is_taken_up_before_a_share_is_measured(directory):
    pool = cores(directory)  # read before there is any
    with service_in(directory, cores(directory)) as service:
        wait_until(lambda: told(service).state == "done")
    program = pool.gate.program
    with service_in(directory, pool) as service:
        wait_until(lambda: service.live.devices.cluster.shares == (10, 50))
        assert told(service).state == "done"
    assert program.begun == 0


# Where it does not go.


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('no such kernel')", "no such kernel"),
        ("print('hello')", "printed ['hello']"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_after_a_failure_nothing_is_tried_for_a_while(directory, code, why):
    pool = cores(directory, code)
    with service_in(directory, pool) as service:
        wait_until(lambda: told(service).state == "failed")
        assert why in told(service).text
        assert "50, 10 % not measured, tried again at" in told(service).text
    assert outcomes(directory) == ["failed"]
    # The next service knows it, too.
    with service_in(directory, cores(directory, code)) as service:
        wait_until(lambda: told(service).state == "failed")
        service.api.submit([job("pass", directory)], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))
    assert outcomes(directory) == ["failed"]
    assert read_splits(directory).evidence == ()


def test_each_further_failure_doubles_the_rest(directory):
    pool = cores(directory, "raise SystemExit(3)")
    with service_in(directory, pool, replace(OPTIONS, rest_s=0.05)) as service:
        wait_until(lambda: outcomes(directory).count("failed") == 4)
        pool.gate.program.code = RIGHT
        wait_until(lambda: told(service).state == "done")
    ends = [event.at_s for event in gathered(directory) if event.kind == "measuring_ended"]
    starts = [event.at_s for event in gathered(directory) if event.kind == "measuring_begun"]
    for k in range(1, 4):
        assert starts[k] - ends[k - 1] >= 0.05 * 2 ** (k - 1)


def test_a_program_that_hangs_is_ended_with_all_its_processes(directory):
    options = replace(OPTIONS, patience_s=1.0)
    with service_in(directory, cores(directory, HANGS), options) as service:
        wait_until(is_measuring(service, directory))
        wait_until(lambda: told(service).state == "failed")
        assert "it did not end within 1 s" in told(service).text
        wait_until(lambda: processes_of(directory) == [])


def test_a_program_that_is_killed_from_outside_has_failed(directory):
    with service_in(directory, cores(directory, HANGS)) as service:
        wait_until(is_measuring(service, directory))
        for process in processes_of(directory):
            if b"SIG_IGN" in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: told(service).state == "failed")
        assert "SIGKILL" in told(service).text


# Jobs come first.


def test_a_job_starts_at_once_and_the_rest_is_measured_after_it(directory):
    pool = cores(directory, RIGHT)
    with service_in(directory, pool) as service:
        wait_until(lambda: outcomes(directory).count("right") == 1)
        wait_until(lambda: told(service).state == "done")
    pool = cores(directory, HANGS, offers=(50, 10, 90))
    with service_in(directory, pool) as service:
        wait_until(is_measuring(service, directory))
        assert (told(service).gpu, told(service).share) == ("cpu-0", 90)
        assert service.api.service().devices[0].measuring == 90
        home = home_token(directory)
        wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
        service.api.submit([job(wait, directory)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        assert service.api.service().devices[0].measuring is None
        assert told(service).text == "90 % not measured: as soon as a device is idle"
        wait_until(lambda: not [token for _, token in tokens() if f"{home}/shares-" in token])
        pool.gate.program.code = RIGHT
        (directory / "go").touch()
        wait_until(lambda: told(service).state == "done")
    kinds = [event.kind for event in gathered(directory)[-5:]]
    assert kinds == [
        f"measuring_{word}" for word in ("begun", "stopped", "ended", "begun", "ended")
    ]
    assert outcomes(directory) == ["right", "right", "stopped", "right"]
    stop = gathered(directory)[-4]
    assert stop.reason == "j1 can start on cpu-0"
    begun = [event.share for event in gathered(directory) if event.kind == "measuring_begun"]
    assert begun == [50, 10, 90, 90]


def test_a_drained_device_is_left(directory):
    with service_in(directory, cores(directory, HANGS)) as service:
        wait_until(is_measuring(service, directory))
        service.api.drain([], True, ME)
        wait_until(lambda: told(service).state == "waiting")
        wait_until(lambda: processes_of(directory) == [])
    assert outcomes(directory) == ["stopped"]
    assert "is being drained by me" in gathered(directory)[-1].reason


def test_one_share_at_a_time(directory):
    pool = SimulatedNode(directory, two_devices(), 5.0, made_up=read_splits(directory))
    with service_in(directory, pool) as service:
        wait_until(lambda: told(service).state == "done")
    depth = 0
    for event in gathered(directory):
        depth += {"measuring_begun": 1, "measuring_ended": -1}.get(event.kind, 0)
        assert 0 <= depth <= 1


def two_devices():
    """Return the instance with a second device."""
    return Instance.from_data(
        {
            **TRUTH.to_data(),
            "cluster": {
                **TRUTH.cluster.to_data(),
                "nodes": [
                    {"id": "n", "gpu_count": 2, "gpu": {"model": "V100", "memory_mib": 16000}}
                ],
            },
        }
    )


# Services come and go.


def test_nothing_is_left_when_the_service_ends(directory):
    with service_in(directory, cores(directory, HANGS)) as service:
        wait_until(is_measuring(service, directory))
    assert processes_of(directory) == []
    with service_in(directory, cores(directory)) as service:
        wait_until(lambda: told(service).state == "done")
    assert outcomes(directory) == ["stopped", "right", "right"]
    assert gathered(directory)[1].reason == "the service was restarted"


KILLED = """
import sys, time
from pathlib import Path
from tests.executor.live import test_gathering as tests
directory = Path(sys.argv[1])
with tests.service_in(directory, tests.cores(directory, tests.HANGS)):
    time.sleep(3600)
"""


def test_a_killed_service_leaves_no_device_held_and_no_process_behind(directory):
    cores(directory).close()  # skips where shares cannot be enforced
    with subprocess.Popen([sys.executable, "-c", KILLED, str(directory)]) as process:
        try:
            wait_until(lambda: "here" in log_of(directory))
        finally:
            process.kill()
    assert processes_of(directory)
    (left,) = [path.name for path in (directory / "runs").glob("shares-*")]
    with service_in(directory, cores(directory)) as service:
        service.api.submit([job("pass", directory)], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))
        wait_until(lambda: told(service).state == "done")
        assert not any(f"/{left}/" in token for _, token in tokens())
    assert outcomes(directory).count("right") == 2
    assert "failed" not in outcomes(directory)
    assert gathered(directory)[1].reason == "the service was restarted"


class Killed(BaseException):
    """The service is no more."""


class Doomed:
    """A pool or a journal that ends the service before or after a step that changes something."""

    def __init__(self, whole, left):
        self._whole, self._left = whole, left

    def __getattr__(self, name):
        found = getattr(self._whole, name)
        if name not in ("append", "launch", "stop", "release"):
            return found

        def stepped(*arguments):
            self._step()
            answer = found(*arguments)
            self._step()
            return answer

        return stepped

    def _step(self):
        self._left[0] -= 1
        if self._left[0] == 0:
            raise Killed


def runs(directory):
    """Return the runs on the simulated devices, those that a killed service left included."""
    return json.loads((directory / "simulated.json").read_text())["runs"]


def life(directory, steps):
    """Measure until the service is killed at a step, or all is done; return whether it was."""
    killed, left = threading.Event(), [steps]
    with Journal(directory) as journal:
        pool = SimulatedNode(directory, TRUTH, 50.0, made_up=read_splits(directory))
        service = Service(
            Doomed(journal, left),
            Doomed(pool, left),
            Repository(directory / "repository.db"),
            ServiceOptions(directory=directory, gathering=OPTIONS),
        )

        def run():
            try:
                service.run()
            except Killed:
                killed.set()

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(
            lambda: killed.is_set() or (told(service).state == "done" and not runs(directory))
        )
        service.stop()
        thread.join()
    return killed.is_set()


@pytest.mark.parametrize("first", range(3, 13))
def test_killed_at_every_step_it_measures_each_share_in_the_end(directory, monkeypatch, first):
    # A killed service cannot end what it measures.
    monkeypatch.setattr(Gatherer, "close", lambda _: None)
    step, kills = first, 0
    while life(directory, step):
        kills += 1
        step += 2
        assert kills < 40
    assert kills
    assert read_splits(directory).allowed(GPU) == (40, 50, 60)
    assert read_state_machine(directory).shares.present is None
    assert "failed" not in outcomes(directory)
    depth = 0
    for event in gathered(directory):
        depth += {"measuring_begun": 1, "measuring_ended": -1}.get(event.kind, 0)
        assert 0 <= depth <= 1


def test_after_a_failure_another_device_and_library_come_first(directory):
    pool = SimulatedNode(directory, two_devices(), 20.0, made_up=read_splits(directory))
    program, pool.gate.program = pool.gate.program, Broken()
    with service_in(directory, pool, replace(OPTIONS, rest_s=0.05)) as service:
        wait_until(lambda: "failed" in outcomes(directory))
        pool.gate.program = program
        wait_until(lambda: told(service).state == "done")
    first, second, *_ = [one.gpu for one in gathered(directory) if one.kind == "measuring_begun"]
    assert (first, second) == ("n-1", "n-0")


class Broken(SimulatedProgram):
    def command(self, _):
        return ("measure-share", "work_s=1", "status=3")


# Not asked for.


def test_it_can_be_turned_off(directory):
    with service_in(directory, cores(directory), None) as service:
        assert told(service).state == "off"
        service.api.submit([job("pass", directory)], ME)
        wait_until(is_in(service, "j1", JobState.FINISHED))
    assert gathered(directory) == []


def test_a_dry_run_measures_nothing(directory):
    with service_in(directory, cores(directory), dry_run=True) as service:
        assert told(service).state == "off"
    assert gathered(directory) == []


def test_a_pool_whose_shares_need_no_evidence_says_nothing(directory):
    with service_in(directory, SimulatedNode(directory, TRUTH)) as service:
        assert told(service) is None
    assert gathered(directory) == []
