"""The commands that fix findings, run where the finding can be made, and then gone."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.doctor.doctor import script
from dovetail.executor.doctor import commands, machine, mps, service, shares
from dovetail.executor.doctor.finding import Finding, broken, lacking, note
from dovetail.executor.mps.processes import PROGRAM, every_mps
from tests.executor.doctor.test_doctor_mps import running
from tests.executor.waiting import wait_until

HOSTILE = (
    "it's",
    "$(reboot)",
    "`id`",
    "-rf",
    "a\nreboot",
    "é\u202ee",
    "\udcff\udcfe9",
    "\\x41",
)
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make it")


@pytest.fixture
def place():
    """Return a folder that every user can reach, with a hostile name."""
    with tempfile.TemporaryDirectory(prefix="dove-", suffix=" '$(reboot)\n") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def carry_out(finding):
    assert finding.fix, finding
    for line in finding.fix:
        assert "\n" not in line
        subprocess.run(["bash", "-euc", line], check=True)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=12))
@example("")
def test_bash_reads_a_word_as_it_was(text):
    try:
        expected = os.fsencode(text)
    except UnicodeEncodeError:  # no path has such a name
        return
    written = commands.word(text)
    assert written.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {written}"], capture_output=True, check=True)
    assert done.stdout == expected


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_file_in_the_place_of_the_socket_is_moved_away(place, name):
    path = place / name
    path.write_text("kept")
    carry_out(service.unix_socket(path, None))
    assert service.unix_socket(path, None).fix == ()
    assert Path(f"{path}.moved").read_text() == "kept"


def test_a_hook_that_others_cannot_read_is_opened_and_a_home_never(place, monkeypatch):
    hook = place / "root" / "venv" / "hook"
    hook.mkdir(parents=True)
    (hook / "sitecustomize.py").touch(0o600)
    (place / "root").chmod(0o700)
    before = stat.S_IMODE(place.stat().st_mode)
    closed = machine.progress_hook(hook)
    if os.geteuid() == 0:
        carry_out(closed)
        assert machine.progress_hook(hook).text == "every user's jobs can read it"
        assert stat.S_IMODE((place / "root").stat().st_mode) == 0o701
        assert stat.S_IMODE(place.stat().st_mode) == before
    (place / "root").chmod(0o700)
    home = type("entry", (), {"pw_dir": str(place / "root")})
    monkeypatch.setattr("pwd.getpwall", lambda: [home])
    assert machine.progress_hook(hook).fix == ()


@ROOT
def test_a_directory_that_only_root_can_create_is_created_for_its_user(place):
    inside = place / "var" / "state"
    os.setresuid(65534, 65534, 0)
    try:
        found = service.state(inside), mps.directory(inside), service.unix_socket(inside / "s", 0)
        assert len({one.fix for one in found}) == 1
    finally:
        os.setresuid(0, 0, 0)
    for one in found:
        assert one.fix[0].startswith("sudo install -d -m 07")
    (line,) = found[0].fix
    subprocess.run(["bash", "-euc", line.removeprefix("sudo ")], check=True)
    os.setresuid(65534, 65534, 0)
    try:
        assert service.state(inside).level == "good"
        inside.chmod(0o500)
        carry_out(service.state(inside))
        assert service.state(inside).level == "good"
    finally:
        os.setresuid(0, 0, 0)


@ROOT
def test_mps_directory_of_another_user_is_moved_away(place):
    with tempfile.TemporaryDirectory(prefix="dove-") as short:
        base = Path(short) / "mps"
        base.mkdir()
        os.chown(base, 65534, 65534)
        carry_out(mps.directory(base))
        assert mps.directory(base).level == "good"


def test_unreadable_evidence_is_moved_away(place):
    (place / "repository.db").write_text("{")
    _, finding = shares.evidence_in(place)
    carry_out(finding)
    assert shares.evidence_in(place)[1] is None


def test_the_limit_of_open_files_is_raised_in_the_shell():
    asks = "import dovetail.executor.doctor.machine as m; print(*m.open_files().fix)"
    line = f'ulimit -Sn 1000; eval "$({sys.executable} -c {commands.word(asks)})"; ulimit -n'
    done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, check=True)
    assert done.stdout == "4096\n"


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM}")
def test_mps_of_others_is_ended():
    with tempfile.TemporaryDirectory(prefix="dove-'$x ") as folder, running(Path(folder)) as pid:
        every = [one for one in every_mps() if one.pipe_directory == folder]
        (finding,) = (one for one in mps.others(Path("/ours"), every) if f" {pid} " in one.text)
        carry_out(finding)
        wait_until(lambda: all(one.pid != pid for one in every_mps()))


def test_packages_are_those_that_the_extras_ask_for():
    wanted = [each.partition(";")[0].strip() for each in metadata.requires("dovetail")]
    (nvml,) = {each for each in wanted if each.startswith("nvidia-ml-py")}
    expected = commands.command(sys.executable, "-m", "pip", "install", nvml)
    assert commands.pip_install("nvidia-ml-py") == expected


def test_packages_of_the_system_are_named_where_their_names_are_known(monkeypatch):
    install = {}
    for system in ("debian", "ubuntu", "fedora"):
        monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": system})  # noqa: B023
        install[system] = commands.system_install("nvidia-cuda-mps", "")
    (line,) = install["debian"]
    assert line.endswith("apt-get install nvidia-cuda-mps")
    assert install["ubuntu"] == install["fedora"] == ()


def test_the_script_is_one_that_bash_reads_and_comments_stay_comments():
    findings = [
        broken("1\nrm -rf x", "then\r\x1b[2J", "echo 1", "echo 2")._replace(id="machine.shm"),
        note("twice", "", "echo 1", "echo 2")._replace(id="machine.files"),
        lacking("other", "", commands.moved_away(Path("/etc/hostname")))._replace(id="mps.server"),
        lacking("alone", "think")._replace(id="gpu.none", gpu="GPU-1"),
        Finding("fine", id="jobs.torch"),
    ]
    lines = list(script(findings))
    assert all(line.isprintable() for line in lines)
    code = [line for line in lines if line and not line.startswith("#")]
    assert code[:2] == ["echo 1", "echo 2"]
    assert len(code) == 3
    assert lines[-1] == "# gpu.none GPU-1 (lacking): alone -> think"
    assert not any("fine" in line for line in lines)
    subprocess.run(["bash", "-n"], input="\n".join(lines), text=True, check=True)
    assert list(script(findings[-1:])) == ["# nothing to fix"]
