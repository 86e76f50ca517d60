"""Preflight: what this machine has for live mode, what it lacks, and what to do about it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.live.mps.foreign import every_mps
from dovetail.executor.live.mps.manager import MpsManager
from dovetail.executor.live.nvml import Gpu, Nvml, NvmlError
from dovetail.executor.live.pools.cpu import KEPT_BY, shares_here
from dovetail.executor.live.pools.processes import tokens
from dovetail.executor.live.progress import HOOK_DIRECTORY
from dovetail.executor.live.splits import SplitKey, Splits, read_splits
from dovetail.instances._record import listed
from dovetail.instances.errors import DovetailError, UnsupportedError

_LEAST_SHM: Final = 2**30
_LEAST_DISK: Final = 2**30
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph"}
)


class Level(StrEnum):
    """How a finding stands."""

    GOOD = "good"
    NOTE = "note"
    """It works, and somebody should know."""
    LACKING = "lacking"
    """Less can be done without it."""
    BROKEN = "broken"
    """GPUs, or one of them, cannot be used."""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    about, told : str
        What was looked at, and what was seen.
    level : Level
        How it stands.
    remedy : str
        What to do; empty where nothing need be done.
    """

    about: str
    told: str
    level: Level = Level.GOOD
    remedy: str = ""


class Usable(IntEnum):
    """What can be done with the GPUs; the value is the exit status of ``dovetail doctor``."""

    PARTITIONED = 0
    NOT = 1
    UNPARTITIONED = 3

    @property
    def told(self) -> str:
        """In words."""
        return {
            Usable.PARTITIONED: "usable: jobs can share GPUs, with SM shares",
            Usable.UNPARTITIONED: "usable without partitioning: jobs can share GPUs, no SM shares",
            Usable.NOT: "not usable: there is nothing that Dovetail could run GPU jobs on",
        }[self]


class Diagnosis(NamedTuple):
    """All findings and the verdict."""

    findings: tuple[Finding, ...]
    usable: Usable


def diagnose(
    directory: Path,
    mps: MpsManager,
    open_nvml: Callable[[], Nvml] = Nvml,
) -> Diagnosis:
    """Look at this machine; nothing is changed.

    Parameters
    ----------
    directory : path
        The state directory that the service would use.
    mps : MpsManager
        Of the service's directory.
    open_nvml : callable
        Opens a session with NVML.
    """
    findings = [*_machine(directory)]
    sound = all(finding.level is not Level.BROKEN for finding in findings)
    with ExitStack() as session:
        try:
            nvml = session.enter_context(open_nvml())
            gpus, driver = nvml.gpus(), nvml.driver()
        except (NvmlError, UnsupportedError) as error:
            findings.append(_no_gpus(str(error)))
            findings.append(_mps(mps))
            return Diagnosis(tuple(findings), Usable.NOT)
        findings.append(Finding("driver", f"NVIDIA {driver}"))
        findings += [_lost(told) for told in nvml.lost]
        used = [gpu for gpu in gpus if _unusable(gpu) is None]
        for gpu in gpus:
            findings += _gpu(nvml, gpu, mps)
        has_mps = mps.why_not() is None
        findings.append(_mps(mps))
        splits, told = _splits(directory, {gpu.name: driver for gpu in used})
        findings += told
        shares = has_mps and any(splits.allowed_anywhere(gpu.name, driver) for gpu in used)
        usable = Usable.PARTITIONED if shares else Usable.UNPARTITIONED
        return Diagnosis(tuple(findings), usable if used and sound else Usable.NOT)


def _machine(directory: Path) -> Iterator[Finding]:
    """Look at what every pool needs."""
    if os.geteuid() == 0:
        yield Finding("user", "root: every job runs as the user who submits it")
    else:
        told = f"uid {os.geteuid()}: only this user's jobs can be run"
        yield Finding("user", told, Level.NOTE, "start the service as root to run everybody's")
    yield _state_directory(directory)
    yield _shared_memory()
    if os.geteuid() == 0:
        yield progress_hook(Path(HOOK_DIRECTORY))
    yield _cores()


