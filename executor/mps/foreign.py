"""MPS of others on a GPU: found, told, and never touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import DEVICES, PIPE_DIRECTORY, PROGRAM, SERVER, is_daemon


class MpsProcess(NamedTuple):
    """A daemon or a server of MPS.

    Attributes
    ----------
    pid, uid : int
        The process and its user.
    program : str
        Which of the two it is.
    directory, devices : str or None
        Its pipe directory and the GPUs that it sees; None where the variable is not set or may
        not be read (it may see every GPU then).
    """

    pid: int
    uid: int
    program: str
    directory: str | None
    devices: str | None

    def __str__(self) -> str:
        """Return what errors call it."""
        return f"{self.program} {self.pid} of user {self.uid} (pipe directory {self.directory})"


def foreign_mps(base: Path, uuid: str) -> Iterator[MpsProcess]:
    """Yield daemons and servers with pipe directories outside ``base`` that may see the GPU."""
    for found in every_mps():
        ours = found.directory is not None and Path(found.directory).parent == base
        if not ours and may_see(found.devices, uuid):
            yield found


def every_mps() -> Iterator[MpsProcess]:
    """Yield every daemon and server of MPS on the machine."""
    for process in processes.running(PROGRAM, SERVER):
        program = SERVER if process.runs(SERVER) else PROGRAM
        if program == SERVER or is_daemon(process):
            environment = process.environment() or {}
            directory, devices = environment.get(PIPE_DIRECTORY), environment.get(DEVICES)
            yield MpsProcess(process.pid, process.uid, program, directory, devices)


def may_see(devices: str | None, uuid: str) -> bool:
    """Whether a list of visible devices may have the GPU.

    Indices count as yes: what they stand for is not known here. UUIDs may be abbreviated.
    """
    if devices is None:
        return True
    names = [name.strip() for name in devices.split(",")]
    return any(uuid.startswith(name) if name.startswith("GPU-") else bool(name) for name in names)
