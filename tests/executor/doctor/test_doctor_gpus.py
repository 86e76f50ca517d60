"""The doctor with made-up GPUs, through the real ``pynvml``; no value is of a real GPU."""

import os
import sys

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.doctor import driver, gpus  # noqa: E402
from dovetail.executor.doctor.diagnosis import Preflight, diagnose  # noqa: E402
from dovetail.executor.doctor.driver import DriverFiles  # noqa: E402
from dovetail.executor.doctor.finding import Severity, Usable  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402

NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"


@pytest.fixture
def library():
    with injected() as library:
        library.processes = {"compute": [], "mps": []}
        library.driver = "580.159.03"
        yield library


@pytest.fixture
def kernel(tmp_path):
    """Files like those of a kernel with the driver and one GPU."""
    device = tmp_path / "pci" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (tmp_path / "version").write_text(NVRM)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "kmsg").write_text("6,1,2,-;booted\n")
    return DriverFiles(tmp_path / "pci", tmp_path / "version", tmp_path / "dev", tmp_path / "kmsg")


def looked(tmp_path, kernel, python=sys.executable):
    home = tmp_path / "s"
    result = diagnose(Preflight(home, home / "a.sock", home / "mps", python), places=kernel)
    return result, {finding.id: finding for finding in result.findings}


def test_a_gpu_machine_in_order(tmp_path, library, kernel):
    result, found = looked(tmp_path, kernel)
    assert result.usable is Usable.UNPARTITIONED
    assert found["driver.bus"].text == "1 NVIDIA GPU on the PCI bus"
    assert found["driver.module"].text == "nvidia 580.159.03"
    assert found["driver.nodes"].text == "nvidia-uvm, nvidia0, nvidiactl may be opened"
    assert found["driver.nvml"].text == "NVIDIA 580.159.03, CUDA up to 13.0"
    assert found["driver.xid"].text == "no Xid error in the kernel's log"
    assert found["gpu.memory"].text == "ECC on, no repair pending"
    parts = {finding.part for finding in result.findings if finding.level is Severity.BROKEN}
    assert not parts


def test_a_past_xid_is_reported(tmp_path, library, kernel):
    kernel.log.write_text("4,9,8,-;NVRM: Xid (PCI:0000:01:00): 79, pid=7, GPU has fallen off\n")
    _, found = looked(tmp_path, kernel)
    assert found["driver.xid"].level is Severity.NOTE
    assert found["driver.xid"].text.endswith("the last: Xid (PCI:0000:01:00): 79")


def test_a_gpu_in_mig_mode_is_left_alone(tmp_path, library, kernel):
    library.mig = 1
    result, found = looked(tmp_path, kernel)
    assert result.usable is Usable.NOT
    assert found["gpu.mig"].level is Severity.BROKEN


@pytest.mark.parametrize(
    ("rows", "level", "text"),
    [
        ({"pending_rows": 1}, Severity.NOTE, "will be retired at the next reset"),
        ({"failed_rows": 1}, Severity.LACKING, "could not be remapped"),
    ],
)
def test_bad_memory_is_reported(tmp_path, library, kernel, rows, level, text):
    vars(library).update(rows)
    _, found = looked(tmp_path, kernel)
    assert found["gpu.memory"].level is level
    assert text in found["gpu.memory"].text


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "level", "text"),
    [
        (None, Severity.LACKING, "no dcgmi"),
        ("echo Unable to connect; exit 1", Severity.LACKING, "does not list this GPU"),
        (
            "echo '| 0 | Name: x |'; echo '|   | Device UUID: GPU-0000000a-1 |'",
            Severity.NOTE,
            "by DCGM",
        ),
    ],
)
def test_before_hopper_dcgm_profiles(tmp_path, library, kernel, monkeypatch, answer, level, text):
    library.gpm_supported, library.gpus = False, 1
    library.uuids = {0: "GPU-0000000a-1"}
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus._seen_by_dcgm.cache_clear()
    if answer is not None:
        program(tmp_path, "dcgmi", answer)
    _, found = looked(tmp_path, kernel)
    gpus._seen_by_dcgm.cache_clear()
    assert found["gpu.profiling"].level is level
    assert text in found["gpu.profiling"].text


