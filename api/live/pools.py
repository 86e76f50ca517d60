"""Pools by name, as ``dovetail serve --pool`` has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dovetail.executor.pools.pool import NodePool
from dovetail.instances.errors import InputError
from dovetail.live.places import mps_directory

_FLAG: Final = "--pool"


def pool_named(text: str, directory: Path, sample_s: float) -> NodePool:
    """Return the pool that a text names.

    Parameters
    ----------
    text : str
        ``gpu`` or ``gpu:ID,ID``; ``cpu`` or
        ``cpu:cores_per_device=N,devices=N,shares=HOW``; ``ray:HOST:PORT`` and its options;
        ``slurm:...`` (``docs/howto/slurm.md``); ``simulated:INSTANCE``.
    directory : Path
        The service's state directory.
    sample_s : float
        Seconds between two looks of the service at progress.

    Raises
    ------
    InputError
        When there is no such pool, or it is not available on this machine.
    """
    name, _, rest = text.partition(":")
    if name not in _POOLS:
        raise InputError(f"must be one of {', '.join(_POOLS)}, got {name!r}", _FLAG)
    return _POOLS[name](rest, directory, sample_s)


def _gpu(rest: str, directory: Path, _: float) -> NodePool:
    return _of_this_machine(f"gpu:{rest}", directory)


def _cpu(rest: str, directory: Path, _: float) -> NodePool:
    return _of_this_machine(f"cpu:{rest}", directory)


def _of_this_machine(text: str, directory: Path) -> NodePool:
    from dovetail.executor.pools.opening import opener

    return opener(text, directory, mps_directory(directory))(directory)


def _ray(rest: str, directory: Path, sample_s: float) -> NodePool:
    from dovetail.executor.nodes.options import ray_plan
    from dovetail.executor.nodes.pool import NodesPool
    from dovetail.executor.nodes.ray_finder import RayFinder

    plan = ray_plan(rest)
    return NodesPool(
        directory, RayFinder(directory / "nodes", plan), plan.lease_s, sample_s=sample_s
    )


def _slurm(rest: str, directory: Path, sample_s: float) -> NodePool:
    from dovetail.executor.nodes.options import slurm_plan
    from dovetail.executor.nodes.pool import NodesPool
    from dovetail.executor.nodes.slurm_finder import SlurmFinder

    plan = slurm_plan(rest, os.environ)
    # Pilots come when Slurm lets them.
    return NodesPool(
        directory, SlurmFinder(directory, plan), plan.lease_s, find_s=0.0, sample_s=sample_s
    )


def _simulated(rest: str, directory: Path, _: float) -> NodePool:
    from dovetail.executor.pools.simulated import SimulatedNode
    from dovetail.toolkit.inputs import instance_named

    if not rest:
        raise InputError("must name an instance: simulated:INSTANCE", _FLAG)
    return SimulatedNode(directory, instance_named(rest))


_POOLS: Final[Mapping[str, Callable[[str, Path, float], NodePool]]] = MappingProxyType(
    {
        "gpu": _gpu,
        "cpu": _cpu,
        "ray": _ray,
        "slurm": _slurm,
        "simulated": _simulated,
    }
)
