"""From measured pairs to the entries and the cluster of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import harmonic_mean
from typing import NamedTuple

from dovetail.instances.errors import InputError

UNKNOWN_MEMORY_MIB = 16384.0
"""Memory of a GPU where the data give none; the workloads then need 0 and it never binds."""


_MOST_GPUS = 100_000


class Measurement(NamedTuple):
    """Two workloads measured together on one GPU; ``slowdown`` is None where they did not run."""

    gpu_model: str
    pair: tuple[str, str]
    slowdown: tuple[float, float] | None

    def sorted(self) -> Measurement:
        """Return the same measurement with the names in order."""
        (a, b), slowdown = self.pair, self.slowdown
        if a <= b:
            return self
        return Measurement(self.gpu_model, (b, a), slowdown and (slowdown[1], slowdown[0]))


def entries(measurements: Iterable[Measurement]) -> list[dict[str, object]]:
    """Return one entry for each GPU model and pair, in the order they first appear.

    A pair measured several times, in either order, gets the mean of the measured speeds (the
    harmonic mean of the slowdowns), and so do the two copies of a workload beside itself: the
    throughput of the pair stays what was measured. A pair that failed once may not share.
    """
    groups: dict[tuple[str, tuple[str, str]], list[tuple[float, float] | None]] = {}
    for measurement in measurements:
        model, pair, slowdown = measurement.sorted()
        groups.setdefault((model, pair), []).append(slowdown)
    return [
        {"pair": pair, "slowdown": _mean(pair, found), "gpu_model": model}
        for (model, pair), found in groups.items()
    ]


def _mean(
    pair: tuple[str, str], found: Sequence[tuple[float, float] | None]
) -> tuple[float, float] | None:
    known = [slowdown for slowdown in found if slowdown is not None]
    if len(known) < len(found):
        return None
    first, second = zip(*known, strict=True)
    if pair[0] == pair[1]:
        first = second = first + second
    return harmonic_mean(first), harmonic_mean(second)


def nodes(
    models: Iterable[str], gpus: int, per_node: int, memory_mib: float = UNKNOWN_MEMORY_MIB
) -> list[dict[str, object]]:
    """Return nodes ``n0``, ``n1``, ... with ``gpus`` GPUs of every model.

    Nodes hold ``per_node`` GPUs of one model, the last of each model what is left.

    Raises
    ------
    InputError
        When ``gpus`` or ``per_node`` is out of range.
    """
    for name, count in (("gpus", gpus), ("gpus_per_node", per_node)):
        if not 1 <= count <= _MOST_GPUS:
            raise InputError(f"must be between 1 and {_MOST_GPUS}, got {count}", name)
    sizes = [min(per_node, gpus - start) for start in range(0, gpus, per_node)]
    kinds = [(model, size) for model in models for size in sizes]
    return [
        {"id": f"n{k}", "gpu_count": size, "gpu": {"model": model, "memory_mib": memory_mib}}
        for k, (model, size) in enumerate(kinds)
    ]
