"""The real ``pynvml`` against injected callbacks: marshalling and errors, not hardware values."""

import math

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from dovetail.executor.gpus import nvml  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402

FIRST = "GPU-injected-0"

UNUSABLE = ("Uninitialized", "DriverNotLoaded", "LibraryNotFound", "LibRmVersionMismatch")
LOST = ("GpuIsLost", "ResetRequired")
NOT_RAISED_BY_A_CALL = ("Success",)


@pytest.fixture
def library():
    with injected() as library:
        yield library


def every_error() -> dict[str, int]:
    return {
        name.removeprefix("NVMLError_"): getattr(pynvml, name)().value
        for name in dir(pynvml)
        if name.startswith("NVMLError_")
    }


def test_gpus(library):
    with nvml.Nvml() as session:
        first, second = session.gpus()
        assert session.driver() == "580.0 (injected)"
    assert first == nvml.NvmlGpu(FIRST, "Injected H200", 2048.0, 132, (9, 0), False, "default", 0)
    assert second.compute_mode == "exclusive_process"


def test_readings_by_gpm_between_two_samples(library, monkeypatch):
    moments = iter([100.0, 100.0, 100.2, 100.2])
    monkeypatch.setattr(nvml.time, "monotonic", lambda: next(moments))
    with nvml.Nvml() as session:
        before = session.read(FIRST)
        after = session.read(FIRST)
    assert before.source == "NVML utilisation"
    assert before.metrics == {"gpu_util": 0.9, "mem_util": 0.3}
    assert after.source == "NVML GPM"
    # 80 % -> 0.8; 1,000 MiB/s -> bytes/s; ids that the device lacks are left out
    assert after.metrics == {
        "graphics_active": 0.99,
        "sm_active": 0.8,
        "sm_occupancy": 0.4,
        "tensor_active": 0.6,
        "dram_active": 0.5,
        "pcie_rx_bytes_s": 1000 * 2**20,
        **before.metrics,
    }
    assert (after.used_mib, after.energy_j) == (100.0, 123.456)
    assert library.freed == library.sampled == 2


def test_a_sample_too_soon_is_not_taken(library, monkeypatch):
    monkeypatch.setattr(nvml.time, "monotonic", lambda: 100.0)
    with nvml.Nvml() as session:
        assert [session.read(FIRST).source for _ in range(3)] == ["NVML utilisation"] * 3
        assert library.sampled == 1


def test_blank_metrics_are_left_out(library, monkeypatch):
    library.gpm_values = {2: math.nan, 10: 50.0}
    moments = iter([1.0, 1.0, 2.0, 2.0])
    monkeypatch.setattr(nvml.time, "monotonic", lambda: next(moments))
    with nvml.Nvml() as session:
        session.read(FIRST)
        found = session.read(FIRST)
    assert found.metrics == {"dram_active": 0.5, "gpu_util": 0.9, "mem_util": 0.3}


def test_before_hopper_there_is_utilisation_only(library):
    library.gpm_supported = False
    with nvml.Nvml() as session:
        assert session.read(FIRST).source == "NVML utilisation"
    assert library.sampled == 0


def test_clients_of_mps_are_listed_with_their_memory(library):
    with nvml.Nvml() as session:
        assert session.processes(FIRST) == {100: 30.0, 101: 500.0, 102: None}
        library.processes = {"compute": [], "mps": []}
        assert session.processes(FIRST) == {}


def test_critical_errors_are_reported_once(library):
    library.xids = [(0, 31), (1, 79)]
    with nvml.Nvml() as session:
        session.gpus()
        assert list(session.xids()) == [(FIRST, 31), ("GPU-injected-1", 79)]
        assert list(session.xids()) == []


def test_an_error_of_a_gpu_that_is_lost_with_it_is_reported_of_that_gpu(library):
    library.xids = [(1, 79)]
    with nvml.Nvml() as session:
        session.gpus()
        library.fails["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
        assert list(session.xids()) == [("GPU-injected-1", 79)]


def test_a_gpu_answers_or_is_lost(library):
    with nvml.Nvml() as session:
        session.gpus()
        library.lost = {0}
        session.check("GPU-injected-1")
        with pytest.raises(nvml.GpuLostError, match="GPU is lost"):
            session.check(FIRST)


def test_without_events_nothing_is_reported(library):
    library.fails["nvmlDeviceRegisterEvents"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with nvml.Nvml() as session:
        assert list(session.xids()) == []


@pytest.mark.parametrize("name", every_error())
def test_every_error_of_an_optional_reading(library, name):
    library.fails["nvmlDeviceGetTotalEnergyConsumption"] = every_error()[name]
    with nvml.Nvml() as session:
        if name in LOST:
            with pytest.raises(nvml.GpuLostError, match=r"^NVML: "):
                session.read(FIRST)
        elif name in UNUSABLE:
            with pytest.raises(nvml.NvmlError, match=r"^NVML: "):
                session.read(FIRST)
        else:
            assert session.read(FIRST).energy_j is None


@pytest.mark.parametrize("name", every_error())
def test_every_error_at_the_beginning_is_one_line(library, name):
    library.fails["nvmlInitWithFlags"] = every_error()[name]
    with pytest.raises((nvml.NvmlError, nvml.GpuLostError), match=r"^NVML: [^\n]+$"):
        nvml.Nvml()


def test_a_symbol_that_is_missing_is_a_reading_that_is_missing(library):
    for name in (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetTotalEnergyConsumption",
    ):
        delattr(library, name)
    with nvml.Nvml() as session:
        assert session.read(FIRST).energy_j is None
        assert session.processes(FIRST) == {100: 30.0}


def test_a_gpu_that_is_lost_does_not_hide_the_others(library):
    library.lost = {0}
    with nvml.Nvml() as session:
        assert [gpu.uuid for gpu in session.gpus()] == ["GPU-injected-1"]
        assert session.lost == ("GPU 0: NVML: GPU is lost",)


def test_without_a_driver_there_is_one_clear_line():
    if pynvml.nvmlLib is not None:
        pytest.skip("this machine has NVIDIA's driver")
    with pytest.raises(nvml.NvmlError, match="NVML Shared Library Not Found"):
        nvml.Nvml()


def test_how_fast_a_gpu_runs_and_what_holds_it_back(library):
    with nvml.Nvml() as session:
        # Bit 0x1 says that the GPU is idle, which slows no job.
        assert session.read(FIRST)[-3:] == (1980.0, 61.0, ("power cap", "hardware thermal"))
        library.fails["nvmlDeviceGetClockInfo"] = pynvml.NVML_ERROR_NOT_SUPPORTED
        library.fails["nvmlDeviceGetTemperature"] = pynvml.NVML_ERROR_NOT_SUPPORTED
        library.fails["nvmlDeviceGetCurrentClocksThrottleReasons"] = pynvml.NVML_ERROR_NO_PERMISSION
        assert session.read(FIRST)[-3:] == (None, None, ())
        library.lost.add(0)
        with pytest.raises(nvml.GpuLostError):
            session.check(FIRST)