@pytest.mark.parametrize(
    ("code", "seen", "remedy"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded", "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch", "reboot, or reload"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions", "/dev/nvidia*"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found", "LD_LIBRARY_PATH"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error", "nvidia-smi"),
    ],
)
def test_the_errors_of_nvml_are_distinguished(tmp_path, library, kernel, code, seen, remedy):
    library.fails["nvmlInitWithFlags"] = code
    result, found = looked(tmp_path, kernel)
    assert result.usable is Usable.NOT
    assert seen in found["driver.nvml"].text
    assert remedy in found["driver.nvml"].remedy


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("docker", "start the container with its GPUs"), (None, "install NVIDIA's driver")],
)
def test_what_brings_the_library_depends_on_the_container(
    tmp_path, library, kernel, monkeypatch, kind, remedy
):
    library.fails["nvmlInitWithFlags"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    monkeypatch.setattr(driver, "container", lambda: kind)
    _, found = looked(tmp_path, kernel)
    assert remedy in found["driver.nvml"].remedy


def test_without_a_driver_every_step_says_so(tmp_path, library, kernel):
    library.fails["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    nothing = DriverFiles(*(tmp_path / "none" / str(k) for k in range(4)))
    (tmp_path / "none" / "0").mkdir(parents=True)
    _, found = looked(tmp_path, nothing)
    assert found["driver.bus"].text == "no NVIDIA GPU on the PCI bus"
    assert found["driver.module"].level is Severity.BROKEN
    assert found["driver.nodes"].remedy == "they come with the kernel module"
    assert "driver.xid" not in found


def test_nodes_that_lack_or_are_closed(tmp_path, library, kernel):
    (kernel.nodes / "nvidia-uvm").unlink()
    _, found = looked(tmp_path, kernel)
    assert found["driver.nodes"].text.endswith("nvidia-uvm is missing")
    if os.geteuid() != 0:
        (kernel.nodes / "nvidia0").chmod(0)
        _, found = looked(tmp_path, kernel)
        assert "nvidia0 (mode 0)" in found["driver.nodes"].text


def test_bindings_older_than_the_driver_are_reported(tmp_path, library, kernel):
    library.driver = "990.10"
    _, found = looked(tmp_path, kernel)
    assert found["driver.bindings"].level is Severity.NOTE
    assert "nvidia-ml-py>=13.990" in found["driver.bindings"].remedy


def libraries(tmp_path, **changes):
    """Return a program, in place of the jobs' Python, that reports made-up libraries."""
    report = {
        "python": "3.12.1",
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "cublas": "130100",
        "package": "13.1.0.3",
        **changes,
    }
    text = str(report).replace("'", '"').replace("None", "null")
    return str(program(tmp_path, "python", f"echo '{text}'"))


def test_the_libraries_of_the_jobs_are_reported(tmp_path, library, kernel):
    _, found = looked(tmp_path, kernel, libraries(tmp_path))
    assert found["jobs.torch"].text == "2.11.0+cu130, built for CUDA 13.0"
    assert found["jobs.torch"].level is Severity.GOOD
    assert found["jobs.cublas"].level is Severity.NOTE
    assert "13.1.0.3, version 130100; wrong results" in found["jobs.cublas"].text


def test_a_driver_too_old_for_the_jobs_is_reported(tmp_path, library, kernel):
    library.cuda = 12080
    _, found = looked(tmp_path, kernel, libraries(tmp_path))
    assert found["jobs.torch"].level is Severity.LACKING
    assert found["jobs.torch"].text.endswith("the driver supports CUDA 12.8")


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"cuda": None, "cublas": None, "package": None}, "jobs.torch", "a build without CUDA"),
        ({"torch": None, "cuda": None}, "jobs.torch", "no PyTorch"),
        ({"package": "12.4.5.8"}, "jobs.cublas", "no error was reported"),
        ({"package": None, "cublas": None}, "jobs.cublas", "not found with PyTorch"),
    ],
)
def test_libraries_that_lack(tmp_path, library, kernel, changes, name, text):
    _, found = looked(tmp_path, kernel, libraries(tmp_path, **changes))
    assert text in found[name].text


def test_a_python_that_is_none(tmp_path, library, kernel):
    _, found = looked(tmp_path, kernel, str(tmp_path / "none"))
    assert "cannot be run: No such file" in found["jobs.python"].text
    _, found = looked(tmp_path, kernel, str(program(tmp_path, "python", "echo no >&2; exit 3")))
    assert found["jobs.python"].text.endswith("does not report its libraries: no")
