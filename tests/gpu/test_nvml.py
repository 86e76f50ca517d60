"""Answers of NVML and DCGM about a busy GPU."""

import math
import shutil
import subprocess
import time

import pynvml
import pytest

from dovetail.executor.gpus.nvml import GPM_METRICS

from . import bench as benches

WITHIN_S = 0.15
"""The distance of samples that ``nvml.py`` keeps."""

LAST_GPM_ID = 209
"""The last id that the 580 header knows."""


class Asking:
    """NVML's own calls of one GPU."""

    def __init__(self, bench):
        self._line = bench.line
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(bench.gpu.uuid)

    def __call__(self, name, *arguments, quiet=False):
        """Return the result of a call; skip the test on an error."""
        try:
            found = getattr(pynvml, name)(*arguments)
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError) as error:
            self._line("nvml", f"{name}: {type(error).__name__}: {error}")
            pytest.skip(f"{name}: {error}")
        if not quiet:
            self._line("nvml", f"{name}: {plain(found)}")
        return found

    def plain(self, name, *arguments):
        """Return the answer of a call about the GPU as plain data, or the error message."""
        try:
            return plain(self(name, self.handle, *arguments))
        except pytest.skip.Exception as error:
            return str(error)


def plain(value):
    """Return a value of NVML as plain data."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if fields := getattr(value, "_fields_", None):
        return {name: plain(getattr(value, name)) for name, *_ in fields}
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items()}
    return value if isinstance(value, int | float | str | None) else str(value)


@pytest.mark.check("each client with its own memory", usual_s=5)
def test_nvml_lists(bench, daemon):
    """NVML's lists under MPS: clients, their memory, the server; utilisation by process."""
    asking = Asking(bench)
    busy = daemon.client("busy", name="busy")
    holder = daemon.client("allocate", "mib=1024", name="holder")
    busy.ready(), holder.ready()
    server = daemon.server()
    holder.wait("memory")
    time.sleep(1.0)
    values = {
        name: asking.plain(f"nvmlDeviceGet{name}", *more)
        for name, *more in (
            ("ComputeRunningProcesses",),
            ("MPSComputeRunningProcesses",),
            ("ProcessUtilization", 0),
            ("UtilizationRates",),
            ("AccountingMode",),
        )
    }
    found = bench.nvml.processes(bench.gpu.uuid)
    pids = {"busy": busy.pid, "holds_1024": holder.pid, "server": server}
    bench.saw(**{f"{name}_mib": found.get(pid) for name, pid in pids.items()}, **values)
    assert found.get(busy.pid) is not None
    assert (found.get(holder.pid) or 0) - found[busy.pid] > 512


def busy_alone(bench):
    """Start a busy client without MPS, and wait until it finishes kernels."""
    benches.settled(client := bench.alone("busy", name="busy"))
    return client


@pytest.mark.check(f"per cent and MiB/s; samples {WITHIN_S:g} s apart are fine", usual_s=6)
def test_gpm(bench):
    """What GPM returns per id and distance of samples."""
    if not bench.nvml.has_gpm(bench.gpu.uuid):
        pytest.skip("the GPU has no GPM (before Hopper)")
    asking = Asking(bench)
    busy_alone(bench)
    used = {name: str(number) for name, (number, _) in GPM_METRICS.items()}
    apart = {f"{s:g}": gpm(asking, used.values(), s) for s in (0.05, 0.1, WITHIN_S, 0.3, 1.0)}
    every = gpm(asking, range(1, LAST_GPM_ID + 1), 0.3)
    ours = apart[f"{WITHIN_S:g}"]
    missing = [name for name, key in used.items() if not isinstance(ours[key], float)]
    active = used["sm_active"]
    bench.saw(
        missing=missing,
        SM_activity_by_distance_s={seconds: found[active] for seconds, found in apart.items()},
        answer=[one for one, value in every.items() if isinstance(value, float)],
        by_distance=apart,
        every=every,
    )
    assert not missing
    assert ours[active] > 50


def gpm(asking, ids, apart_s):
    """Return GPM's metrics from two samples: for each id a value or an error message."""
    ids = [str(one) for one in ids]
    samples = [asking("nvmlGpmSampleAlloc", quiet=True) for _ in range(2)]
    try:
        asking("nvmlGpmSampleGet", asking.handle, samples[0], quiet=True)
        time.sleep(apart_s)
        asking("nvmlGpmSampleGet", asking.handle, samples[1], quiet=True)
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(ids)
        asked.sample1, asked.sample2 = samples
        for place, one in enumerate(ids):
            asked.metrics[place].metricId = int(one)
        try:
            asking("nvmlGpmMetricsGet", asked, quiet=True)
        except pytest.skip.Exception as error:
            return dict.fromkeys(ids, str(error))
        return {one: metric(asked.metrics[place]) for place, one in enumerate(ids)}
    finally:
        for sample in samples:
            asking("nvmlGpmSampleFree", sample, quiet=True)


def metric(found):
    if found.nvmlReturn != pynvml.NVML_SUCCESS:
        return f"error {found.nvmlReturn}"
    return float(found.value) if math.isfinite(found.value) else "not a number"


@pytest.mark.check("fine enough for windows of a minute: a step a second or more often", usual_s=8)
def test_energy(bench):
    """Step and period of the energy counter; power."""
    asking = Asking(bench)
    busy_alone(bench)
    changes = []
    begun = time.monotonic()
    while (at := time.monotonic() - begun) < benches.COUNTED_S:
        value = asking("nvmlDeviceGetTotalEnergyConsumption", asking.handle, quiet=True)
        if not changes or changes[-1][1] != value:
            changes.append((at, value))
        time.sleep(0.001)
    # The first reading is no change.
    del changes[0]
    bench.line("nvml", f"energy counter, seconds and mJ: {changes}")
    if len(changes) < 3:
        pytest.skip(f"the energy counter moved {len(changes)} times in {benches.COUNTED_S:g} s")
    (first_s, first_mj), (last_s, last_mj) = changes[0], changes[-1]
    period = (last_s - first_s) / (len(changes) - 1)
    step = (last_mj - first_mj) / (len(changes) - 1)
    bench.saw(
        period_s=period,
        step_mj=step,
        counted_w=step / 1000 / period,
        reported_w=asking("nvmlDeviceGetPowerUsage", asking.handle) / 1000,
        instant=asking.plain("nvmlDeviceGetFieldValues", [pynvml.NVML_FI_DEV_POWER_INSTANT]),
    )
    assert period <= 1.0


@pytest.mark.check("the layouts in test_dcgm.py", usual_s=10)
def test_dcgm(bench):
    """What dcgmi prints."""
    program = shutil.which("dcgmi")
    if program is None:
        pytest.skip("dcgmi is not installed")
    busy_alone(bench)
    statuses = []
    for words in (
        ("discovery", "-l"),
        ("profile", "--list"),
        ("dmon", "-e", "1002,1003,1004,1005,1007,1008", "-d", "500", "-c", "4"),
    ):
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=30, check=False
        )
        for line in (done.stdout + done.stderr).splitlines():
            bench.line(f"dcgmi {words[0]}", line)
        statuses.append(done.returncode)
    bench.saw(exit_statuses=statuses)
    assert not any(statuses)
