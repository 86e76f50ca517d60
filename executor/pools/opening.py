"""Pools of this machine by name: as ``dovetail serve --pool`` and the agents of nodes have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from dovetail.executor.pools.local import LocalPool
from dovetail.instances.errors import InputError, UnsupportedError

_FLAG: Final = "--pool"


def opener(text: str, directory: Path, mps: Path | None = None) -> Callable[[Path], LocalPool]:
    """Return what makes the pool that a text names, for a directory of the pool's files.

    Parameters
    ----------
    text : str
        ``gpu`` or ``gpu:ID,ID``; ``cpu`` or ``cpu:cores_per_device=N,devices=N,shares=HOW``.
    directory : path
        Has the evidence of splits, which belongs to the machine.
    mps : path, optional
        Where MPS daemons are; by default ``mps`` in the directory.

    Raises
    ------
    InputError
        When there is no such pool, or no such option of the cpu pool.
    """
    name, _, options = text.partition(":")
    match name:
        case "cpu":
            from dovetail.executor.pools.cpu import CpuPool, cpu_options

            asked = cpu_options(options)
            return lambda files: CpuPool(files, *asked)
        case "gpu":
            return lambda files: _gpu(files, options, directory, mps or directory / "mps")
    raise InputError(f"must be one of cpu, gpu, got {name!r}", _FLAG)


def _gpu(files: Path, options: str, directory: Path, mps: Path) -> LocalPool:
    from dovetail.executor.gpus.nvml import Nvml, NvmlError
    from dovetail.executor.gpus.splits import read_splits
    from dovetail.executor.mps.manager import MpsManager
    from dovetail.executor.pools.gpu import GpuPool

    only = [part for part in options.split(",") if part]
    manager = MpsManager(mps)
    try:
        nvml = Nvml()
    except NvmlError as error:
        hint = "dovetail doctor tells more; without a GPU: --pool cpu"
        raise UnsupportedError(f"{error} ({hint})") from None
    return GpuPool(files, nvml, manager, read_splits(directory), only)
