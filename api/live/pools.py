"""Pools by name, for ``dovetail serve --pool``.

An entry point ``pool.NAME`` names a function of the same form: it gets the text after ``NAME:``,
the service's state directory and the seconds between two readings of progress, and returns a
``NodePool``. The core's own names come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.pools.names import MADE_UP_GATE, POOL_NAMES
from dovetail.executor.pools.pool import NodePool
from dovetail.instances.errors import InputError
from dovetail.instances.plugins import Plugin, plugins
from dovetail.live.places import mps_directory

_FLAG: Final = "--pool"


def pool_named(text: str, directory: Path, sample_s: float) -> NodePool:
    """Return the pool that a text names.

    Parameters
    ----------
    text : str
        ``gpu`` or ``gpu:ID,ID,partitions=static``; ``cpu`` or
        ``cpu:cores_per_device=N,devices=N,shares=HOW,gate=made-up``; ``simulated:INSTANCE`` or
        ``simulated:INSTANCE,gate=made-up``; ``NAME`` or ``NAME:TEXT`` of a plugin.
    directory : Path
        The service's state directory.
    sample_s : float
        Seconds between two readings of progress by the service.

    Raises
    ------
    InputError
        When there is no such pool, or it is not available on this machine.
    UnsupportedError
        When a plugin cannot be imported, fails or returns something else.
    """
    name, _, rest = text.partition(":")
    added = plugins("pool")
    if name in _POOLS:
        return _POOLS[name](rest, directory, sample_s)
    if name in added:
        return _of_plugin(added[name], rest, directory, sample_s)
    known = ", ".join(dict.fromkeys((*_POOLS, *added)))
    raise InputError(f"must be one of {known}, got {name!r}", _FLAG)


def _of_plugin(plugin: Plugin, rest: str, directory: Path, sample_s: float) -> NodePool:
    made: NodePool = plugin.call(rest, directory, sample_s)
    if not callable(getattr(made, "poll", None)):
        raise plugin.unusable(f"must return a NodePool, got {type(made).__name__}")
    return made


def _gpu(rest: str, directory: Path, _: float) -> NodePool:
    return _of_this_machine(f"gpu:{rest}", directory)


def _cpu(rest: str, directory: Path, _: float) -> NodePool:
    return _of_this_machine(f"cpu:{rest}", directory)


def _of_this_machine(text: str, directory: Path) -> NodePool:
    from dovetail.executor.pools.opening import opener

    return opener(text, directory, mps_directory(directory))(directory)


def _simulated(rest: str, directory: Path, _: float) -> NodePool:
    from dovetail.executor.gpus.splits import read_splits
    from dovetail.executor.pools.simulated import SimulatedNode
    from dovetail.toolkit.files import instance_named

    name = rest.removesuffix(f",{MADE_UP_GATE}")
    if not name:
        raise InputError("must name an instance: simulated:INSTANCE", _FLAG)
    made_up = read_splits(directory) if name != rest else None
    return SimulatedNode(directory, instance_named(name), made_up=made_up)


_POOLS: Final[Mapping[str, Callable[[str, Path, float], NodePool]]] = MappingProxyType(
    dict(zip(POOL_NAMES, (_gpu, _cpu, _simulated), strict=True))
)
