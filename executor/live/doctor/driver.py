"""NVIDIA's driver: the devices on the bus, the kernel module, its nodes, and NVML above it."""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.live.doctor.finding import Level, Seen
from dovetail.executor.live.doctor.machine import container
from dovetail.executor.live.nvml import NvmlError
from dovetail.instances.errors import DovetailError, UnsupportedError

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
_NODES: Final = re.compile(r"nvidia(\d+|ctl|-uvm)")
_NVRM: Final = re.compile(r"NVRM version:.*?(\d{3}\.\d+(?:\.\d+)?)")
_XID: Final = re.compile(r"NVRM: (Xid \(PCI:[0-9a-fA-F:.]+\): \d+)")
_LOG_RECORD: Final = 8192

_NO_PERMISSION: Final = 4
_DRIVER_NOT_LOADED: Final = 9
_LIBRARY_NOT_FOUND: Final = 12
_FUNCTION_NOT_FOUND: Final = 13
_MISMATCH: Final = 18
"""``nvmlReturn_t`` of nvml.h."""

_WITHOUT_GPU: Final = "without a GPU: dovetail serve --pool cpu"


class Places(NamedTuple):
    """Where the kernel tells of the driver."""

    pci: Path = Path("/sys/bus/pci/devices")
    module: Path = Path("/proc/driver/nvidia/version")
    nodes: Path = Path("/dev")
    log: Path = Path("/dev/kmsg")


class Driver(NamedTuple):
    """What NVML says of the driver: its version, and the newest CUDA that it serves."""

    version: str
    cuda: tuple[int, int] | None


def bus(pci: Path, told: Driver | DovetailError) -> Seen | None:
    """Count the devices; where none is seen, and the driver answers, nothing is told."""
    try:
        found = sum(_is_gpu(device) for device in pci.iterdir())
    except OSError:
        return None
    if found:
        return Seen(f"{found} NVIDIA GPU{'s' * (found > 1)} on the PCI bus")
    answers = isinstance(told, Driver)
    return None if answers else Seen("no NVIDIA GPU on the PCI bus", Level.BROKEN, _given())


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY)


def _given() -> str:
    """Return what gives a process on this machine a GPU."""
    if container() is not None:
        return "the host has none, or hides it from this container"
    return "a virtual machine needs it passed through (PCI passthrough)"


def module_version(path: Path) -> str | None:
    """Return the version of the kernel module; None where it is not loaded."""
    try:
        told = path.read_text(errors="replace")
    except OSError:
        return None
    found = _NVRM.search(told)
    return found[1] if found else "of unknown version"


def module(version: str | None, driver: Driver | DovetailError) -> Seen:
    """Tell of the kernel module."""
    if version is not None:
        return Seen(f"nvidia {version}")
    if isinstance(driver, Driver):
        return Seen("not told by /proc/driver/nvidia, but the driver answers", Level.NOTE)
    if container() is not None:
        remedy = "load it on the host, and start the container with its GPUs (--gpus all)"
    else:
        remedy = "install NVIDIA's driver, or load it: modprobe nvidia"
    return Seen("the kernel module nvidia is not loaded", Level.BROKEN, remedy)


