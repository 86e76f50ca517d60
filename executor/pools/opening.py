"""Pools of this machine by name: as ``dovetail serve --pool`` and the agents of nodes have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.names import CpuOptions, pool_options
from dovetail.instances.errors import UnsupportedError


def opener(text: str, directory: Path, mps: Path | None = None) -> Callable[[Path], LocalPool]:
    """Return what makes the pool that a text names, for a directory of the pool's files.

    Parameters
    ----------
    text : str
        As ``pool_options`` takes it.
    directory : path
        Has the evidence of splits, which belongs to the machine.
    mps : path, optional
        Where MPS daemons are; by default ``mps`` in the directory.

    Raises
    ------
    InputError
        When there is no such pool, or no such option of the cpu pool.
    """
    asked = pool_options(text)
    if isinstance(asked, CpuOptions):
        from dovetail.executor.pools.cpu import CpuPool

        return lambda files: CpuPool(files, *asked)
    return lambda files: _gpu(files, asked.only, directory, mps or directory / "mps")


def _gpu(files: Path, only: Sequence[str], directory: Path, mps: Path) -> LocalPool:
    from dovetail.executor.gpus.nvml import Nvml, NvmlError
    from dovetail.executor.gpus.splits import read_splits
    from dovetail.executor.mps.manager import MpsManager
    from dovetail.executor.pools.gpu import GpuPool
    from dovetail.isolation.schedulers import Schedulers

    manager = MpsManager(mps)
    try:
        nvml = Nvml()
    except NvmlError as error:
        hint = "dovetail doctor tells more; without a GPU: --pool cpu"
        raise UnsupportedError(f"{error} ({hint})") from None
    schedulers = Schedulers(files / "isolation")
    return GpuPool(files, nvml, manager, read_splits(directory), only, schedulers=schedulers)
