"""Checks of the system, its user, clock, memory and limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import stat
import time
from pathlib import Path
from typing import Final

from dovetail.executor.doctor.finding import Finding, lacking, note
from dovetail.executor.pools.runs.cgroups import KEPT_BY, find_groups, shares_here

_LEAST_SHM: Final = 2**30
_LEAST_FILES: Final = 4096
_LEAST_YEAR: Final = 2026
"""The year of this release; an earlier clock is wrong."""


def container() -> str | None:
    """Return the kind of container that this process runs in, or None if none is detected."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path):
            return kind
    found = re.search(r"(?:^|\0)container=([^\0]*)", _text("/proc/1/environ"))
    return found[1] if found else None


def system() -> Finding:
    """Describe the system, and detect containers and virtual machines."""
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if (kind := container()) is not None:
        text += f"; in a container ({kind})"
    if re.search(r"^flags\s*:.*\bhypervisor\b", _text("/proc/cpuinfo"), re.MULTILINE):
        text += "; a virtual machine"
    return Finding(text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def user() -> Finding:
    """Check which users' jobs can be run."""
    if os.geteuid() == 0:
        return Finding(
            "root: every job runs as the user who submits it; one user at a time on a GPU"
        )
    text = f"uid {os.geteuid()}: only this user's jobs can be run"
    return note(text, "start the service as root to run the jobs of all users")


def clock() -> Finding:
    """Check that the clock is not before this release, as measurements carry their date."""
    now = time.gmtime()
    text = time.strftime("%Y-%m-%d %H:%M UTC", now)
    if now.tm_year < _LEAST_YEAR:
        return lacking(text, "set it (timedatectl): measurements carry their date")
    return Finding(text)


def shared_memory() -> Finding:
    """Check that MPS and data loaders have shared memory."""
    path = "/dev/shm"
    if not os.path.isdir(path):
        return lacking(f"{path} is missing", "MPS and data loaders need it: mount a tmpfs there")
    if not os.access(path, os.W_OK | os.X_OK):
        return lacking(f"{path} cannot be written", f"chmod 1777 {path}, by an administrator")
    usage = shutil.disk_usage(path)
    text = f"{path} holds {_size(usage.total)}, {_size(usage.free)} free"
    if usage.free < _LEAST_SHM:
        remedy = "it limits pinned memory under MPS and data loaders: free space, or enlarge it"
        return lacking(text, remedy)
    return Finding(text)


def _size(count: int) -> str:
    return f"{count / 2**30:.0f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"


def open_files() -> Finding:
    """Check the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = {resource.RLIM_INFINITY: "unlimited"}
    text = f"{names.get(soft, soft)} open files, at most {names.get(hard, hard)}"
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        remedy = f"ulimit -n {_LEAST_FILES}; jobs, data loaders and the API need descriptors"
        return note(text, remedy)
    return Finding(text)


def progress_hook(directory: Path) -> Finding:
    """Check that every user's jobs can read the hook that counts their iterations."""
    resolved = Path(os.path.realpath(directory))
    for path in (*reversed(resolved.parents), resolved, *sorted(resolved.glob("*.py"))):
        mode = stat.S_IMODE(path.stat().st_mode)
        if not mode & (stat.S_IXOTH if path.is_dir() else stat.S_IROTH):
            text = f"jobs of other users cannot read it: {path} has mode {mode:o}"
            remedy = "install Dovetail in a readable place, such as /opt, or their jobs never share"
            return lacking(text, remedy)
    return Finding("every user's jobs can read it")


def control_groups() -> Finding:
    """Check whether CPU time can be limited, by creating and removing a control group."""
    groups = find_groups(f"dovetail-trial-{os.getpid()}")
    if groups is not None:
        groups.close()
        text = f"version {groups.version}, CPU time can be limited below {groups.home.parent}"
        return Finding(text)
    text = "CPU time cannot be limited: no group can be created, or it has no cpu controller"
    return note(text, "only the cpu pool uses it: run as root, or in a unit with Delegate=yes")


def cores() -> Finding:
    """Describe the pool of processor cores on this machine."""
    cores, kept = len(os.sched_getaffinity(0)), shares_here()
    text = f"{cores} {'device' if cores == 1 else 'devices'} of one core each; {KEPT_BY[kept]}"
    if kept != "none":
        return Finding(text)
    several = "dovetail serve --pool cpu:cores_per_device=2 has shares: numbers of cores"
    return note(text, "jobs there take turns" if cores == 1 else several)
