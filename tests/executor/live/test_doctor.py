"""The doctor: on this machine as it is, and with made-up GPUs through the real ``pynvml``."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.live.doctor import Level, Usable, diagnose, progress_hook  # noqa: E402
from dovetail.executor.live.mps.manager import MpsManager  # noqa: E402
from dovetail.executor.live.nvml import Nvml, NvmlError  # noqa: E402
from dovetail.executor.live.pools.cpu import CpuPool  # noqa: E402
from dovetail.executor.live.pools.processes import TOKEN  # noqa: E402
from dovetail.executor.live.splits import (  # noqa: E402
    Product,
    SplitEvidence,
    Splits,
    write_splits,
)
from tests.executor.live.injected_nvml import injected  # noqa: E402

HAS_MPS = shutil.which("nvidia-cuda-mps-control") is not None


@pytest.fixture
def library():
    with injected() as library:
        yield library


def diagnosis(tmp_path, **arguments):
    return diagnose(tmp_path / "state", MpsManager(tmp_path / "mps"), **arguments)


def found(diagnosis, about):
    return [finding for finding in diagnosis.findings if finding.about.startswith(about)]


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
    write_splits(Splits(evidence=(evidence,)), tmp_path / "state" / "splits.json")


def test_without_a_driver_the_way_on_is_told(tmp_path):
    def none():
        raise NvmlError("NVML: NVML Shared Library Not Found")

    result = diagnosis(tmp_path, open_nvml=none)
    (driver,) = found(result, "driver")
    assert result.usable is Usable.NOT
    assert driver.level is Level.BROKEN
    assert "dovetail serve --pool cpu" in driver.remedy


def test_nothing_is_changed_by_looking(tmp_path, library):
    diagnosis(tmp_path)
    assert not list(tmp_path.iterdir())


def test_gpus_without_evidence_are_usable_without_partitioning(tmp_path, library):
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    (shares,) = found(result, "SM shares")
    assert shares.told == "not measured on Injected H200, driver 580.0 (injected)"
    assert shares.remedy == "dovetail doctor --splits"
    told = [finding.told for finding in found(result, "GPU GPU-injected")]
    assert "Injected H200, 1 GiB, 132 SMs" in told
    assert "profiles by NVML GPM" in told
    assert "processes of others run there: pid 100, 101, 102" in told
    assert "compute mode EXCLUSIVE_PROCESS" in told


def test_jobs_of_the_service_are_no_strangers(tmp_path, library):
    with subprocess.Popen(["sleep", "600"], env={TOKEN: "home/j1.1/0"}) as job:
        try:
            library.processes = {"compute": [(job.pid, 1 << 20)], "mps": []}
            told = [finding.told for finding in diagnosis(tmp_path).findings]
        finally:
            job.kill()
    assert not any("processes of others" in one for one in told)


@pytest.mark.skipif(not HAS_MPS, reason="needs nvidia-cuda-mps-control")
def test_evidence_and_mps_make_partitions(tmp_path, library):
    allow_half(tmp_path)
    result = diagnosis(tmp_path)
    assert result.usable is Usable.PARTITIONED
    assert "cuBLAS 130100: 50" in found(result, "SM shares")[0].told


def test_evidence_of_a_failure_makes_none(tmp_path, library):
    allow_half(tmp_path, passed=False)
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    assert found(result, "SM shares")[0].told.endswith("none; wrong: 50")


def test_unreadable_evidence_makes_none_and_is_told(tmp_path, library):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "splits.json").write_text("{")
    result = diagnosis(tmp_path)
    assert result.usable is Usable.UNPARTITIONED
    assert "splits.json" in found(result, "SM shares")[0].told


def test_prohibited_and_lost_gpus_are_not_used(tmp_path, library):
    library.lost = {0}
    library.compute_modes = {1: pynvml.NVML_COMPUTEMODE_PROHIBITED}
    result = diagnosis(tmp_path)
    assert result.usable is Usable.NOT
    (lost,) = (finding for finding in result.findings if finding.about == "GPU")
    assert lost.told == "GPU 0: NVML: GPU is lost"


def test_before_hopper_profiles_are_poorer(tmp_path, library):
    library.gpm_supported = False
    told = [finding.told for finding in found(diagnosis(tmp_path), "GPU ")]
    wanted = "DCGM" if shutil.which("dcgmi") else "device utilisation only"
    assert any(line.startswith("profiles by") and wanted in line for line in told)


def test_a_state_directory_that_cannot_be_is_told_and_nothing_is_usable(tmp_path, library):
    (tmp_path / "file").touch()
    mps = MpsManager(tmp_path / "mps")
    result = diagnose(tmp_path / "file" / "state", mps, open_nvml=Nvml)
    (finding,) = found(result, "state directory")
    assert finding.level is Level.BROKEN
    assert result.usable is Usable.NOT


@pytest.fixture
def open_path():
    """Return a folder that every user can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_progress_hook_that_other_users_cannot_reach_is_told(open_path):
    home = open_path / "root"
    hook = home / "venv" / "hook"
    hook.mkdir(parents=True)
    (hook / "sitecustomize.py").touch(0o644)
    assert progress_hook(hook).level is Level.GOOD
    home.chmod(0o700)
    closed = progress_hook(hook)
    assert closed.level is Level.LACKING
    assert closed.told.endswith(f"{home} has mode 700")
    home.chmod(0o711)
    (hook / "sitecustomize.py").chmod(0o600)
    assert "sitecustomize.py has mode 600" in progress_hook(hook).told


def test_what_the_cpu_pool_would_be_is_what_it_is(tmp_path):
    (told,) = found(diagnosis(tmp_path), "cpu pool")
    pool = CpuPool(tmp_path / "pool")
    try:
        count = len(pool.cluster().nodes[0].devices)
        assert told.told.startswith(f"{count} device")
        assert pool.notice.endswith(told.told.partition("; ")[2])
    finally:
        pool.close()
