"""Each GPU: what it is, whether it can be used, how it is profiled, and who is on it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Final

from dovetail.executor.live.dcgm import PROGRAM as DCGM
from dovetail.executor.live.dcgm import uuids
from dovetail.executor.live.doctor.finding import Finding, Level
from dovetail.executor.live.mps.foreign import every_mps
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Gpu, GpuLostError, MemoryHealth, Nvml
from dovetail.executor.live.pools.processes import tokens
from dovetail.instances._record import listed

_ANSWER_S: Final = 10.0
_SHOWN: Final = 12
"""Characters of a UUID that tell GPUs apart."""


def lost(told: str) -> Finding:
    """Tell of a GPU that does not answer."""
    remedy = "reset the GPU or reboot; nothing is started on it"
    return Finding("gpu.lost", told, Level.BROKEN, remedy)


def unusable(gpu: Gpu) -> Finding | None:
    """Return why a GPU cannot be used, None where it can."""
    name = gpu.uuid[:_SHOWN]
    if gpu.mig:
        told = f"{gpu.name} is cut up by MIG"
        remedy = "Dovetail shares whole GPUs: leave it to others"
        return Finding("gpu.mig", told, Level.BROKEN, remedy, name)
    if gpu.compute_mode == "prohibited":
        told = f"{gpu.name} is in compute mode PROHIBITED"
        remedy = f"nvidia-smi -i {name} -c DEFAULT, by an administrator"
        return Finding("gpu.compute-mode", told, Level.BROKEN, remedy, name)
    return None


def gpu_findings(nvml: Nvml, gpu: Gpu, mps: MpsManager) -> Iterator[Finding]:
    """Look at one GPU."""
    told = unusable(gpu)
    if told is not None:
        yield told
        return
    name = gpu.uuid[:_SHOWN]
    try:
        yield from _usable(nvml, gpu, mps, name)
    except GpuLostError as error:
        yield lost(f"{name}: {error}")


def _usable(nvml: Nvml, gpu: Gpu, mps: MpsManager, name: str) -> Iterator[Finding]:
    sms = f"{gpu.sms} SMs" if gpu.sms else "SMs unknown"
    capability = ".".join(map(str, gpu.capability))
    told = f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, {sms}, compute capability {capability}"
    yield Finding("gpu.model", told, gpu=name)
    yield _compute_mode(gpu, name)
    yield _memory(nvml.memory_health(gpu.uuid), name)
    yield _profiling(nvml, gpu, name)
    foreign = mps.foreign(gpu.uuid)
    if foreign:
        told = f"MPS of others may be on it: pid {listed(str(one.pid) for one in foreign)}"
        remedy = "jobs take turns until its owner ends it: see MPS below"
        yield Finding("gpu.mps-of-others", told, Level.LACKING, remedy, name)
    yield from _strangers(nvml, gpu, name)


def _compute_mode(gpu: Gpu, name: str) -> Finding:
    about = "gpu.compute-mode"
    if gpu.compute_mode == "exclusive_process":
        remedy = "fine under MPS; jobs outside it will find the GPU busy"
        return Finding(about, "EXCLUSIVE_PROCESS", Level.NOTE, remedy, name)
    return Finding(about, "DEFAULT", gpu=name)


def _memory(health: MemoryHealth, name: str) -> Finding:
    about = "gpu.memory"
    ecc = {None: "ECC not told", True: "ECC on", False: "ECC off"}[health.ecc]
    if health.failed:
        told = f"{ecc}; a bad row could not be remapped"
        return Finding(about, told, Level.LACKING, "have the GPU replaced", name)
    if health.pending:
        told = f"{ecc}; bad memory waits to be taken out of use"
        remedy = "drain the GPU and have it reset, or reboot"
        return Finding(about, told, Level.NOTE, remedy, name)
    return Finding(about, f"{ecc}, no repair pending" if health.pending is False else ecc, gpu=name)


def _profiling(nvml: Nvml, gpu: Gpu, name: str) -> Finding:
    about = "gpu.profiling"
    if nvml.has_gpm(gpu.uuid):
        return Finding(about, "by NVML GPM", gpu=name)
    lost_too = "only utilisation and memory are told: no SM activity, no DRAM bandwidth"
    if shutil.which(DCGM) is None:
        told = f"no GPM (before Hopper), and no {DCGM}: {lost_too}"
        remedy = "install datacenter-gpu-manager and start its nvidia-dcgm service"
        return Finding(about, told, Level.LACKING, remedy, name)
    if gpu.uuid not in _seen_by_dcgm():
        told = f"no GPM (before Hopper), and {DCGM} does not tell of this GPU: {lost_too}"
        remedy = "start the host engine: systemctl start nvidia-dcgm, or nv-hostengine"
        return Finding(about, told, Level.LACKING, remedy, name)
    remedy = "while Nsight or another profiler runs, it tells nothing"
    return Finding(about, "by DCGM, as there is no GPM (before Hopper)", Level.NOTE, remedy, name)


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


def _strangers(nvml: Nvml, gpu: Gpu, name: str) -> Iterator[Finding]:
    """Tell of processes on a GPU that are neither jobs of a service nor of MPS itself."""
    jobs = {process.pid for process, _ in tokens()}
    pids = nvml.processes(gpu.uuid).keys() - jobs - {process.pid for process in every_mps()}
    if pids:
        remedy = "what they cost jobs is not known; Dovetail should have the GPU to itself"
        told = f"processes of others run there: pid {listed(map(str, sorted(pids)))}"
        yield Finding("gpu.strangers", told, Level.NOTE, remedy, name)