def _state_directory(directory: Path) -> Finding:
    about = "state directory"
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        remedy = "name another with --directory, or $DOVETAIL_HOME"
        return Finding(about, f"{directory} cannot be written", Level.BROKEN, remedy)
    kind = _file_system(existing)
    if kind in _NETWORK_FILE_SYSTEMS:
        remedy = "the journal's locks are not safe there: name a local one with --directory"
        return Finding(about, f"{directory} is on {kind}", Level.BROKEN, remedy)
    free = shutil.disk_usage(existing).free
    if free < _LEAST_DISK:
        told = f"{directory} has {free / 2**20:.0f} MiB free"
        return Finding(about, told, Level.LACKING, "make room: logs and the journal are kept there")
    return Finding(about, f"{directory}, {free / 2**30:.0f} GiB free")


def _file_system(path: Path) -> str:
    """Return the kind of the file system that holds a path, empty where it is not told."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = {fields[1]: fields[2] for fields in map(str.split, lines) if len(fields) > 2}
    resolved = path.resolve()
    return next((mounts[str(at)] for at in (resolved, *resolved.parents) if str(at) in mounts), "")


def _shared_memory() -> Finding:
    about = "/dev/shm"
    if not os.path.isdir(about):
        return Finding(about, "is missing", Level.LACKING, "MPS and data loaders need it: mount it")
    size = shutil.disk_usage(about).total
    if size < _LEAST_SHM:
        told = f"holds {size / 2**20:.0f} MiB"
        return Finding(about, told, Level.LACKING, "pinned memory under MPS is bounded by it")
    return Finding(about, f"holds {size / 2**30:.0f} GiB")


def progress_hook(directory: Path) -> Finding:
    """Say whether every user's jobs can read the hook that counts their iterations."""
    about = "progress hook"
    closed = next((path for path in _on_the_way(directory) if not _open_to_all(path)), None)
    if closed is None:
        return Finding(about, "every user's jobs can read it")
    mode = stat.S_IMODE(closed.stat().st_mode)
    told = f"jobs of other users cannot read it: {closed} has mode {mode:o}"
    remedy = "install Dovetail where all may read it (/opt, say), or their jobs never share"
    return Finding(about, told, Level.LACKING, remedy)


def _on_the_way(directory: Path) -> Iterator[Path]:
    """Yield what has to be passed, from the root on, and what has to be read."""
    resolved = directory.resolve()
    yield from reversed(resolved.parents)
    yield resolved
    yield from sorted(resolved.glob("*.py"))


def _open_to_all(path: Path) -> bool:
    needed = stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return bool(path.stat().st_mode & needed)


def _cores() -> Finding:
    """Say what the pool of processor cores would be here."""
    about, cores, kept = "cpu pool", len(os.sched_getaffinity(0)), shares_here()
    told = f"{cores} {'device' if cores == 1 else 'devices'} of one core each; {KEPT_BY[kept]}"
    if kept != "none":
        return Finding(about, told)
    if cores == 1:
        return Finding(about, told, Level.NOTE, "jobs there take turns")
    remedy = "dovetail serve --pool cpu:cores_per_device=2 has shares: numbers of cores"
    return Finding(about, told, Level.NOTE, remedy)


def _no_gpus(why: str) -> Finding:
    remedy = "install NVIDIA's driver; without a GPU try: dovetail serve --pool cpu"
    return Finding("driver", why, Level.BROKEN, remedy)


def _lost(told: str) -> Finding:
    return Finding("GPU", told, Level.BROKEN, "reset the GPU or reboot; nothing is started on it")


