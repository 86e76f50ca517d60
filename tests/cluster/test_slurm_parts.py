"""The options of a Slurm pool, and the GPUs of a node that it may use; no Slurm is needed."""

import os
import socket
import subprocess
import sys
import time

import pytest

from dovetail.cluster.options import SlurmPlan, slurm_plan
from dovetail.cluster.ray_finder import unreachable
from dovetail.cluster.slurm.commands import SlurmError, seconds, slurm
from dovetail.cluster.slurm.programs import own_directory, within_allocation
from dovetail.cluster.slurm.ray_parts import address_towards, make_secrets
from dovetail.instances.errors import InputError, UnsupportedError
from tests.executor.gpus.injected_nvml import injected
from tests.executor.waiting import LIMIT_S, wait_until

from .conftest import needs_ray


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("12", SlurmPlan("12")),
        ("", SlurmPlan("99")),
        ("12,lease=5,head=10.0.0.1", SlurmPlan("12", lease_s=5.0, head="10.0.0.1")),
        ("12,pool=cpu:devices=1,shares=none", SlurmPlan("12", (), "cpu:devices=1,shares=none")),
        (
            "nodes=1,pilots=0..3,idle=60",
            SlurmPlan(None, ("--nodes=1",), pilots=(0, 3), idle_s=60.0),
        ),
        (
            "nodes=3,exclusive=,gres=gpu:4,nvme:1,scratch=/local",
            SlurmPlan(None, ("--nodes=3", "--exclusive", "--gres=gpu:4,nvme:1"), "gpu", "/local"),
        ),
    ],
)
def test_options(text, plan):
    assert slurm_plan(text, {"SLURM_JOB_ID": "99"}) == plan


@pytest.mark.parametrize("text", ["", "j12", "12,nodes=3", "job=1,time=5", "12,pilots=1..2"])
def test_an_allocation_or_pilots_are_required(text):
    with pytest.raises(InputError, match="allocation"):
        slurm_plan(text, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes=3,=4", "must be NAME=VALUE,..., got '=4'"),
        ("nodes=1,pilots=3..1", "pilots must be MIN..MAX, MAX >= 1, got '3..1'"),
        ("nodes=1,pilots=0..0", "pilots must be MIN..MAX, MAX >= 1, got '0..0'"),
        ("nodes=1,pilots=2", "pilots must be MIN..MAX, MAX >= 1, got '2'"),
        ("nodes=1,idle=0", "idle must be seconds, 1 or more, got '0'"),
        ("nodes=3,time=5,nodes=4", "nodes must be given once, got 'nodes=4' as well"),
        (
            "nodes=3,pool=gpu:partitions=static",
            "partitions=static is for a service on one machine, got pool=gpu:partitions=static",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(text, message):
    with pytest.raises(InputError) as error:
        slurm_plan(text, {})
    assert str(error.value) == f"--pool: {message}"


@pytest.mark.parametrize("text", ["0", "31", "-1", "1e1", "nan", ""])
def test_a_lease_ends_before_a_released_pilot(text):
    with pytest.raises(InputError, match="lease must be seconds, 5 to 30"):
        slurm_plan(f"nodes=1,lease={text}", {})


def test_times_of_slurm():
    assert seconds("1-02:03:04") == ((24 + 2) * 60 + 3) * 60 + 4
    assert seconds("9:59") == 599
    assert seconds("UNLIMITED") is None


def test_commands_have_a_time_limit_and_fail_in_one_line():
    with pytest.raises(SlurmError, match=r"sleep has not ended within 0\.1 s"):
        slurm("sleep", "5", within_s=0.1)
    with pytest.raises(SlurmError, match="no-such-command cannot be run: No such file"):
        slurm("no-such-command")


def test_only_gpus_of_the_step_are_used():
    """The stand-in's device files are in reverse order: GPU 0 of the driver is /dev/nvidia1."""
    with injected():
        assert within_allocation("gpu", {"SLURM_STEP_GPUS": "1"}) == "gpu:GPU-injected-0"
        job = {"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}
        assert within_allocation("gpu", job) == "gpu:GPU-injected-1,GPU-injected-0"
        with pytest.raises(InputError, match="must be a GPU of the allocation"):
            within_allocation("gpu:GPU-injected-1", {"SLURM_STEP_GPUS": "1"})
        with pytest.raises(UnsupportedError, match="does not know the allocated GPU 5"):
            within_allocation("gpu", {"SLURM_STEP_GPUS": "5"})
    with pytest.raises(UnsupportedError, match="no GPU on this node"):
        within_allocation("gpu", {})
    assert within_allocation("gpu", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == "gpu:GPU-a,GPU-b"
    assert within_allocation("cpu:devices=1", {}) == "cpu:devices=1"


def test_the_address_of_a_machine_is_the_one_that_others_reach():
    assert address_towards("127.0.0.9") == "127.0.0.2", "not what Ray would replace"
    with pytest.raises(UnsupportedError, match=r"no-such-host\.invalid cannot be reached: "):
        address_towards("no-such-host.invalid")


def test_a_directory_that_others_own_is_refused(tmp_path):
    name = own_directory(tmp_path, "x").name
    (tmp_path / "target").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).symlink_to(tmp_path / "target")
    with pytest.raises(InputError, match="belongs to another user"):
        own_directory(tmp_path / "other", "x")


_HEAD = """
import sys
from dovetail.cluster.slurm import programs as slurm_programs
slurm_programs.STAY_S = 2.0
sys.exit(slurm_programs.main())
"""


@needs_ray
def test_a_head_ends_some_time_after_its_service(tmp_path):
    files = tmp_path / "slurm"
    files.mkdir()
    make_secrets(files)
    service = subprocess.Popen(["sleep", "600"])
    (tmp_path / "lock").write_text(str(service.pid))
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        head = f"127.0.0.2:{free.getsockname()[1]}"
    kept = subprocess.Popen(
        [sys.executable, "-c", _HEAD, "head", "--files", str(files), "--address", head],
        stdout=subprocess.DEVNULL,
    )
    wait_until(lambda: not unreachable(head), "the head")
    time.sleep(3)
    assert kept.poll() is None, "as long as its service runs"
    service.kill()
    service.wait()
    assert kept.wait(LIMIT_S) == 0
    assert unreachable(head) == "[Errno 111] Connection refused"


def test_serve_reports_in_one_line_that_there_is_no_slurm(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dovetail", "serve"),
            *("--directory", str(tmp_path), "--pool", "slurm:nodes=1"),
        ],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2
    assert done.stderr == "dovetail: scontrol cannot be run: No such file or directory\n"