def nodes(folder: Path, module: str | None) -> Seen:
    """Say whether the device files are there and may be opened."""
    found = [path for path in sorted(folder.glob("nvidia*")) if _NODES.fullmatch(path.name)]
    if not found:
        level = Level.LACKING if module is None else Level.BROKEN
        return Seen(f"there is no {folder}/nvidia*", level, _way_to_nodes(module))
    closed = [path for path in found if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        named = ", ".join(f"{path.name} (mode {_mode(path)})" for path in closed)
        remedy = "join the group that owns them, or ask an administrator"
        return Seen(f"may not be opened: {named}", Level.BROKEN, remedy)
    if not (folder / "nvidia-uvm").exists():
        remedy = "CUDA needs it: modprobe nvidia-uvm, or nvidia-modprobe -u -c 0"
        return Seen(f"{folder}/nvidia-uvm is missing", Level.BROKEN, remedy)
    return Seen(f"{', '.join(path.name for path in found)} may be opened")


def _way_to_nodes(module: str | None) -> str:
    if module is None:
        return "they come with the kernel module"
    if container() is not None:
        return "start the container with the host's GPUs (docker: --gpus all)"
    return "nvidia-modprobe -c 0 -u makes them; nvidia-smi does, too"


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def bindings(told: Driver | DovetailError) -> Seen:
    """Compare the bindings with the driver: older ones lack what is new, newer ones load."""
    try:
        version = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        remedy = "pip install './dovetail[live]'"
        return Seen("nvidia-ml-py is not installed", Level.BROKEN, remedy)
    found = f"nvidia-ml-py {version}"
    if isinstance(told, Driver) and _series(version) < _major(told.version):
        remedy = f"pip install 'nvidia-ml-py>=13.{_major(told.version)}'"
        return Seen(f"{found} is older than the driver", Level.NOTE, remedy)
    return Seen(found)


def _series(version: str) -> int:
    """Return the driver's series that bindings were made for: 580 of 13.580.65."""
    parts = version.split(".")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def nvml(told: Driver | DovetailError) -> Seen:
    """Tell what NVML says, or why it says nothing."""
    if isinstance(told, Driver):
        cuda = "" if told.cuda is None else f", CUDA up to {told.cuda[0]}.{told.cuda[1]}"
        return Seen(f"NVIDIA {told.version}{cuda}")
    if isinstance(told, UnsupportedError):
        return Seen("cannot be asked without nvidia-ml-py", Level.BROKEN, str(told))
    code = told.code if isinstance(told, NvmlError) else None
    if code == _LIBRARY_NOT_FOUND:
        return Seen(_library_trouble(), Level.BROKEN, _library_remedy())
    return Seen(str(told), Level.BROKEN, _REMEDIES.get(code, _UNKNOWN))


def _library_remedy() -> str:
    """Return what brings NVML's library: into a container it comes from the host."""
    if container() is not None:
        return f"{_WITHOUT_GPU}; else start the container with its GPUs (--gpus all)"
    return f"{_WITHOUT_GPU}; else install NVIDIA's driver, all of it"


_UNKNOWN: Final = "see what nvidia-smi says; install NVIDIA's driver anew if it fails, too"
_REMEDIES: Final = {
    _FUNCTION_NOT_FOUND: "that library is none of NVIDIA's driver: see LD_LIBRARY_PATH, ldconfig",
    _DRIVER_NOT_LOADED: f"{_WITHOUT_GPU}; else modprobe nvidia (if it fails, dmesg says why)",
    _MISMATCH: "the driver was updated beneath its module: reboot, or unload and load nvidia*",
    _NO_PERMISSION: "this user may not open /dev/nvidia*: see the nodes above",
    None: _UNKNOWN,
}


def _library_trouble() -> str:
    """Return why the library of NVML cannot be loaded: missing, or there and no good."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        if "No such file" in str(error):
            return "libnvidia-ml.so.1 is not installed"
        return f"libnvidia-ml.so.1 cannot be loaded: {error}"
    return "libnvidia-ml.so.1 was not found at first, and is now: try again"


def past_errors(log: Path, module: str | None) -> Seen | None:
    """Tell of critical errors (Xid) that the kernel's log still has."""
    if module is None:
        return None
    found = _xids(log)
    if found is None:
        told = "the kernel's log may not be read: whether there were Xid errors is not known"
        return Seen(told, Level.NOTE, "run dovetail doctor as root")
    if found:
        told = f"{len(found)} Xid since the log begins, the last: {found[-1]}"
        remedy = "13, 31, 43, 45, 68, 109 are programs' own; others: NVIDIA's list of Xid errors"
        return Seen(told, Level.NOTE, remedy)
    return Seen("no Xid error in the kernel's log")


def _xids(log: Path) -> list[str] | None:
    try:
        handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _XID.findall("".join(_records(handle)))
    finally:
        os.close(handle)


def _records(handle: int) -> Iterator[str]:
    """Yield what the kernel's log has now; each read is a record of it."""
    while True:
        try:
            record = os.read(handle, _LOG_RECORD)
        except BrokenPipeError:  # overwritten while it was read; the next is there
            continue
        except OSError:
            return
        if not record:
            return
        yield record.decode(errors="replace")
