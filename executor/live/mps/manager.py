"""The interface that the pool of GPUs builds on."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

PROGRAM: Final = "nvidia-cuda-mps-control"

CLIENT_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_SM_PARTITION",
)
"""Variables that decide how a process meets MPS: take a submitter's away before setting ours."""


class HealthState(StrEnum):
    """What MPS on a GPU is doing."""

    DOWN = "down"
    """No daemon of ours runs."""
    IDLE = "idle"
    """A daemon runs and has no server; the first client brings one."""
    STARTING = "starting"
    """A server is initialising."""
    ACTIVE = "active"
    """Every server serves."""
    UNTOLD = "untold"
    """A server runs; this version of the control program cannot tell its state (before 555)."""
    FAULT = "fault"
    """A client's fault has stopped a server; newcomers are refused."""
    UNKNOWN = "unknown"
    """The daemon does not answer, or nobody understands what it says."""


class Health(NamedTuple):
    """MPS on one GPU, as its control daemon tells it.

    Attributes
    ----------
    state : HealthState
        The worst of its servers'.
    uid : int or None
        The user it serves.
    servers, clients : tuple of int
        Their pids.
    why : str
        In words, where there is something to say.
    """

    state: HealthState
    uid: int | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    why: str = ""


class Foreign(NamedTuple):
    """An MPS daemon or server that is not ours and may be on the GPU; it is never touched."""

    pid: int
    uid: int
    directory: str | None
    devices: str | None


class Recovery(NamedTuple):
    """What it took to bring MPS back on a GPU.

    Attributes
    ----------
    healthy : bool
        Whether new clients may come; if not, the GPU is to be marked sick.
    steps : tuple of str
        What was done, in order, in words.
    left : tuple of int
        Processes that were clients, or may have been, and still live: all are lost, end them.
    """

    healthy: bool
    steps: tuple[str, ...]
    left: tuple[int, ...] = ()


class MpsManager:
    """One control daemon for every GPU, run as the user whose jobs it serves.

    Parameters
    ----------
    directory : Path
        Where the pipe directories are made, ``<8 digits of the UUID>-<uid>``; short (sockets'
        names are), and passable for every user whose jobs run (0711) when the service is root.
    program : str
        The control program.

    Calls may come from several threads. Every call runs the control program and takes some
    milliseconds; ``terminate`` and ``recover`` take up to minutes: give them a thread.
    """

    def __init__(self, directory: Path, *, program: str = PROGRAM) -> None:
        raise NotImplementedError

    def why_not(self) -> str | None:
        """Return why there is no MPS on this machine; None: there is."""
        raise NotImplementedError

    def environment(
        self, uuid: str, uid: int, share: int | None, memory_mib: float | None, latency: bool
    ) -> dict[str, str]:
        """Start the GPU's daemon if need be, and return what a client's environment must have.

        ``CLIENT_VARIABLES`` of the submitter are to be removed before. Raises MpsError, in one
        line: another user's clients are (or may be) on the GPU; the service may not act as this
        user; foreign MPS; a server in fault; a recovery under way; values out of range.
        """
        raise NotImplementedError

    def without_mps(self, uuid: str) -> dict[str, str]:
        """Return the environment of a process that must not meet any MPS daemon."""
        raise NotImplementedError

    def clients(self, uuid: str) -> tuple[int, ...]:
        """Return the pids in the client lists of the GPU's servers."""
        raise NotImplementedError

    def attached(self, uuid: str, pid: int) -> bool:
        """Whether the process, or one that descends from it, is in the GPU's client lists."""
        raise NotImplementedError

    def terminate(self, uuid: str, pid: int) -> bool:
        """End the GPU work of a process and its descendants; True: it is safe to kill them."""
        raise NotImplementedError

    def health(self, uuid: str) -> Health:
        """Return how MPS on the GPU is doing; never raises for a daemon's sake."""
        raise NotImplementedError

    def recover(self, uuid: str) -> Recovery:
        """Climb the ladder of recovery until the GPU takes new clients again."""
        raise NotImplementedError

    def foreign(self, uuid: str) -> tuple[Foreign, ...]:
        """Return MPS daemons and servers of others that may be on the GPU."""
        raise NotImplementedError

    def close(self) -> None:
        """End the daemons that nobody uses; those with clients run on."""
        raise NotImplementedError
