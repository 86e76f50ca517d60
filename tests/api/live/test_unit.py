"""The unit for systemd that the documentation ships."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path

import pytest

from dovetail.cli.main import parser
from dovetail.executor.jobs.states import JobState
from dovetail.executor.mps.control import Control
from dovetail.executor.mps.processes import PROGRAM
from dovetail.executor.system import jobs_group
from dovetail.live.client import Client
from tests.api.live.services import served
from tests.executor.local_runs import cleared
from tests.executor.waiting import wait_until

UNIT = Path(__file__).parents[3] / "docs" / "dovetail.service"
ANALYSE = shutil.which("systemd-analyze")


def test_its_command_is_one_of_ours_and_its_jobs_are_left_alone():
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "dovetail"
    assert parser().parse_args(arguments).pool == "gpu"
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    assert (service["StateDirectory"], service["StateDirectoryMode"]) == ("dovetail", "0711")
    # The service's own limit of memory, which jobs and servers of MPS lift for themselves.
    assert service["LimitDATA"].endswith(":infinity")


def test_nothing_gives_each_start_a_file_system_view_of_its_own():
    """Jobs outlive the start that they belong to, and would be left in another view."""
    own_view = r"^(Protect|Private|ReadWrite|ReadOnly|Inaccessible|Bind|TemporaryFile|Root|Mount)"
    lines = [line for line in UNIT.read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if re.match(own_view, line)]


@pytest.mark.skipif(ANALYSE is None, reason="needs systemd-analyze")
def test_systemd_accepts_it(tmp_path):
    unit = tmp_path / "dovetail.service"
    unit.write_text(UNIT.read_text().replace("/opt/dovetail/bin/dovetail", "/bin/true"))
    done = subprocess.run([ANALYSE, "verify", unit], capture_output=True, text=True, check=False)
    # systemd before 254 ignores one setting, and complaints about other units are not ours.
    ours = [line for line in done.stderr.splitlines() if line.startswith(str(unit))]
    assert [line for line in ours if "'DelegateSubgroup'" not in line] == []


@pytest.fixture
def unit_group():
    """Return a control group as systemd delegates it to a unit with a subgroup for the service."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            unit = Path(line.split()[4]) / f"dovetail-test-{os.getpid()}"
            break
    else:
        pytest.skip("no control groups of version 2")
    try:
        (unit / "service").mkdir(parents=True)
        os.setxattr(unit, "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"no control group can be delegated here: {error}")
    yield unit
    for group in (unit / "service", unit / "jobs", unit):
        with suppress(FileNotFoundError):
            wait_until(lambda: not (group / "cgroup.procs").read_text())  # noqa: B023
            group.rmdir()


def group_of(pid):
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.rpartition("/")[2] for line in lines if line.startswith("0::"))


def test_jobs_are_outside_the_group_that_limits_the_service(short_path, unit_group):
    def enter():
        (unit_group / "service" / "cgroup.procs").write_text(str(os.getpid()))

    home = short_path / "home"
    with (
        cleared(home),
        served(home, "--pool", "cpu:devices=1,shares=none", before=enter) as (process, _),
        Client(str(home / "api.sock")) as client,
    ):
        command = ["cat", "/proc/self/cgroup"]
        job = {"command": command, "workload": "w", "cwd": "/", "env": {}}
        (name,) = client.submit([job])
        wait_until(lambda: client.job(name).state is JobState.FINISHED)
        assert f"0::/{unit_group.name}/jobs\n" in b"".join(client.log(name)).decode()
        assert group_of(process.pid) == "service"


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM}")
def test_so_are_daemons_of_mps(short_path, unit_group, monkeypatch):
    entry = unit_group / "jobs" / "cgroup.procs"
    entry.parent.mkdir()
    monkeypatch.setattr(jobs_group, "entry_of_jobs", lambda: str(entry))
    control = Control(short_path, "GPU-12345678-0000", os.geteuid(), shutil.which(PROGRAM))
    control.start()
    try:
        assert group_of(control.daemon().pid) == "jobs"
    finally:
        control.quit(5.0)


def test_a_process_without_a_group_of_its_own_stays(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text("25 1 0:1 / /proc rw - proc proc rw\n")
    assert jobs_group.entry_of_jobs(mounts) == ""
    assert jobs_group.entry_of_jobs() == ""
