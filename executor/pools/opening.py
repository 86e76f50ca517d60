"""Pools of this machine by name: as ``dovetail serve --pool`` and the agents of nodes have them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from dovetail.executor.pools.isolation import Isolation
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.names import CpuOptions, pool_options
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins

_log = logging.getLogger(__name__)


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

    manager = MpsManager(mps)
    try:
        nvml = Nvml()
    except NvmlError as error:
        hint = "dovetail doctor tells more; without a GPU: --pool cpu"
        raise UnsupportedError(f"{error} ({hint})") from None
    splits, isolation = read_splits(directory), find_isolation(files / "isolation")
    return GpuPool(files, nvml, manager, splits, only, isolation=isolation)


def find_isolation(directory: Path) -> Isolation | None:
    """Return the first installed way of isolation that works on this machine, or None.

    Parameters
    ----------
    directory : path
        For its files.
    """
    ways = plugins("isolation")
    if not ways:
        _log.info("no pair is isolated: no installed package isolates")
    for plugin in ways.values():
        try:
            found: Isolation = plugin.call(directory)
            why_not = found.why_not()
        except UnsupportedError as error:
            why_not = str(error)
        if why_not is None:
            return found
        _log.info("no pair is isolated by %s: %s", plugin.name, why_not)
    return None
