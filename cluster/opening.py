"""The pools of this room by name, as ``dovetail serve --pool`` finds them (plugins ``pool``)."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.cluster.options import ray_plan, slurm_plan
from dovetail.cluster.pool import NodesPool
from dovetail.cluster.ray_finder import RayFinder
from dovetail.cluster.slurm_finder import SlurmFinder


def ray_pool(text: str, directory: Path, sample_s: float) -> NodesPool:
    """Return the pool ``ray:TEXT`` (``docs/howto/ray.md``), as ``dovetail.live.pools`` has it.

    Raises
    ------
    InputError
        When the text is not as ``ray_plan`` takes it.
    """
    plan = ray_plan(text)
    finder = RayFinder(directory / "nodes", plan)
    return NodesPool(directory, finder, plan.lease_s, sample_s=sample_s)


def slurm_pool(text: str, directory: Path, sample_s: float) -> NodesPool:
    """Return the pool ``slurm:TEXT`` (``docs/howto/slurm.md``), as ``dovetail.live.pools`` has it.

    Raises
    ------
    InputError
        When the text is not as ``slurm_plan`` takes it.
    """
    plan = slurm_plan(text, os.environ)
    finder = SlurmFinder(directory, plan)
    # Pilots come when Slurm lets them.
    return NodesPool(directory, finder, plan.lease_s, find_s=0.0, sample_s=sample_s)
