"""The agent of this machine: the pools that it can keep, by name, and its directory."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.executor.live.directories import require_own
from dovetail.executor.live.nodes.agent import Agent, Host
from dovetail.executor.live.pools.run_files import KEEP_S, PRUNE_S
from dovetail.instances.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from dovetail.executor.live.nvml import Nvml

_FLAG: Final = "--pool"


def opener(text: str, directory: Path) -> Callable[[Path], Host]:
    """Return what makes the pool that a text names, for a directory of a pool's files.

    Parameters
    ----------
    text : str
        ``gpu``, ``cpu`` and their options, as ``dovetail serve --pool`` has them.
    directory : path
        The agent's own, with what belongs to the machine whoever controls it.

    Raises
    ------
    InputError
        When there is no such pool, or no such option of the cpu pool.
    """
    name, _, options = text.partition(":")
    match name:
        case "cpu":
            return _cpu(options)
        case "gpu":
            return lambda files: _gpu(files, options, directory)
    raise InputError(f"must be one of cpu, gpu, got {name!r}", _FLAG)


@contextmanager
def hosted(directory: Path, pool: str, address: str) -> Iterator[Agent]:
    """Have an agent that keeps the jobs of this node; they run on after it.

    Parameters
    ----------
    directory : path
        The agent's state directory.
    pool : str
        As ``opener`` has it.
    address : str
        Where other nodes reach this one.

    Raises
    ------
    InputError
        When there is no such pool, or the directory cannot be had.
    """
    require_own(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"cannot be made: {error.strerror}"
        raise InputError(told, "directory", str(directory)) from None
    with _only_one(directory):
        agent = Agent(directory, opener(pool, directory), address)
        over = threading.Event()
        threading.Thread(target=_prune, args=(agent, over), daemon=True).start()
        try:
            yield agent
        finally:
            over.set()
            agent.close()


def _prune(agent: Agent, over: threading.Event) -> None:
    while not over.wait(PRUNE_S):
        agent.prune(KEEP_S)


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Let no second agent keep the same directory."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(directory / "lock", flags, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InputError("another agent keeps it", "directory", str(directory)) from None
    try:
        yield
    finally:
        os.close(file)


def _cpu(options: str) -> Callable[[Path], Host]:
    from dovetail.executor.live.pools.cpu import CpuPool, cpu_options

    asked = cpu_options(options)
    return lambda files: CpuPool(files, *asked)


def _gpu(files: Path, options: str, directory: Path) -> Host:
    from dovetail.executor.live.mps.manager import MpsManager
    from dovetail.executor.live.pools.gpu import GpuPool
    from dovetail.executor.live.splits import read_splits

    only = [part for part in options.split(",") if part]
    nvml, mps = _nvml(), MpsManager(directory / "mps")
    return GpuPool(files, nvml, mps, read_splits(directory), only)


def _nvml() -> Nvml:
    from dovetail.executor.live.nvml import Nvml, NvmlError

    try:
        return Nvml()
    except NvmlError as error:
        told = f"{error} (dovetail doctor tells more; without a GPU: --pool cpu)"
        raise UnsupportedError(told) from None
