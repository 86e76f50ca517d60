"""Opens pools of this machine by name, for ``dovetail serve --pool`` and the agents of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dovetail.executor.gpus.splits import read_splits
from dovetail.executor.pools.isolation import Isolation
from dovetail.executor.pools.local import LocalPool
from dovetail.executor.pools.names import CpuOptions, GpuOptions, pool_options
from dovetail.executor.pools.share_gate import find_program
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plugins import plugins

_log = logging.getLogger(__name__)


def opener(text: str, directory: Path, mps: Path | None = None) -> Callable[[Path], LocalPool]:
    """Return a function that opens the pool named by a text, given a directory for its files.

    Parameters
    ----------
    text : str
        The name with its options, as for ``pool_options``.
    directory : path
        The directory with the machine's evidence of splits.
    mps : path, optional
        The directory of the MPS daemons; by default ``mps`` in the directory.

    Raises
    ------
    InputError
        When the pool or an option of it is unknown, or the value of an option is invalid.
    """
    asked = pool_options(text)
    if isinstance(asked, CpuOptions):
        from dovetail.executor.pools.cpu import CpuPool

        made_up = read_splits(directory) if asked.made_up else None
        return lambda files: CpuPool(files, *asked[:3], made_up=made_up)
    return lambda files: _gpu(files, asked, directory, mps or directory / "mps")


def _gpu(files: Path, asked: GpuOptions, directory: Path, mps: Path) -> LocalPool:
    from dovetail.executor.gpus.nvml import Nvml, NvmlError
    from dovetail.executor.mps.manager import MpsManager
    from dovetail.executor.pools.gpu import GpuPool

    manager = MpsManager(mps, static=asked.static)
    try:
        nvml = Nvml()
    except NvmlError as error:
        hint = "dovetail doctor tells more; without a GPU: --pool cpu"
        raise UnsupportedError(f"{error} ({hint})") from None
    program, no_program = find_program()
    isolation = find_isolation(files / "isolation")
    return GpuPool(
        files,
        nvml,
        manager,
        read_splits(directory),
        asked.only,
        isolation=None if isinstance(isolation, str) else isolation,
        program=program,
        no_program=no_program,
    )


def find_isolation(directory: Path) -> Isolation | str:
    """Return the first installed way of isolation that works on this machine, or why none does.

    Parameters
    ----------
    directory : path
        The directory for its files.
    """
    ways, reasons = plugins("isolation"), []
    if not ways:
        reasons.append("no installed package isolates")
        _log.info("no pair is isolated: %s", reasons[0])
    for plugin in ways.values():
        try:
            found: Isolation = plugin.call(directory)
            why_not = found.why_not()
        except UnsupportedError as error:
            why_not = str(error)
        if why_not is None:
            return found
        reasons.append(why_not)
        _log.info("no pair is isolated by %s: %s", plugin.name, why_not)
    return "; ".join(reasons)