def _unusable(gpu: Gpu) -> Finding | None:
    """Return why a GPU cannot be used, None where it can."""
    about = f"GPU {gpu.uuid[:12]}"
    if gpu.mig:
        told = f"{gpu.name} is cut up by MIG"
        return Finding(about, told, Level.BROKEN, "Dovetail shares whole GPUs: leave it to others")
    if gpu.compute_mode == "prohibited":
        told = f"{gpu.name} is in compute mode PROHIBITED"
        return Finding(about, told, Level.BROKEN, "nvidia-smi -c DEFAULT, by an administrator")
    return None


def _gpu(nvml: Nvml, gpu: Gpu, mps: MpsManager) -> Iterator[Finding]:
    unusable = _unusable(gpu)
    if unusable is not None:
        yield unusable
        return
    about = f"GPU {gpu.uuid[:12]}"
    sms = f"{gpu.sms} SMs" if gpu.sms else "SMs unknown"
    yield Finding(about, f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, {sms}")
    if gpu.compute_mode == "exclusive_process":
        remedy = "fine under MPS; jobs outside it will find the GPU busy"
        yield Finding(about, "compute mode EXCLUSIVE_PROCESS", Level.NOTE, remedy)
    yield _profiling(nvml, gpu, about)
    foreign = mps.foreign(gpu.uuid)
    if foreign:
        pids = listed([str(daemon.pid) for daemon in foreign])
        remedy = "it is never touched; end it (echo quit | nvidia-cuda-mps-control) to share"
        yield Finding(about, f"MPS of others runs: pid {pids}", Level.LACKING, remedy)
    yield from _strangers(nvml, gpu, about)


def _profiling(nvml: Nvml, gpu: Gpu, about: str) -> Finding:
    if nvml.has_gpm(gpu.uuid):
        return Finding(about, "profiles by NVML GPM")
    if shutil.which("dcgmi"):
        return Finding(about, "profiles by DCGM", Level.NOTE, "while Nsight runs, they are blank")
    remedy = "before Hopper only DCGM tells SM activity: install datacenter-gpu-manager"
    return Finding(about, "profiles by device utilisation only", Level.LACKING, remedy)


def _strangers(nvml: Nvml, gpu: Gpu, about: str) -> Iterator[Finding]:
    """Tell of processes on a GPU that are neither jobs of a service nor of MPS itself."""
    jobs = {process.pid for process, _ in tokens()}
    pids = nvml.processes(gpu.uuid).keys() - jobs - {process.pid for process in every_mps()}
    if pids:
        remedy = "what they cost jobs is not known; Dovetail should have the GPU to itself"
        told = f"processes of others run there: pid {listed(map(str, sorted(pids)))}"
        yield Finding(about, told, Level.NOTE, remedy)


def _mps(mps: MpsManager) -> Finding:
    why_not = mps.why_not()
    if why_not is None:
        return Finding("MPS", "NVIDIA's control daemon is installed")
    remedy = "comes with NVIDIA's driver (Debian: nvidia-cuda-mps); else jobs take turns"
    return Finding("MPS", why_not, Level.LACKING, remedy)


def _splits(directory: Path, drivers: dict[str, str]) -> tuple[Splits, Sequence[Finding]]:
    """Read the split gate's evidence, and say what it allows on each model."""
    try:
        splits = read_splits(directory / "splits.json")
    except DovetailError as error:
        remedy = "nothing is partitioned; move the file away and run dovetail doctor --splits"
        return Splits(), [Finding("SM shares", str(error), Level.LACKING, remedy)]
    return splits, [finding for item in drivers.items() for finding in _measured(splits, *item)]


def _measured(splits: Splits, gpu_model: str, driver: str) -> Iterator[Finding]:
    libraries = splits.libraries(gpu_model, driver)
    if not libraries:
        told = f"not measured on {gpu_model}, driver {driver}"
        yield Finding("SM shares", told, Level.LACKING, "dovetail doctor --splits")
    for library in libraries:
        key = SplitKey(gpu_model, driver, library)
        level = Level.GOOD if splits.allowed(key) else Level.LACKING
        yield Finding("SM shares", splits.why(key), level)
