"""The live service measures shares of a made-up GPU with this room's program.

``gpu_machine`` says what is real. The jobs' Python is a script that prints what PyTorch would.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus.splits import SplitKey, read_splits
from dovetail.executor.jobs.journal import read_events
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.gathering import GatherOptions
from dovetail.executor.pools.share_gate import WANTED, find_program
from dovetail.measuring.split_measuring import ProductsProgram
from tests.executor.gpus.gpu_machine import gpu_machine, stand_in_cublas
from tests.executor.gpus.injected_nvml import injected
from tests.executor.live.test_service import ME, is_in
from tests.executor.waiting import wait_until

NEEDS_CC = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
KEY = SplitKey("Injected H200", "580.0 (injected)", "130100")
IDLE = GatherOptions(idle_s=0.0, rest_s=3600.0)


@pytest.fixture
def machine():
    with injected() as library, gpu_machine(library) as machine:
        yield machine


def jobs_python(path, **answer):
    """Make a Python that reports cuBLAS 13.1 and multiplies well at once."""
    libraries = {"python": "3", "torch": "2", "cuda": "13", "cublas": "130100", "package": "13.1"}
    product = ["nn", "float16", 16, 1000, 2048, 0.5]
    found = {"cublas": "130100", "mps": True, "products": [product], **answer}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\n"
        "words = ' '.join(sys.argv[1:])\n"
        f"if 'libraries.py' in words:\n    print('''{json.dumps(libraries)}''')\n"
        "else:\n    import json\n"
        "    share = os.environ.get('CUDA_MPS_ACTIVE_THREAD_PERCENTAGE')\n    print(share)\n"
        f"    found = json.loads('''{json.dumps(found)}''')\n"
        "    print(json.dumps({'sms': 132 * int(share or 100) // 100, **found}))\n"
    )
    path.chmod(0o755)
    return str(path)


@contextmanager
def serving(machine, python=None):
    """Serve the made-up GPUs, with the program that an installed Dovetail finds."""
    pool = machine.pool()
    pool.gate.program, pool.gate.why_not = find_program()
    machine.pool = lambda _: pool
    options = GatherOptions(python, IDLE.idle_s, rest_s=IDLE.rest_s)
    with machine.service(directory=machine.state, gathering=options) as service:
        yield service


def told(service):
    return service.api.service().evidence


def outcomes(machine):
    events = [entry.event for entry in read_events(machine.state)]
    return [event.outcome for event in events if event.kind == "measuring_ended"]


def test_this_room_has_the_program():
    program, why_not = find_program()
    assert isinstance(program, ProductsProgram)
    assert why_not == ""


def test_the_given_python_measures_each_share_under_mps(machine):
    python = jobs_python(machine.place / "python")
    with serving(machine, python) as service:
        wait_until(lambda: told(service).state == "done")
        text = "Injected H200, cuBLAS 130100: 10, 25, 50, 75, 90 % right"
        assert told(service).text == text
        wait_until(lambda: service.live.devices.cluster.shares == (10, 25, 50, 75, 90))
        logs = (machine.state / "runs").glob("shares-*/rank0/log")
        assert sorted(float(log.read_text().split()[0]) for log in logs) == sorted(WANTED)
    assert read_splits(machine.state).allowed(KEY) == (10, 25, 50, 75, 90)
    assert outcomes(machine) == ["right"] * 5
    assert machine.daemons() == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"mps": False}, "the program did not reach MPS"),
        ({"sms": 132}, "the program saw all 132 SMs: the cap has no effect"),
        ({"cublas": "120404"}, "computes with the library 120404, not 130100"),
    ],
)
def test_what_says_nothing_about_the_share_is_a_failure(machine, answer, why):
    python = jobs_python(machine.place / "python", **answer)
    with serving(machine, python) as service:
        wait_until(lambda: told(service).state == "failed")
        assert why in told(service).text
    assert outcomes(machine) == ["failed"]
    assert read_splits(machine.state).evidence == ()


def test_without_a_python_one_line_says_so(machine):
    with serving(machine) as service:
        wait_until(lambda: told(service).state == "lacking")
        why = "no PyTorch of jobs of this user is known yet (serve --python FILE)"
        assert told(service).text == f"no share can be measured: {why}"
    with serving_again(machine, sys.executable) as service:
        wait_until(lambda: told(service).state == "lacking")
        assert f"{sys.executable} has no PyTorch for CUDA" in told(service).text
    assert outcomes(machine) == []


@contextmanager
def serving_again(machine, python):
    del machine.pool
    with serving(machine, python) as service:
        yield service


@NEEDS_CC
def test_the_python_of_the_environment_of_a_job_is_used_once_it_has_run(machine):
    environment = machine.place / "env"
    packages = environment / "lib" / "python3.12" / "site-packages" / "nvidia"
    packages.mkdir(parents=True)
    python = jobs_python(environment / "bin" / "python3.12")
    library = stand_in_cublas(packages / "lib", 130100)
    with serving(machine) as service:
        (job,) = service.api.submit([machine.job(library)], ME)
        wait_until(lambda: service.live.machine.shares.pythons == {"130100": python})
        assert told(service).state == "waiting"
        assert "50, 25, 75, 10, 90 % not measured" in told(service).text
        machine.finish()
        wait_until(is_in(service, job, JobState.FINISHED))
        wait_until(lambda: told(service).state == "done")
    assert read_splits(machine.state).allowed(KEY) == (10, 25, 50, 75, 90)


def test_a_gpu_that_others_use_is_left_alone(machine):
    python = jobs_python(machine.place / "python")
    machine.library.processes = {"compute": [(os.getpid(), 1 << 20)], "mps": []}
    with serving(machine, python) as service:
        wait_until(lambda: told(service).state == "waiting")
        service.api.submit([machine.job()], ME)  # something happens
        machine.finish()
        wait_until(is_in(service, "j1", JobState.FINISHED))
        assert outcomes(machine) == []
        machine.library.processes = {"compute": [], "mps": []}
        wait_until(lambda: told(service).state == "done")


def test_without_mps_no_share_is_used_and_none_is_measured(machine):
    python = jobs_python(machine.place / "python")
    machine.program = "no-such-mps-control"
    with serving(machine, python) as service:
        assert told(service).state == "off"
        assert told(service).text.startswith("no share is used: ")
