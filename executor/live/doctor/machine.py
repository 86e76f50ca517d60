"""What every pool needs: the system, its user, memory, limits, clock, and who may read what."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dovetail.executor.live.doctor.finding import Level, Seen
from dovetail.executor.live.pools.cgroups import find_groups
from dovetail.executor.live.pools.cpu import KEPT_BY, shares_here

_LEAST_SHM: Final = 2**30
_LEAST_FILES: Final = 4096
_LEAST_YEAR: Final = 2026
"""Of this release: a clock before it is wrong."""

_CONTAINER_FILES: Final = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}


def container() -> str | None:
    """Return the kind of container that this process is in; None where there is no sign of one."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for path, kind in _CONTAINER_FILES.items():
        if os.path.exists(path):
            return kind
    try:
        variables = Path("/proc/1/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    kinds = [one.partition(b"=")[2] for one in variables if one.startswith(b"container=")]
    return os.fsdecode(kinds[0]) if kinds else None


def system() -> Seen:
    """Tell the system, and the signs of a container and of a virtual machine."""
    told = f"{platform.system()} {platform.release()}, {platform.machine()}"
    kind = container()
    if kind is not None:
        told += f"; in a container ({kind})"
    if _is_virtual():
        told += "; a virtual machine"
    return Seen(told)


def _is_virtual() -> bool:
    """Whether the processor says that a hypervisor is below."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "hypervisor" in flags.split()


def user() -> Seen:
    """Tell whose jobs can be run."""
    if os.geteuid() == 0:
        told = "root: every job runs as the user who submits it; one user at a time on a GPU"
        return Seen(told)
    told = f"uid {os.geteuid()}: only this user's jobs can be run"
    remedy = "start the service as root to run everybody's"
    return Seen(told, Level.NOTE, remedy)


def clock() -> Seen:
    """Say whether the clock can be: what is measured carries its date."""
    now = time.gmtime()
    told = time.strftime("%Y-%m-%d %H:%M UTC", now)
    if now.tm_year < _LEAST_YEAR:
        remedy = "set it (timedatectl): measurements carry their date"
        return Seen(told, Level.LACKING, remedy)
    return Seen(told)


def shared_memory() -> Seen:
    """Say whether MPS and data loaders have memory to share."""
    path = "/dev/shm"
    if not os.path.isdir(path):
        remedy = "MPS and data loaders need it: mount a tmpfs there"
        return Seen(f"{path} is missing", Level.LACKING, remedy)
    if not os.access(path, os.W_OK | os.X_OK):
        remedy = f"chmod 1777 {path}, by an administrator"
        return Seen(f"{path} cannot be written", Level.LACKING, remedy)
    usage = shutil.disk_usage(path)
    told = f"{path} holds {_size(usage.total)}, {_size(usage.free)} free"
    if usage.free < _LEAST_SHM:
        remedy = "it bounds pinned memory under MPS and data loaders: make room, or make it larger"
        return Seen(told, Level.LACKING, remedy)
    return Seen(told)


def open_files() -> Seen:
    """Tell the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = f"{_limit(soft)} open files, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        remedy = f"ulimit -n {_LEAST_FILES}; jobs, data loaders and the API need descriptors"
        return Seen(told, Level.NOTE, remedy)
    return Seen(told)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def progress_hook(directory: Path) -> Seen:
    """Say whether every user's jobs can read the hook that counts their iterations."""
    closed = next((path for path in _on_the_way(directory) if not _open_to_all(path)), None)
    if closed is None:
        return Seen("every user's jobs can read it")
    mode = stat.S_IMODE(closed.stat().st_mode)
    told = f"jobs of other users cannot read it: {closed} has mode {mode:o}"
    remedy = "install Dovetail where all may read it (/opt, say), or their jobs never share"
    return Seen(told, Level.LACKING, remedy)


def _on_the_way(directory: Path) -> Iterator[Path]:
    """Yield what has to be passed, from the root on, and what has to be read."""
    resolved = Path(os.path.realpath(directory))
    yield from reversed(resolved.parents)
    yield resolved
    yield from sorted(resolved.glob("*.py"))


def _open_to_all(path: Path) -> bool:
    needed = stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return bool(path.stat().st_mode & needed)


def control_groups() -> Seen:
    """Say whether CPU time can be limited here; a group is made and removed again."""
    groups = find_groups(f"dovetail-trial-{os.getpid()}")
    if groups is not None:
        groups.close()
        told = f"version {groups.version}, CPU time can be limited below {groups.home.parent}"
        return Seen(told)
    told = "CPU time cannot be limited here: no group may be made, or it has no cpu controller"
    remedy = "only the cpu pool wants it: run as root, or in a unit with Delegate=yes"
    return Seen(told, Level.NOTE, remedy)


def cores() -> Seen:
    """Say what the pool of processor cores would be here."""
    cores, kept = len(os.sched_getaffinity(0)), shares_here()
    told = f"{cores} {'device' if cores == 1 else 'devices'} of one core each; {KEPT_BY[kept]}"
    if kept != "none":
        return Seen(told)
    if cores == 1:
        return Seen(told, Level.NOTE, "jobs there take turns")
    remedy = "dovetail serve --pool cpu:cores_per_device=2 has shares: numbers of cores"
    return Seen(told, Level.NOTE, remedy)


def _size(count: int) -> str:
    return f"{count / 2**30:.0f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"
