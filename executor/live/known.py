"""What a service knows for its watch: the repository's profiles and the world's beliefs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.executor.live.jobs import JobSpec, Run
from dovetail.executor.live.kinds import workload_name
from dovetail.executor.live.world import World
from dovetail.instances.datasets import DataSet, SoloProfile


class Known:
    """The `watch.Knowledge` of a service.

    Parameters
    ----------
    world : World
        Whose beliefs are the predictions.
    data : DataSet
        The repository; a newer one is taken in by `learn`.
    """

    def __init__(self, world: World, data: DataSet) -> None:
        self._world = world
        self._profiles: dict[tuple[str, str, int], SoloProfile] = {}
        self.learn(data)

    def learn(self, data: DataSet) -> None:
        """Take in a newer repository."""
        self._profiles = {
            (key.workload, key.gpu_model, key.workers): profile
            for key, profile in data.newest.items()
            if key.share is None and key.batch_size is None
        }

    def alone(self, spec: JobSpec, gpu_model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload alone and uncapped, with its workers."""
        return self._profiles.get((workload_name(spec), gpu_model, spec.workers))

    def predicted(self, runs: Sequence[Run], gpu: str) -> tuple[float, ...]:
        """Return what is believed of two runs that share a device; empty for more of them."""
        if len(runs) != 2:
            return ()
        beliefs = self._world.believed(runs[0].job, runs[1].job, gpu) or ()
        slowdowns = tuple(belief.slowdown for belief in beliefs)
        return () if any(map(math.isnan, slowdowns)) else slowdowns
