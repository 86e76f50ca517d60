"""Checks of what NVML and DCGM tell of a busy GPU."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.executor.live.first_contact.bench import Bench, CouldNotTryError
from dovetail.executor.live.first_contact.seen import Checking, Seen
from dovetail.executor.live.nvml import GPM_METRICS

DISTANCES_S: Final = (0.05, 0.1, 0.15, 0.3, 1.0)
WITHIN_S: Final = 0.15
"""The distance that ``nvml.py`` keeps."""

COUNTED_S: Final = 5.0

INSTANT_POWER: Final = 186
"""NVML_FI_DEV_POWER_INSTANT (nvml.h)."""

_LAST_GPM_ID: Final = 209


class Asking:
    """NVML's own calls of one GPU: a value, or what NVML says instead."""

    def __init__(self, bench: Bench) -> None:
        import pynvml

        self.nv: Any = pynvml
        self._notes = bench.notes
        self.handle = self.nv.nvmlDeviceGetHandleByUUID(bench.gpu.uuid)

    def __call__(self, name: str, *arguments: object, quiet: bool = False) -> Any:
        """Return what a call returns; raises ``CouldNotTryError`` where it does not."""
        try:
            found = getattr(self.nv, name)(*arguments)
        except (self.nv.NVMLError, self.nv.NVMLLibraryMismatchError, AttributeError) as error:
            self._notes.line("nvml", f"{name}: {type(error).__name__}: {error}")
            raise CouldNotTryError(f"{name}: {error}") from None
        if not quiet:
            self._notes.line("nvml", f"{name}: {plain(found)}")
        return found

    def told(self, name: str) -> Any:
        """Return in plain data what a call says of the GPU, an error's words included."""
        try:
            return plain(self(name, self.handle))
        except CouldNotTryError as error:
            return str(error)


def plain(value: object) -> Any:
    """Return a value of NVML as plain data."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    fields = getattr(value, "_fields_", None)
    if fields is not None:
        return {name: plain(getattr(value, name)) for name, *_ in fields}
    if hasattr(value, "__dict__"):
        return {name: plain(item) for name, item in vars(value).items()}
    return value if isinstance(value, int | float | str | None) else str(value)


def lists(bench: Bench) -> Seen:
    """Ask NVML for processes, with a busy client and one that holds memory, under MPS."""
    asking = Asking(bench)
    daemon = bench.daemon()
    busy = daemon.client("busy", name="busy")
    holder = daemon.client("allocate", "mib=1024", name="holder")
    busy.ready(), holder.ready()
    server = daemon.server()
    holder.wait("memory")
    time.sleep(1.0)
    values = {
        name: asking.told(name)
        for name in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetMPSComputeRunningProcesses",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetAccountingMode",
        )
    }
    values["nvmlDeviceGetProcessUtilization"] = _utilisation(asking)
    found = bench.nvml.processes(bench.gpu.uuid)
    own = [found.get(client.pid) for client in (busy, holder)]
    apart = all(mib is not None for mib in own) and (own[1] or 0) - (own[0] or 0) > 512
    told = (
        f"the busy client has {_mib(own[0])}, the one that holds 1024 MiB {_mib(own[1])}, the "
        f"server {_mib(found.get(server))}; utilisation by process: "
        f"{_brief(values['nvmlDeviceGetProcessUtilization'])}"
    )
    return Seen(told, apart, values)


def gpm(bench: Bench) -> Seen:
    """Ask GPM for what the code uses at several distances, and once for every id."""
    if not bench.nvml.has_gpm(bench.gpu.uuid):
        raise CouldNotTryError("the GPU has no GPM (before Hopper)")
    asking = Asking(bench)
    client = bench.alone("busy", name="busy")
    client.ready(), client.wait("steps")
    used = [number for number, _ in GPM_METRICS.values()]
    apart = {f"{seconds:g}": _gpm(asking, used, seconds) for seconds in DISTANCES_S}
    every = _gpm(asking, range(1, _LAST_GPM_ID + 1), 0.3)
    answered = {number: value for number, value in every.items() if isinstance(value, float)}
    ours = apart[f"{WITHIN_S:g}"]
    missing = [name for name, (number, _) in GPM_METRICS.items() if not _number(ours, number)]
    told = (
        f"{len(answered)} of {_LAST_GPM_ID} ids answer; {WITHIN_S:g} s apart "
        f"{len(used) - len(missing)} of the {len(used)} used do"
        + (f" (not {', '.join(missing)})" if missing else "")
        + f"; SM activity by distance: {_by_distance(apart)}"
    )
    active = _number(ours, GPM_METRICS["sm_active"][0])
    return Seen(told, not missing and active > 50, {"by_distance": apart, "every": every})


def energy(bench: Bench) -> Seen:
    """Watch the energy counter's steps under load, and power beside it."""
    asking = Asking(bench)
    client = bench.alone("busy", name="busy")
    client.ready(), client.wait("steps")
    changes = _changes(
        lambda: asking("nvmlDeviceGetTotalEnergyConsumption", asking.handle, quiet=True)
    )
    bench.notes.line("nvml", f"energy counter, seconds and mJ: {changes}")
    if len(changes) < 3:
        raise CouldNotTryError(f"the energy counter moved {len(changes)} times in {COUNTED_S:g} s")
    times = [at for at, _ in changes]
    period = (times[-1] - times[0]) / (len(times) - 1)
    step = (changes[-1][1] - changes[0][1]) / (len(changes) - 1)
    mean = asking("nvmlDeviceGetPowerUsage", asking.handle) / 1000
    counted = (changes[-1][1] - changes[0][1]) / 1000 / (times[-1] - times[0])
    told = (
        f"a step of {step / 1000:.1f} J every {period * 1000:.0f} ms, {counted:.0f} W by the "
        f"counter, {mean:.0f} W told"
    )
    values = {"period_s": period, "step_mj": step, "counted_w": counted, "told_w": mean}
    values["instant"] = asking_field(asking)
    return Seen(told, period <= 1.0, values)


