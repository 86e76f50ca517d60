"""The doctor on this machine, and with made-up GPUs through the real ``pynvml``."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor import doctor  # noqa: E402
from dovetail.executor.doctor.diagnosis import Preflight, diagnose  # noqa: E402
from dovetail.executor.doctor.finding import PARTS, Severity, Usable  # noqa: E402
from dovetail.executor.doctor.machine import progress_hook  # noqa: E402
from dovetail.executor.gpus.nvml import NvmlError  # noqa: E402
from dovetail.executor.gpus.splits import (  # noqa: E402
    Product,
    SplitEvidence,
    keep_splits,
)
from dovetail.executor.pools.cpu import CpuPool  # noqa: E402
from dovetail.executor.pools.runs.processes import TOKEN  # noqa: E402
from dovetail.instances.plugins import OWN, Plugin, plugins  # noqa: E402
from tests.executor.gpus.gpu_machine import half_is_right  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.waiting import wait_until  # noqa: E402

DOCTOR = Path(doctor.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "howto" / "doctor.md"
HAS_MPS = shutil.which("nvidia-cuda-mps-control") is not None


@pytest.fixture
def library():
    with injected() as library:
        yield library


def preflight(home, **changes):
    usual = Preflight(home / "state", home / "state/api.sock", home / "mps", sys.executable)
    return usual._replace(**changes)


def diagnosis(tmp_path, **arguments):
    return diagnose(preflight(tmp_path), **arguments)


def found(diagnosis, name):
    return [finding for finding in diagnosis.findings if finding.id == name]


def allow_half(tmp_path, passed=True):
    (tmp_path / "state").mkdir()
    product = Product(dtype="float16", m=16, n=1000, k=2048, error=0.5 if passed else None)
    evidence = SplitEvidence(
        gpu_model="Injected H200",
        driver="580.0 (injected)",
        cublas="130100",
        share=50,
        sms=66,
        products=(product,),
        date="2026-11-21",
    )
    keep_splits(tmp_path / "state", evidence)


def test_without_a_driver_the_next_step_is_printed(tmp_path):
    def none():
        raise NvmlError("NVML: Driver Not Loaded", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    result = diagnosis(tmp_path, open_nvml=none)
    (driver,) = found(result, "driver.nvml")
    assert result.usable is Usable.NOT
    assert driver.level is Severity.BROKEN
    assert "dovetail serve --pool cpu" in driver.remedy


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        (
            "dovetail",
            "dovetail serve does so on an idle GPU; or now: dovetail doctor --splits --python FILE",
        ),
        (
            "another",
            "shares are measured by the part measuring of Dovetail, which is not installed",
        ),
    ],
)
def test_shares_are_measured_by_a_part_that_may_be_absent(
    tmp_path, library, monkeypatch, package, remedy
):
    options = Plugin("options", "doctor", package, "module:NAME")
    found_by_kind = {"options": {"doctor": options}}
    monkeypatch.setattr("dovetail.executor.doctor.finding.plugins", found_by_kind.get)
    (shares,) = found(diagnosis(tmp_path), "shares.allowed")
    assert shares.remedy == remedy


def test_nothing_is_changed_by_looking(tmp_path, library):
    diagnosis(tmp_path)
    assert not list(tmp_path.iterdir())


def test_gpus_without_evidence_are_usable_without_partitioning(tmp_path, library):
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    (shares,) = found(result, "shares.allowed")
    assert shares.text == "not measured on Injected H200, driver 580.0 (injected)"
    texts = [(one.id, one.text) for one in result.findings if one.gpu.startswith("GPU-injected")]
    assert ("gpu.model", "Injected H200, 2 GiB, 132 SMs, compute capability 9.0") in texts
    assert ("gpu.profiling", "by NVML GPM") in texts
    assert ("gpu.strangers", "processes of others run on it: pid 100, 101, 102") in texts
    assert [word for name, word in texts if name == "gpu.compute-mode"] == [
        "DEFAULT",
        "EXCLUSIVE_PROCESS",
    ]


def test_jobs_of_the_service_are_no_strangers(tmp_path, library):
    with subprocess.Popen(["sleep", "600"], env={TOKEN: "home/j1.1/0"}) as job:
        try:
            # The kernel shows the environment of a new program a moment after its start.
            wait_until(Path(f"/proc/{job.pid}/environ").read_bytes)
            library.processes = {"compute": [(job.pid, 1 << 20)], "mps": []}
            texts = [finding.text for finding in diagnosis(tmp_path).findings]
        finally:
            job.kill()
    assert not any("processes of others" in one for one in texts)


@pytest.mark.skipif(not HAS_MPS, reason="needs nvidia-cuda-mps-control")
def test_evidence_and_mps_make_partitions(tmp_path, library):
    allow_half(tmp_path)
    result = diagnosis(tmp_path)
    assert result.usable is Usable.PARTITIONED
    assert "cuBLAS 130100: 50" in found(result, "shares.allowed")[0].text


def test_evidence_of_static_partitions_is_shown_apart(tmp_path, library):
    (tmp_path / "state").mkdir()
    model = "Injected H200 (static partitions)"
    keep_splits(tmp_path / "state", half_is_right(gpu_model=model).evidence[0])
    result = diagnosis(tmp_path)
    texts = [one.text for one in found(result, "shares.allowed")]
    assert texts[0] == "not measured on Injected H200, driver 580.0 (injected)"
    assert texts[1].endswith(f"on {model}, driver 580.0 (injected), cuBLAS 130100: 50")
    assert [table.gpu_model for table in result.shares] == [model]
    assert result.usable is Usable.UNPARTITIONED


def test_evidence_of_a_failure_makes_none(tmp_path, library):
    allow_half(tmp_path, passed=False)
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    assert found(result, "shares.allowed")[0].text.endswith("none; wrong: 50")


def test_unreadable_evidence_makes_none_and_is_reported(tmp_path, library):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "repository.db").write_text("{")
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    assert "repository.db" in found(result, "shares.evidence")[0].text


def test_prohibited_and_lost_gpus_are_not_used(tmp_path, library):
    library.lost = {0}
    library.compute_modes = {1: pynvml.NVML_COMPUTEMODE_PROHIBITED}
    result = diagnosis(tmp_path)
    assert result.usable is Usable.NOT
    (lost,) = found(result, "gpu.lost")
    assert lost.text == "GPU 0: NVML: GPU is lost"


def test_an_unusable_state_directory_is_reported_and_nothing_is_usable(tmp_path, library):
    (tmp_path / "file").touch()
    result = diagnose(preflight(tmp_path, directory=tmp_path / "file" / "state"))
    (finding,) = found(result, "service.directory")
    assert finding.level is Severity.BROKEN
    assert result.usable is Usable.NOT


@pytest.fixture
def open_path():
    """Return a folder that every user can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_progress_hook_that_other_users_cannot_reach_is_reported(open_path):
    home = open_path / "root"
    hook = home / "venv" / "hook"
    hook.mkdir(parents=True)
    (hook / "sitecustomize.py").touch(0o644)
    assert progress_hook(hook).level is Severity.GOOD
    home.chmod(0o700)
    closed = progress_hook(hook)
    assert closed.level is Severity.LACKING
    assert closed.text.endswith(f"{home} has mode 700")
    home.chmod(0o711)
    (hook / "sitecustomize.py").chmod(0o600)
    assert "sitecustomize.py has mode 600" in progress_hook(hook).text


def test_what_the_cpu_pool_would_be_is_what_it_is(tmp_path):
    (finding,) = found(diagnosis(tmp_path), "machine.cpu-pool")
    pool = CpuPool(tmp_path / "pool")
    try:
        count = len(pool.cluster().nodes[0].devices)
        assert finding.text.startswith(f"{count} device")
        assert pool.notice.endswith(finding.text.partition("; ")[2])
    finally:
        pool.close()


def test_every_finding_is_documented_and_no_other():
    source = "".join(path.read_text() for path in DOCTOR.glob("*.py"))
    parts = "|".join(PARTS)
    reported = set(re.findall(rf'"((?:{parts})\.[a-z-]+)"', source))
    # A finding of the core that is registered as a plugin; those of rooms stand below the table.
    reported.add("plugins.commands")
    assert plugins("doctor")["plugins.commands"].package == OWN
    rows = re.findall(rf"^\| `({parts})` \|.*\| (.*) \|$", PAGE.read_text(), re.M)
    documented = [f"{group}.{name}" for group, names in rows for name in names.split("`")[1::2]]
    assert sorted(documented) == sorted(reported)
