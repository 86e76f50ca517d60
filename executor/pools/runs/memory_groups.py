"""Limits on device memory by control groups of version 2, which NVIDIA's driver holds.

From release 615 on, the driver charges all device memory of a process to its control group: to the
kernel's controller ``dmem`` (kernel 6.14, region ``nvidia/<PCI address>/vidmem``), or on kernels
without it to an account of its own, which NVIDIA calls ``misc``. A limit binds all processes of a
group together, with or without MPS. It has to be set through NVML, not in the files of ``dmem``,
by root, and the driver looks for groups only below ``/sys/fs/cgroup``.

Sources: NVIDIA, "MPS v3 Memory Partitioning" (release 615, September 2026); NVIDIA Dynamo, "Per-GPU
Compute and Memory Limits with MPS" (2026), whose table also shows such a limit for clients of MPS;
the kernel's ``admin-guide/cgroup-v2.rst``, "DMEM".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.gpus.nvml import GpuLostError, GroupMemory, Nvml, NvmlError
from dovetail.executor.pools.runs.cgroups import ControlGroups, hand_down, places_here, unified_here

ROOT: Final = Path("/sys/fs/cgroup")
"""Where NVIDIA's driver looks for control groups."""

_TRIED_MIB: Final = 1024.0
_DMEM: Final = "dmem"


class MemoryGroups(ControlGroups):
    """Groups with limits on device memory.

    Parameters
    ----------
    home : path
        Their common group; created if it is missing.
    nvml : Nvml
        An open session.
    root : path
        The top of the hierarchy. If the kernel has ``dmem``, all groups from there on hand it down,
        without a gap, as the driver needs it; systemd hands it down to no unit.

    Attributes
    ----------
    by_kernel : bool
        Whether the kernel's controller ``dmem`` holds the limits, not the driver alone.

    Raises
    ------
    OSError
        When the groups cannot be created.
    """

    def __init__(self, home: Path, nvml: Nvml, root: Path) -> None:
        super().__init__(home)
        self._nvml = nvml
        if _DMEM in (root / "cgroup.controllers").read_text(encoding="ascii").split():
            above = [path for path in home.parents if path.is_relative_to(root)]
            hand_down(_DMEM, *reversed(above), home)
        self.by_kernel = (home / "dmem.max").exists()

    def make(self, name: str, uuid: str, limit_mib: float) -> str:
        """Create a group that has this much memory of a GPU, and return its entry file.

        Raises
        ------
        OSError
            When the kernel refuses.
        NvmlError
            When the driver refuses, or does not report the limit afterwards.
        """
        group = self.home / name
        group.mkdir(exist_ok=True)
        self._nvml.limit_group(uuid, group, limit_mib)
        held = self._nvml.group_memory(uuid, group).limit_mib
        # The kernel rounds limits to pages.
        if held is None or abs(held - limit_mib) > 1:
            raise NvmlError(f"{group}: a limit of {limit_mib:g} MiB was set, but is {held}")
        return str(group / self.entry)

    def memory(self, name: str, uuid: str) -> GroupMemory:
        """Return limit and use of a GPU's memory in a group; raises like ``Nvml.group_memory``."""
        return self._nvml.group_memory(uuid, self.home / name)


class NoGroups(NamedTuple):
    """Why no control group can be limited, and what would change that."""

    why: str
    remedy: str


def find_memory_groups(
    name: str, nvml: Nvml, uuids: Sequence[str], root: Path = ROOT
) -> MemoryGroups | NoGroups:
    """Return groups with limits on device memory, or why there are none here.

    This is tried: a group is created, limited on every GPU, read back and removed.

    Parameters
    ----------
    name : str
        Name of the common group.
    nvml : Nvml
        An open session.
    uuids : sequence of str
        The GPUs; at least one.
    root : path
        Where version 2 has to be mounted.
    """
    lacking = _lacking(nvml, uuids[0], root)
    if lacking is not None:
        return lacking
    refused: OSError | NvmlError | GpuLostError | None = None
    for place in _places(root):
        try:
            return _tried(MemoryGroups(place / name, nvml, root), uuids)
        except (OSError, NvmlError, GpuLostError) as error:
            refused = error
            with suppress(OSError):
                (place / name).rmdir()
    why = refused.strerror if isinstance(refused, OSError) else refused
    return NoGroups(f"no control group can be limited: {why}", f"see {root}, cgroup.controllers")


def _lacking(nvml: Nvml, uuid: str, root: Path) -> NoGroups | None:
    """Return the first thing that limits need and this machine lacks."""
    driver = f"driver {nvml.driver()}"
    if not nvml.limits_groups(uuid):
        remedy = "driver 615 or newer (CUDA 13.4), and nvidia-ml-py 13.615 or newer"
        return NoGroups(f"{driver} limits no memory of control groups", remedy)
    if root not in unified_here():
        remedy = "boot with systemd.unified_cgroup_hierarchy=1, or mount it there (cgroup2)"
        return NoGroups(f"control groups of version 2 are not mounted at {root}", remedy)
    if os.geteuid() != 0:
        return NoGroups(f"only root may limit memory of control groups ({driver})", "run as root")
    return None


def _places(root: Path) -> Iterator[Path]:
    """Yield where groups may be created: what was left to this service, then the top."""
    handed = [place.path for place in places_here() if place.version == 2]
    yield from dict.fromkeys([*(path for path in handed if path.is_relative_to(root)), root])


def _tried(groups: MemoryGroups, uuids: Sequence[str]) -> MemoryGroups:
    try:
        for uuid in uuids:
            groups.make("probe", uuid, _TRIED_MIB)
    finally:
        groups.remove("probe")
    return groups
