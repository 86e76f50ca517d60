"""Checks of each GPU: model, compute mode, memory, profiling, and processes of others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Final

from dovetail.executor.doctor.commands import as_root, system_install
from dovetail.executor.doctor.finding import Finding, broken, lacking, note
from dovetail.executor.gpus.dcgm import PROGRAM as DCGM
from dovetail.executor.gpus.dcgm import uuids
from dovetail.executor.gpus.nvml import MemoryHealth, Nvml, NvmlGpu
from dovetail.executor.mps.processes import MpsProcess, every_mps
from dovetail.executor.pools.runs.processes import tokens
from dovetail.instances._record import listed

_ANSWER_S: Final = 10.0


def short(gpu: NvmlGpu) -> str:
    """Return the start of a GPU's UUID, which identifies it."""
    return gpu.uuid[:12]


def lost(text: str) -> Finding:
    """Report a GPU that does not answer."""
    return broken(text, "reset the GPU or reboot; nothing is started on it")


def unusable(gpu: NvmlGpu) -> Finding | None:
    """Return why a GPU cannot be used, or None if it can."""
    if gpu.mig:
        remedy = "Dovetail shares whole GPUs: leave it to others"
        return broken(f"{gpu.name} is partitioned by MIG", remedy)
    if gpu.compute_mode == "prohibited":
        remedy = f"nvidia-smi -i {short(gpu)} -c DEFAULT, by an administrator"
        default = as_root("nvidia-smi", "-i", gpu.uuid, "-c", "DEFAULT")
        return broken(f"{gpu.name} is in compute mode PROHIBITED", remedy, default)
    return None


def model(gpu: NvmlGpu) -> Finding:
    """Describe a GPU."""
    sms = f"{gpu.sms} SMs" if gpu.sms else "SMs unknown"
    capability = ".".join(map(str, gpu.capability))
    return Finding(
        f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, {sms}, compute capability {capability}"
    )


def mps_of_others(foreign: Sequence[MpsProcess]) -> Finding | None:
    """Report MPS of others that may see a GPU."""
    if not foreign:
        return None
    text = f"MPS of others may be on it: pid {listed(str(one.pid) for one in foreign)}"
    return lacking(text, "jobs take turns until its owner ends it: see MPS below")


def compute_mode(gpu: NvmlGpu) -> Finding:
    """Report the compute mode."""
    if gpu.compute_mode == "exclusive_process":
        return note("EXCLUSIVE_PROCESS", "fine under MPS; jobs outside it will find the GPU busy")
    return Finding("DEFAULT")


def memory(health: MemoryHealth, gpu: NvmlGpu) -> Finding:
    """Report errors of the memory."""
    ecc = {None: "ECC unknown", True: "ECC on", False: "ECC off"}[health.ecc]
    if health.failed:
        return lacking(f"{ecc}; a bad row could not be remapped", "have the GPU replaced")
    if health.pending:
        text = f"{ecc}; bad memory will be retired at the next reset"
        reset = as_root("nvidia-smi", "-i", gpu.uuid, "--gpu-reset")
        return note(text, "drain the GPU and reset it, or reboot", reset)
    return Finding(f"{ecc}, no repair pending" if health.pending is False else ecc)


def profiling(nvml: Nvml, gpu: NvmlGpu) -> Finding:
    """Report the source of profiles."""
    if nvml.has_gpm(gpu.uuid):
        return Finding("by NVML GPM")
    lost_too = "only utilisation and memory are reported, not SM activity or DRAM bandwidth"
    if shutil.which(DCGM) is None:
        text = f"no GPM (before Hopper), and no {DCGM}: {lost_too}"
        remedy = "install datacenter-gpu-manager and start its nvidia-dcgm service"
        install = system_install("datacenter-gpu-manager", "datacenter-gpu-manager")
        return lacking(text, remedy, *install, *([_starting_dcgm()] if install else []))
    if gpu.uuid not in _seen_by_dcgm():
        text = f"no GPM (before Hopper), and {DCGM} does not list this GPU: {lost_too}"
        remedy = "start the host engine: systemctl start nvidia-dcgm, or nv-hostengine"
        return lacking(text, remedy, _starting_dcgm())
    remedy = "it reports nothing while Nsight or another profiler runs"
    return note("by DCGM, as there is no GPM (before Hopper)", remedy)


def _starting_dcgm() -> str:
    return as_root("systemctl", "enable", "--now", "nvidia-dcgm")


@cache
def _seen_by_dcgm() -> frozenset[str]:
    """Return the UUIDs that DCGM's host engine lists, empty if it does not answer."""
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


def strangers(nvml: Nvml, gpu: NvmlGpu) -> Finding | None:
    """Report processes on a GPU that are neither jobs of a service nor part of MPS."""
    jobs = {process.pid for process, _ in tokens()}
    pids = nvml.processes(gpu.uuid).keys() - jobs - {process.pid for process in every_mps()}
    if not pids:
        return None
    text = f"processes of others run on it: pid {listed(map(str, sorted(pids)))}"
    return note(text, "they slow jobs by an unknown amount; Dovetail should own the whole GPU")
