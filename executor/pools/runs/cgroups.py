"""Limits on CPU time by control groups, of version 2 (``cpu.max``) or 1 (CFS quota).

Each rank gets its own group below one group of the state directory. The files are described in
the kernel's ``admin-guide/cgroup-v2.rst`` and ``scheduler/sched-bwc.rst``. Under systemd,
version 2 needs ``Delegate=yes`` and ``DelegateSubgroup=service`` (systemd 254).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.pools.names import Enforcement
from dovetail.executor.pools.runs.processes import ProcessId, runs
from dovetail.executor.pools.shim.kernel import stat_of

PERIOD_US: Final = 100_000
"""The period of a quota, long enough for one per cent of a core (the kernel's least quota)."""

_LEAST_QUOTA_US: Final = 1_000


KEPT_BY: Final[Mapping[Enforcement, str]] = {
    "quota": "shares are quotas of CPU time",
    "affinity": "shares are numbers of cores",
    "none": "no shares: neither quotas nor a second core are available",
}
"""How shares are enforced, in words."""


class ControlGroups:
    """The groups of one state directory, one for each rank.

    Parameters
    ----------
    home : path
        Their common group; created if it is missing.
    """

    entry = "cgroup.procs"
    """The file by which a process enters a group."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)

    def members(self, name: str) -> list[ProcessId]:
        """Return the running processes of a group, none if there is no such group."""
        try:
            numbers = (self.home / name / "cgroup.procs").read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []
        stats = [stat_of(int(number)) for number in numbers]
        return [ProcessId(stat.pid, stat.started) for stat in stats if stat and runs(stat)]

    def names(self) -> list[str]:
        """Return the names of all groups."""
        with contextlib.suppress(OSError):
            return [path.name for path in self.home.iterdir() if path.is_dir()]
        return []

    def remove(self, name: str) -> None:
        """Remove a group, unless it still has processes."""
        with contextlib.suppress(OSError):
            (self.home / name).rmdir()

    def close(self) -> None:
        """Remove every group without processes, and the common group if it is then empty."""
        for name in self.names():
            self.remove(name)
        with contextlib.suppress(OSError):
            self.home.rmdir()


class CpuGroups(ControlGroups):
    """Groups with limits on CPU time."""

    version = 0

    def make(self, name: str, cores: float | None) -> str:
        """Create a group limited to this much CPU time (None: no limit), and return its entry file.

        Raises
        ------
        OSError
            When the kernel refuses.
        """
        group = self.home / name
        group.mkdir(exist_ok=True)
        if cores is not None:
            self._limit(group, max(_LEAST_QUOTA_US, round(cores * PERIOD_US)))
        return str(group / self.entry)

    def cores(self, name: str) -> float | None:
        """Return the number of cores whose time a group may use, or None if it is not limited.

        Raises
        ------
        OSError
            When there is no such group.
        """
        return self._limited(self.home / name)

    def _limit(self, group: Path, quota_us: int) -> None:
        raise NotImplementedError

    def _limited(self, group: Path) -> float | None:
        raise NotImplementedError


class CpuGroupsV1(CpuGroups):
    """Groups of version 1: ``cpu.cfs_quota_us`` in every ``cpu.cfs_period_us``."""

    version = 1
    # A process enters as its only thread: moving a whole process takes the kernel 10 to 30 ms.
    entry = "tasks"

    def _limit(self, group: Path, quota_us: int) -> None:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
        (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")

    def _limited(self, group: Path) -> float | None:
        quota = int((group / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((group / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return None if quota < 0 else quota / period


class CpuGroupsV2(CpuGroups):
    """Groups of version 2: ``cpu.max``, which needs ``cpu`` delegated by the groups above."""

    version = 2

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        hand_down("cpu", home.parent, home)

    def _limit(self, group: Path, quota_us: int) -> None:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")

    def _limited(self, group: Path) -> float | None:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)


def hand_down(controller: str, *groups: Path) -> None:
    """Let the groups below some groups of version 2, given from the top down, have a controller.

    Raises
    ------
    OSError
        When the groups above do not hand it down.
    """
    for above in groups:
        control = above / "cgroup.subtree_control"
        if controller not in control.read_text(encoding="ascii").split():
            control.write_text(f"+{controller}", encoding="ascii")


class CgroupParent(NamedTuple):
    """A group of this machine below which new groups can be tried."""

    version: int
    path: Path


def find_groups(name: str) -> CpuGroups | None:
    """Return groups that limit CPU time here, or None if this process may not create any.

    This is tried: a group is created, limited, read back and removed.

    Parameters
    ----------
    name : str
        Name of the common group.
    """
    for place in places_here():
        groups = _tried(place, name)
        if groups is not None:
            return groups
    return None


def shares_here(cores_per_device: int = 1) -> Enforcement:
    """Return how a pool would enforce shares here; creates and removes a control group."""
    groups = find_groups(f"dovetail-trial-{os.getpid()}")
    if groups is not None:
        groups.close()
    return best_enforcement(groups, cores_per_device)


def best_enforcement(groups: CpuGroups | None, cores_per_device: int) -> Enforcement:
    """Return the best way to enforce shares with these control groups, or without any."""
    if groups is not None:
        return "quota"
    return "affinity" if cores_per_device > 1 else "none"


def places(mounts: str, own: str) -> Iterator[CgroupParent]:
    """Yield the places where groups may be created, the best first.

    Parameters
    ----------
    mounts, own : str
        ``/proc/self/mountinfo`` and ``/proc/self/cgroup``.
    """
    for mount in _mounts(mounts):
        path = _own_path(own, mount)
        if mount.version == 1:
            yield CgroupParent(1, path)
        elif _handed_down(path.parent):
            # Processes live in the leaves only, so ours are made next to the service's own group.
            yield CgroupParent(2, path.parent)
        elif os.geteuid() == 0:
            yield CgroupParent(2, mount.point)


def places_here() -> Iterator[CgroupParent]:
    """Yield the places of this machine where groups may be created, the best first."""
    return places(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))


def unified_here() -> list[Path]:
    """Return where groups of version 2 are mounted on this machine."""
    return [mount.point for mount in _mounts(_read("/proc/self/mountinfo")) if mount.version == 2]


class _Mount(NamedTuple):
    version: int
    root: str
    point: Path


def _mounts(text: str) -> Iterator[_Mount]:
    """Yield the hierarchies that may have the ``cpu`` controller, version 2 first."""
    lines = [line.split() for line in text.splitlines()]
    for version, kind in ((2, "cgroup2"), (1, "cgroup")):
        for words in lines:
            dash = words.index("-")
            options = words[dash + 3].split(",")
            if words[dash + 1] == kind and (version == 2 or "cpu" in options):
                yield _Mount(version, words[3], Path(words[4]))


def _own_path(text: str, mount: _Mount) -> Path:
    """Return the directory of this process's group."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        mine = not controllers if mount.version == 2 else "cpu" in controllers.split(",")
        if mine:
            return mount.point / os.path.relpath(path, mount.root)
    return mount.point


def _handed_down(path: Path) -> bool:
    """Return whether systemd (``Delegate=yes``) or an administrator has delegated a group to us."""
    with contextlib.suppress(OSError):
        if os.getxattr(path, "user.delegate") == b"1":
            return True
    with contextlib.suppress(OSError):
        return os.geteuid() != 0 and path.stat().st_uid == os.geteuid()
    return False


def _tried(place: CgroupParent, name: str) -> CpuGroups | None:
    kind = CpuGroupsV1 if place.version == 1 else CpuGroupsV2
    try:
        groups = kind(place.path / name)
        groups.make("probe", 0.5)
        works = groups.cores("probe") == 0.5
        groups.remove("probe")
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            (place.path / name).rmdir()
        return None
    return groups if works else None


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