def dcgm(bench: Bench) -> Seen:
    """Run the DCGM commands that ``dcgm.py`` uses, and keep what they print."""
    program = shutil.which("dcgmi")
    if program is None:
        raise CouldNotTryError("dcgmi is not installed")
    client = bench.alone("busy", name="busy")
    client.ready()
    fine = True
    for words in (
        ("discovery", "-l"),
        ("profile", "--list"),
        ("dmon", "-e", "1002,1003,1004,1005,1007,1008", "-d", "500", "-c", "4"),
    ):
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=30, check=False
        )
        for line in (done.stdout + done.stderr).splitlines():
            bench.notes.line(f"dcgmi {words[0]}", line)
        fine &= done.returncode == 0
    return Seen("its lines are in the transcript" if fine else "it failed", fine)


def asking_field(asking: Asking) -> float | str:
    """Return the instantaneous power in watts, or why there is none."""
    try:
        values = asking("nvmlDeviceGetFieldValues", asking.handle, [INSTANT_POWER])
    except CouldNotTryError as error:
        return str(error)
    return float(values[0].value.uiVal) / 1000


def _changes(read: Callable[[], int]) -> list[tuple[float, int]]:
    """Return when a counter changed, and to what."""
    found: list[tuple[float, int]] = []
    begun = time.monotonic()
    while (now := time.monotonic()) < begun + COUNTED_S:
        value = int(read())
        if not found or found[-1][1] != value:
            found.append((now - begun, value))
        time.sleep(0.001)
    # The first reading is no change.
    return found[1:]


def _gpm(asking: Asking, ids: Any, apart_s: float) -> dict[int, float | str]:
    """Return what GPM says of metrics by two samples; per id a value or an error's number."""
    nv = asking.nv
    samples = [asking("nvmlGpmSampleAlloc", quiet=True) for _ in range(2)]
    try:
        asking("nvmlGpmSampleGet", asking.handle, samples[0], quiet=True)
        time.sleep(apart_s)
        asking("nvmlGpmSampleGet", asking.handle, samples[1], quiet=True)
        asked = nv.c_nvmlGpmMetricsGet_t()
        asked.version = nv.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(ids)
        asked.sample1, asked.sample2 = samples
        for place, number in enumerate(ids):
            asked.metrics[place].metricId = number
        try:
            asking("nvmlGpmMetricsGet", asked, quiet=True)
        except CouldNotTryError as error:
            return dict.fromkeys(ids, str(error))
        return {number: _metric(nv, asked.metrics[place]) for place, number in enumerate(ids)}
    finally:
        for sample in samples:
            asking("nvmlGpmSampleFree", sample, quiet=True)


def _metric(nv: Any, metric: Any) -> float | str:
    if metric.nvmlReturn != nv.NVML_SUCCESS:
        return f"error {metric.nvmlReturn}"
    return float(metric.value) if math.isfinite(metric.value) else "not a number"


def _number(found: Mapping[int, float | str], number: int) -> float:
    value = found[number]
    return value if isinstance(value, float) else 0.0


def _by_distance(apart: Mapping[str, Mapping[int, float | str]]) -> str:
    sm_active = GPM_METRICS["sm_active"][0]
    return ", ".join(f"{seconds} s: {found[sm_active]}" for seconds, found in apart.items())


def _utilisation(asking: Asking) -> Any:
    try:
        return plain(asking("nvmlDeviceGetProcessUtilization", asking.handle, 0))
    except CouldNotTryError as error:
        return str(error)


def _brief(value: object) -> str:
    return value if isinstance(value, str) else f"{len(value)} rows"  # type: ignore[arg-type]


def _mib(value: float | None) -> str:
    return "no figure" if value is None else f"{value:.0f} MiB"


CHECKS: Final = (
    Checking(
        "nvml-lists",
        (12,),
        "NVML's lists under MPS: clients, their memory, the server; utilisation by process",
        "each client with its own memory",
        lists,
        60,
        5,
    ),
    Checking(
        "gpm",
        (13,),
        "what GPM returns per id and distance of samples",
        f"per cent and MiB/s; samples {WITHIN_S:g} s apart are fine",
        gpm,
        60,
        6,
    ),
    Checking(
        "energy",
        (14,),
        "step and period of the energy counter; power",
        "fine enough for windows of a minute: a step a second or more often",
        energy,
        60,
        8,
    ),
    Checking(
        "dcgm",
        (15,),
        "what dcgmi prints",
        "the layouts in test_dcgm.py",
        dcgm,
        90,
        10,
    ),
)
