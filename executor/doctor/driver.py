"""Checks of NVIDIA's driver: PCI devices, kernel module, device files, bindings and NVML."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import re
import stat
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from dovetail.executor.doctor.commands import as_root, pip, pip_install
from dovetail.executor.doctor.finding import Finding, Severity, broken, note
from dovetail.executor.doctor.machine import container
from dovetail.executor.gpus.nvml import NvmlError
from dovetail.instances.errors import DovetailError, UnsupportedError

_NODES: Final = re.compile(r"nvidia(\d+|ctl|-uvm)")
_NVRM: Final = re.compile(r"NVRM version:.*?(\d{3}\.\d+(?:\.\d+)?)")
_XID: Final = re.compile(r"NVRM: (Xid \(PCI:[0-9a-fA-F:.]+\): \d+)")

_WITHOUT_GPU: Final = "without a GPU: dovetail serve --pool cpu"
_LIBRARY_NOT_FOUND: Final = 12
_OTHER_VERSION: Final = 18
_REMEDIES: Final = {
    4: "this user may not open /dev/nvidia*: see the nodes above",
    9: f"{_WITHOUT_GPU}; else modprobe nvidia (if it fails, dmesg says why)",
    13: "that library is not from NVIDIA's driver: see LD_LIBRARY_PATH, ldconfig",
    _OTHER_VERSION: "the driver was updated while its module was loaded: reboot, or reload nvidia*",
}
"""By ``nvmlReturn_t`` of nvml.h: no permission, not loaded, function not found, mismatch."""


class DriverFiles(NamedTuple):
    """The kernel's files about the driver."""

    pci: Path = Path("/sys/bus/pci/devices")
    module: Path = Path("/proc/driver/nvidia/version")
    nodes: Path = Path("/dev")
    log: Path = Path("/dev/kmsg")


class Driver(NamedTuple):
    """Version of the driver, and the newest CUDA that it supports."""

    version: str
    cuda: tuple[int, int] | None


_Choice = TypeVar("_Choice")


def _here(in_container: _Choice, otherwise: _Choice) -> _Choice:
    return otherwise if container() is None else in_container


def bus(pci: Path, state: Driver | DovetailError) -> Finding | None:
    """Report the number of GPUs on the PCI bus; nothing if there are none but the driver works."""
    found = 0
    try:
        for device in pci.iterdir():
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
            found += vendor.strip() == "0x10de" and kind.startswith("0x03")
    except OSError:
        if not found:
            return None
    if found:
        return Finding(f"{found} NVIDIA GPU{'s' * (found > 1)} on the PCI bus")
    passed = "a virtual machine needs it passed through (PCI passthrough)"
    remedy = _here("the host has none, or hides it from this container", passed)
    return None if isinstance(state, Driver) else broken("no NVIDIA GPU on the PCI bus", remedy)


def module_version(path: Path) -> str | None:
    """Return the version of the kernel module, or None if it is not loaded."""
    try:
        found = _NVRM.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else "of unknown version"


def module(version: str | None, state: Driver | DovetailError) -> Finding:
    """Check the kernel module."""
    if version is not None:
        return Finding(f"nvidia {version}")
    if isinstance(state, Driver):
        return Finding("not reported by /proc/driver/nvidia, but the driver answers", Severity.NOTE)
    remedy = _here(
        "load it on the host, and start the container with its GPUs (--gpus all)",
        "install NVIDIA's driver, or load it: modprobe nvidia",
    )
    return broken("the kernel module nvidia is not loaded", remedy, *_loading())


def _loading() -> tuple[str, ...]:
    """Return the command that loads the kernel module if this kernel has one."""
    modules = Path("/lib/modules", platform.release(), "modules.dep")
    with suppress(OSError):
        if container() is None and re.search(r"/nvidia(-current)?\.ko", modules.read_text()):
            return (as_root("modprobe", "nvidia"),)
    return ()


