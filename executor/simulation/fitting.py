"""Which gangs a cluster can hold at all."""

from __future__ import annotations

from collections import Counter

from dovetail.instances.instance import Instance


def largest_gangs(world: Instance) -> dict[str, int]:
    """Return how many workers of each workload fit on the idle GPUs of one model, at most.

    A worker runs its full batch, alone on its GPU; a gang does not mix models.
    """
    rules = world.cluster
    gpus = Counter(
        (place.gpu.model, place.gpu.memory_mib - rules.reserve_mib)
        for place in world.places.values()
    )
    return {
        name: _largest(gpus, workload.memory_mib + rules.per_process_mib)
        for name, workload in world.workloads.items()
    }


def _largest(gpus: Counter[tuple[str, float]], need_mib: float) -> int:
    fitting: Counter[str] = Counter()
    for (model, room_mib), count in gpus.items():
        fitting[model] += count if need_mib <= room_mib else 0
    return max(fitting.values(), default=0)
