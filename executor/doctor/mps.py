"""Checks of MPS: its two programs, its directory, and running daemons."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.doctor.commands import (
    as_root,
    command,
    moved_away,
    own_directory,
    system_install,
)
from dovetail.executor.doctor.finding import Finding, lacking, note
from dovetail.executor.doctor.machine import container
from dovetail.executor.mps import program
from dovetail.executor.mps.control import MpsError
from dovetail.executor.mps.manager import pipe_directory
from dovetail.executor.mps.processes import (
    PIPE_DIRECTORY,
    PROGRAM,
    SERVER,
    MpsProcess,
)

_DEFAULT_DIRECTORY: Final = "/tmp/nvidia-mps"
"""CUDA's default pipe directory."""

_SOME_GPU: Final = "GPU-00000000-0000-0000-0000-000000000000"
_LONGEST_UID: Final = 65_534


def control(driver: str) -> Finding:
    """Check that the control program has the driver's version, if that is known."""
    path = shutil.which(PROGRAM)
    if path is None:
        remedy = "comes with NVIDIA's driver (Debian: nvidia-cuda-mps); else jobs take turns"
        return lacking(f"{PROGRAM} is not installed", remedy, *_installing(driver))
    version = program.version(path)
    if version is None:
        return Finding(f"{path}, of unknown version")
    text = f"{path}, version {version}"
    if driver and version != driver:
        remedy = "both must have the same version: install the programs of the driver"
        return note(f"{text}; the driver is {driver}", remedy)
    return Finding(text)


def _installing(driver: str) -> tuple[str, ...]:
    """Return the command that installs MPS, which Ubuntu has in a package for each driver."""
    if container() is not None:
        return ()
    series = driver.partition(".")[0]
    ubuntu = f"nvidia-compute-utils-{series}" if series else ""
    return system_install("nvidia-cuda-mps", ubuntu)


def server(driver: str) -> Finding:
    """Check that the server program is installed."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    path = shutil.which(SERVER, path=places)
    if path is None:
        remedy = "it comes with the control daemon, which starts it: install both"
        return lacking(f"{SERVER} is not installed", remedy, *_installing(driver))
    return Finding(path)


def directory(base: Path) -> Finding:
    """Check that pipe directories can be created, with paths short enough for sockets."""
    try:
        pipe_directory(base, _SOME_GPU, max(_LONGEST_UID, os.geteuid()))
    except MpsError as error:
        text = f"a daemon would not start: {error}"
        return lacking(text, "name a shorter directory with --directory")
    existing = next(path for path in (base, *base.parents) if os.path.lexists(path))
    if existing == base and base.lstat().st_uid != os.geteuid():
        remedy = f"must be uid {os.geteuid()}'s: move it away, or name another --directory"
        owner = base.lstat().st_uid
        return lacking(f"{base} belongs to uid {owner}", remedy, moved_away(base))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        text = f"{base} cannot be created: {existing} cannot be written"
        making = () if existing == base else (own_directory(base),)
        return lacking(text, "name another directory with --directory", *making)
    return Finding(f"{base} is suitable for the daemons' sockets")


def _is_ours(process: MpsProcess, base: Path) -> bool:
    return process.pipe_directory is not None and Path(process.pipe_directory).parent == base


def ours(base: Path, running: Sequence[MpsProcess], *, serving: bool) -> Iterator[Finding]:
    """Report daemons and servers below the service's directory; ``serving`` if it runs."""
    mine = [one for one in running if _is_ours(one, base)]
    for one in mine:
        text = f"{one.program} {one.pid} of uid {one.uid}"
        if serving:
            yield Finding(f"{text}, of the running service")
        else:
            ending = _ending(one, mine)
            remedy = f"a service will use it; to end it now: {_told(ending)}"
            yield note(f"{text}, but no service runs", remedy, *ending)


def others(base: Path, running: Sequence[MpsProcess]) -> Iterator[Finding]:
    """Report MPS of others, and how its owner can end it."""
    theirs = [one for one in running if not _is_ours(one, base)]
    for one in theirs:
        default = _DEFAULT_DIRECTORY if one.environment else "unknown"
        pipes = one.pipe_directory or default
        text = f"{one.program} {one.pid} of uid {one.uid}, pipe directory {pipes}"
        ending = _ending(one, theirs)
        remedy = f"if no job needs it, ask its owner: {_told(ending)}"
        yield lacking(text, remedy, *ending)
    if not theirs:
        yield Finding("no MPS of others runs")


def _ending(one: MpsProcess, running: Sequence[MpsProcess]) -> tuple[str, ...]:
    """Return the command that ends a daemon with its servers, or an orphaned server."""
    run = command if one.uid == os.geteuid() else as_root
    if one.runs(SERVER):
        daemons = (other for other in running if other.is_daemon)
        orphaned = all(other.pipe_directory != one.pipe_directory for other in daemons)
        return (run("kill", one.pid),) if orphaned else ()
    named = ("env", f"{PIPE_DIRECTORY}={one.pipe_directory}") if one.pipe_directory else ()
    return (f"echo quit | {run(*named, PROGRAM)}",)


def _told(ending: tuple[str, ...]) -> str:
    return ending[0] if ending else "it ends with its daemon"