def nodes(folder: Path, module: str | None) -> Finding:
    """Check that the device files exist and may be opened."""
    found = [path for path in sorted(folder.glob("nvidia*")) if _NODES.fullmatch(path.name)]
    if not found and module is None:
        remedy = "they come with the kernel module"
        return Finding(f"there is no {folder}/nvidia*", Severity.LACKING, remedy)
    if not found:
        remedy = _here(
            "start the container with the host's GPUs (docker: --gpus all)",
            "nvidia-modprobe -c 0 -u creates them, and so does nvidia-smi",
        )
        creating = _here((), (as_root("nvidia-modprobe", "-c", "0", "-u"),))
        return broken(f"there is no {folder}/nvidia*", remedy, *creating)
    closed = [path for path in found if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        seen = (f"{path.name} (mode {stat.S_IMODE(path.stat().st_mode):o})" for path in closed)
        remedy = "join the group that owns them, or ask an administrator"
        return broken(f"may not be opened: {', '.join(seen)}", remedy, *_joining(closed))
    if not (folder / "nvidia-uvm").exists():
        remedy = "CUDA needs it: modprobe nvidia-uvm, or nvidia-modprobe -u -c 0"
        creating = _here((), (as_root("nvidia-modprobe", "-u", "-c", "0"),))
        return broken(f"{folder}/nvidia-uvm is missing", remedy, *creating)
    return Finding(f"{', '.join(path.name for path in found)} may be opened")


def _joining(closed: list[Path]) -> tuple[str, ...]:
    """Return the commands by which this user joins the groups that may open device files."""
    status = [path.stat() for path in closed]
    if any(one.st_gid == 0 or one.st_mode & 0o060 != 0o060 for one in status):
        return ()
    with suppress(KeyError):
        user, groups = pwd.getpwuid(os.geteuid()).pw_name, sorted({one.st_gid for one in status})
        return tuple(
            as_root("usermod", "-a", "-G", grp.getgrgid(each).gr_name, user) for each in groups
        )
    return ()


def bindings(state: Driver | DovetailError) -> Finding:
    """Check that the bindings are not older than the driver; newer ones work."""
    try:
        version = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        remedy = "pip install './dovetail[live]'"
        return broken("nvidia-ml-py is not installed", remedy, pip_install("nvidia-ml-py"))
    # Bindings 13.580.65 were made for the driver's series 580.
    series = re.match(r"\d+\.(\d+)", version)
    major = re.match(r"\d+", state.version) if isinstance(state, Driver) else None
    if major and int(series[1] if series else 0) < int(major[0]):
        remedy = f"pip install 'nvidia-ml-py>=13.{major[0]}'"
        newer = pip("install", f"nvidia-ml-py>=13.{major[0]}")
        return note(f"nvidia-ml-py {version} is older than the driver", remedy, newer)
    return Finding(f"nvidia-ml-py {version}")


def nvml(state: Driver | DovetailError) -> Finding:
    """Report the versions from NVML, or why it cannot be used."""
    if isinstance(state, Driver):
        cuda = "" if state.cuda is None else f", CUDA up to {state.cuda[0]}.{state.cuda[1]}"
        return Finding(f"NVIDIA {state.version}{cuda}")
    if isinstance(state, UnsupportedError):
        return broken("cannot be read without nvidia-ml-py", str(state))
    code = state.code if isinstance(state, NvmlError) else None
    if code != _LIBRARY_NOT_FOUND:
        unknown = "run nvidia-smi; reinstall NVIDIA's driver if that fails, too"
        return broken(str(state), _REMEDIES.get(code or 0, unknown), *_reloading(code))
    remedy = _here(
        "else start the container with its GPUs (--gpus all)",
        "else install NVIDIA's driver, all of it",
    )
    return broken(_library_trouble(), f"{_WITHOUT_GPU}; {remedy}")


def _reloading(code: int | None) -> tuple[str, ...]:
    """Return the commands that load the kernel module again after an update of the driver."""
    if code != _OTHER_VERSION or container() is not None:
        return ()
    loaded = ("nvidia-uvm", "nvidia-drm", "nvidia-modeset", "nvidia")
    return (as_root("modprobe", "-r", *loaded), as_root("modprobe", "-a", "nvidia", "nvidia-uvm"))


def _library_trouble() -> str:
    """Return why NVML's library cannot be loaded."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        if "No such file" in str(error):
            return "libnvidia-ml.so.1 is not installed"
        return f"libnvidia-ml.so.1 cannot be loaded: {error}"
    return "libnvidia-ml.so.1 was not found at first, but is now: try again"


def past_errors(log: Path, module: str | None) -> Finding | None:
    """Report critical errors (Xid) in the kernel's log."""
    if module is None:
        return None
    try:
        found = _XID.findall(_kernel_log(log))
    except OSError:
        text = "the kernel's log cannot be read: unknown whether there were Xid errors"
        return note(text, "run dovetail doctor as root")
    if found:
        text = f"{len(found)} Xid errors in the kernel's log, the last: {found[-1]}"
        remedy = "programs cause 13, 31, 43, 45, 68, 109; others: NVIDIA's list of Xid errors"
        return note(text, remedy)
    return Finding("no Xid error in the kernel's log")


def _kernel_log(path: Path) -> str:
    """Return the kernel's log; each read returns one record."""
    handle, records = os.open(path, os.O_RDONLY | os.O_NONBLOCK), [b" "]
    try:
        while records[-1]:
            with suppress(BrokenPipeError):  # overwritten meanwhile; the next record follows
                records.append(os.read(handle, 8192))
    except BlockingIOError:
        pass
    finally:
        os.close(handle)
    return b"".join(records).decode(errors="replace")
