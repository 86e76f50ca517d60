"""The pools of one machine that an agent can keep, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.executor.live.nodes.agent import Host
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


def require_driver(text: str) -> None:
    """Return where this machine has what the pool that a text names needs to be opened at all.

    Raises
    ------
    UnsupportedError
        When it is ``gpu``, and there is no NVIDIA driver.
    """
    if text.partition(":")[0] == "gpu":
        _nvml().close()


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
    return GpuPool(files, nvml, mps, read_splits(directory / "splits.json"), only)


def _nvml() -> Nvml:
    from dovetail.executor.live.nvml import Nvml, NvmlError

    try:
        return Nvml()
    except NvmlError as error:
        told = f"{error} (dovetail doctor tells more; without a GPU: --pool cpu)"
        raise UnsupportedError(told) from None
