"""What is known of workloads, as who watches runs asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dovetail.executor.live.jobs import JobSpec, Run
from dovetail.executor.live.kinds import workload_name
from dovetail.executor.live.world import World
from dovetail.instances.datasets import DataSet, SoloProfile

_PAIR: Final = 2


class Library:
    """What a world believes, as who watches runs asks for it (a ``watch.Knowledge``).

    Parameters
    ----------
    world : World
        Its beliefs are read, whichever they are by then.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: DataSet | None = None
        self._profiles: dict[tuple[str, str, int], SoloProfile] = {}

    def workload(self, spec: JobSpec) -> str:
        """Return the name of a job's workload in the repository."""
        return workload_name(spec)

    def alone(self, spec: JobSpec, gpu_model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload alone and uncapped, with its workers."""
        data = self._world.beliefs.data
        if data is not self._read:
            self._read, self._profiles = data, _uncapped(data)
        return self._profiles.get((workload_name(spec), gpu_model, spec.workers))

    def predicted(self, runs: Sequence[Run], gpu: str) -> tuple[float, ...]:
        """Return the slowdown believed of each run beside the others there; empty if unknown."""
        if len(runs) != _PAIR:
            return ()
        found = self._world.believed(runs[0].job, runs[1].job, gpu)
        return () if found is None else (found[0].slowdown, found[1].slowdown)


def _uncapped(data: DataSet) -> dict[tuple[str, str, int], SoloProfile]:
    """Return the newest profile of each workload, model and number of workers with a rate."""
    return {
        (key.workload, key.gpu_model, key.workers): profile
        for key, profile in data.newest.items()
        if key.share is None and profile.throughput is not None
    }
