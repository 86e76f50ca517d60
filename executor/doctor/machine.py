"""Checks of the system, its user, clock, memory and limits."""

from __future__ import annotations

import os
import platform
import pwd
import re
import resource
import shutil
import stat
import time
from pathlib import Path
from typing import Final

from dovetail.executor.doctor.commands import as_root, command
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
        remedy = "set it (timedatectl): measurements carry their date"
        return lacking(text, remedy, as_root("timedatectl", "set-ntp", "true"))
    return Finding(text)


def shared_memory() -> Finding:
    """Check that MPS and data loaders have shared memory."""
    path = "/dev/shm"
    if not os.path.isdir(path):
        mount = ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", path)
        remedy = "MPS and data loaders need it: mount a tmpfs there"
        return lacking(f"{path} is missing", remedy, as_root("mkdir", path), as_root(*mount))
    if not os.access(path, os.W_OK | os.X_OK):
        remedy = f"chmod 1777 {path}, by an administrator"
        return lacking(f"{path} cannot be written", remedy, as_root("chmod", "1777", path))
    usage = shutil.disk_usage(path)
    text = f"{path} holds {_size(usage.total)}, {_size(usage.free)} free"
    if usage.free < _LEAST_SHM:
        if container() is not None:
            return lacking(text, "start the container with --ipc=host or --shm-size=8g")
        remedy = "it limits pinned memory under MPS and data loaders: free space, or enlarge it"
        half = _memory_bytes() // 2
        larger = as_root("mount", "-o", f"remount,size={half}", path)
        return lacking(text, remedy, *(() if usage.total >= half else (larger,)))
    return Finding(text)


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(count: int) -> str:
    return f"{count / 2**30:.0f} GiB" if count >= 10 * 2**30 else f"{count / 2**20:.0f} MiB"


def open_files() -> Finding:
    """Check the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = {resource.RLIM_INFINITY: "unlimited"}
    text = f"{names.get(soft, soft)} open files, at most {names.get(hard, hard)}"
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        remedy = f"ulimit -n {_LEAST_FILES}; jobs, data loaders and the API need descriptors"
        return note(text, remedy, *_raising_files(hard))
    return Finding(text)


def _raising_files(hard: int) -> tuple[str, ...]:
    """Return the commands that raise the limit of open files in the shell that runs them."""
    limit = command("ulimit", "-n", _LEAST_FILES)
    if hard == resource.RLIM_INFINITY or hard >= _LEAST_FILES:
        return (limit,)
    both = f"--nofile={_LEAST_FILES}:{_LEAST_FILES}"
    return (f"{as_root('prlimit', both)} --pid $$",)


def progress_hook(directory: Path) -> Finding:
    """Check that every user's jobs can read the hook that counts their iterations."""
    resolved = Path(os.path.realpath(directory))
    paths = (*reversed(resolved.parents), resolved, *sorted(resolved.glob("*.py")))
    closed = [path for path in paths if not _open_to_all(path)]
    if not closed:
        return Finding("every user's jobs can read it")
    mode = stat.S_IMODE(closed[0].stat().st_mode)
    text = f"jobs of other users cannot read it: {closed[0]} has mode {mode:o}"
    remedy = "install Dovetail in a readable place, such as /opt, or their jobs never share"
    return lacking(text, remedy, *_opening(closed))


def _open_to_all(path: Path) -> bool:
    needed = stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return bool(path.stat().st_mode & needed)


def _opening(closed: list[Path]) -> tuple[str, ...]:
    """Return the commands that open paths to all users; none if one is a user's home."""
    homes = {os.path.realpath(entry.pw_dir) for entry in pwd.getpwall()} - {"/"}
    if homes & set(map(str, closed)):
        return ()
    return tuple(as_root("chmod", "o+x" if at.is_dir() else "o+r", "--", at) for at in closed)


def control_groups() -> Finding:
    """Check whether CPU time can be limited, by creating and removing a control group."""
    groups = find_groups(f"dovetail-trial-{os.getpid()}")
    if groups is not None:
        groups.close()
        text = f"version {groups.version}, CPU time can be limited below {groups.home.parent}"
        return Finding(text)
    text = "CPU time cannot be limited: no group can be created, or it has no cpu controller"
    remedy = "only the cpu pool uses it: run as root, or in a unit with Delegate=yes"
    return note(text, remedy, *_delegating())


def _delegating() -> tuple[str, ...]:
    """Return the commands that delegate the controllers to users' own units, under systemd."""
    if os.geteuid() == 0 or not os.path.isdir("/run/systemd/system"):
        return ()
    folder = "/etc/systemd/system/user@.service.d"
    lines = command(r"[Service]\nDelegate=cpu cpuset io memory pids\n")
    return (
        as_root("mkdir", "-p", folder),
        f"printf {lines} | {as_root('tee', f'{folder}/delegate.conf')}",
        as_root("systemctl", "daemon-reload"),
    )


def cores() -> Finding:
    """Describe the pool of processor cores on this machine."""
    cores, kept = len(os.sched_getaffinity(0)), shares_here()
    text = f"{cores} {'device' if cores == 1 else 'devices'} of one core each; {KEPT_BY[kept]}"
    if kept != "none":
        return Finding(text)
    several = "dovetail serve --pool cpu:cores_per_device=2 has shares: numbers of cores"
    return note(text, "jobs there take turns" if cores == 1 else several)
