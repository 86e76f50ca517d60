"""Each GPU: what it is, whether it can be used, how it is profiled, and who is on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Final

from dovetail.executor.live.dcgm import PROGRAM as DCGM
from dovetail.executor.live.dcgm import uuids
from dovetail.executor.live.doctor.finding import Level, Seen
from dovetail.executor.live.mps.foreign import MpsProcess, every_mps
from dovetail.executor.live.nvml import Gpu, MemoryHealth, Nvml
from dovetail.executor.live.pools.processes import tokens
from dovetail.instances._record import listed

_ANSWER_S: Final = 10.0
_SHOWN: Final = 12
"""Characters of a UUID that tell GPUs apart."""


def lost(told: str) -> Seen:
    """Tell of a GPU that does not answer."""
    return Seen(told, Level.BROKEN, "reset the GPU or reboot; nothing is started on it")


def unusable(gpu: Gpu) -> Seen | None:
    """Return why a GPU cannot be used, None where it can."""
    if gpu.mig:
        remedy = "Dovetail shares whole GPUs: leave it to others"
        return Seen(f"{gpu.name} is cut up by MIG", Level.BROKEN, remedy)
    if gpu.compute_mode == "prohibited":
        remedy = f"nvidia-smi -i {short(gpu)} -c DEFAULT, by an administrator"
        return Seen(f"{gpu.name} is in compute mode PROHIBITED", Level.BROKEN, remedy)
    return None


def short(gpu: Gpu) -> str:
    """Return what people call a GPU."""
    return gpu.uuid[:_SHOWN]


def model(gpu: Gpu) -> Seen:
    """Tell what it is."""
    sms = f"{gpu.sms} SMs" if gpu.sms else "SMs unknown"
    capability = ".".join(map(str, gpu.capability))
    return Seen(
        f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, {sms}, compute capability {capability}"
    )


def mps_of_others(foreign: Sequence[MpsProcess]) -> Seen | None:
    """Tell of MPS that is not this service's."""
    if not foreign:
        return None
    told = f"MPS of others may be on it: pid {listed(str(one.pid) for one in foreign)}"
    return Seen(told, Level.LACKING, "jobs take turns until its owner ends it: see MPS below")


def compute_mode(gpu: Gpu) -> Seen:
    """Tell who may open it."""
    if gpu.compute_mode == "exclusive_process":
        remedy = "fine under MPS; jobs outside it will find the GPU busy"
        return Seen("EXCLUSIVE_PROCESS", Level.NOTE, remedy)
    return Seen("DEFAULT")


def memory(health: MemoryHealth) -> Seen:
    """Tell of errors in its memory."""
    ecc = {None: "ECC not told", True: "ECC on", False: "ECC off"}[health.ecc]
    if health.failed:
        told = f"{ecc}; a bad row could not be remapped"
        return Seen(told, Level.LACKING, "have the GPU replaced")
    if health.pending:
        told = f"{ecc}; bad memory waits to be taken out of use"
        remedy = "drain the GPU and have it reset, or reboot"
        return Seen(told, Level.NOTE, remedy)
    return Seen(f"{ecc}, no repair pending" if health.pending is False else ecc)


def profiling(nvml: Nvml, gpu: Gpu) -> Seen:
    """Say by what jobs on it are profiled."""
    if nvml.has_gpm(gpu.uuid):
        return Seen("by NVML GPM")
    lost_too = "only utilisation and memory are told: no SM activity, no DRAM bandwidth"
    if shutil.which(DCGM) is None:
        told = f"no GPM (before Hopper), and no {DCGM}: {lost_too}"
        remedy = "install datacenter-gpu-manager and start its nvidia-dcgm service"
        return Seen(told, Level.LACKING, remedy)
    if gpu.uuid not in _seen_by_dcgm():
        told = f"no GPM (before Hopper), and {DCGM} does not tell of this GPU: {lost_too}"
        remedy = "start the host engine: systemctl start nvidia-dcgm, or nv-hostengine"
        return Seen(told, Level.LACKING, remedy)
    remedy = "while Nsight or another profiler runs, it tells nothing"
    return Seen("by DCGM, as there is no GPM (before Hopper)", Level.NOTE, remedy)


@cache
def _seen_by_dcgm() -> frozenset[str]:
    """Return the GPUs that DCGM's host engine tells of; none where it does not answer."""
    try:
        done = subprocess.run(
            [DCGM, "discovery", "-l"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(uuids(done.stdout.splitlines()).values())


def strangers(nvml: Nvml, gpu: Gpu) -> Seen | None:
    """Tell of processes on a GPU that are neither jobs of a service nor of MPS itself."""
    jobs = {process.pid for process, _ in tokens()}
    pids = nvml.processes(gpu.uuid).keys() - jobs - {process.pid for process in every_mps()}
    if not pids:
        return None
    remedy = "what they cost jobs is not known; Dovetail should have the GPU to itself"
    told = f"processes of others run there: pid {listed(map(str, sorted(pids)))}"
    return Seen(told, Level.NOTE, remedy)
