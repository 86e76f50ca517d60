"""Opens the pools of this room, as plugins ``pool.NAME`` for ``dovetail serve --pool``."""

from __future__ import annotations

import os
from pathlib import Path

from dovetail.cluster.options import ray_plan, slurm_plan
from dovetail.cluster.pool import NodesPool
from dovetail.cluster.ray_finder import RayFinder
from dovetail.cluster.slurm.finder import SlurmFinder


def ray_pool(text: str, directory: Path, sample_s: float) -> NodesPool:
    """Return the pool ``ray:TEXT`` (``docs/howto/ray.md``).

    Raises
    ------
    InputError
        When the text is invalid (``ray_plan``).
    """
    plan = ray_plan(text)
    finder = RayFinder(directory / "nodes", plan)
    return NodesPool(directory, finder, plan.lease_s, sample_s=sample_s)


def slurm_pool(text: str, directory: Path, sample_s: float) -> NodesPool:
    """Return the pool ``slurm:TEXT`` (``docs/howto/slurm.md``).

    Raises
    ------
    InputError
        When the text is invalid (``slurm_plan``).
    """
    plan = slurm_plan(text, os.environ)
    finder = SlurmFinder(directory, plan)
    # Pilots start when Slurm allows it, so do not wait for nodes.
    return NodesPool(directory, finder, plan.lease_s, find_s=0.0, sample_s=sample_s)
