"""From what was measured together to the entries and the cluster of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, harmonic_mean
from typing import TYPE_CHECKING, NamedTuple

from dovetail.instances.errors import InputError

if TYPE_CHECKING:
    from dovetail.instances.datasets.records import Measurement

UNKNOWN_MEMORY_MIB = 16384.0
"""Memory of a GPU where the data give none; the workloads then need 0 and it never binds."""


_MOST_GPUS = 100_000


class _Member(NamedTuple):
    """A workload on a shared GPU; share 0 is none."""

    workload: str
    share: int


_Members = tuple[_Member, ...]


def entries(measurements: Iterable[Measurement]) -> list[dict[str, object]]:
    """Return one entry for each GPU model and combination, in the order they first appear.

    A combination (workloads with their shares) measured several times, in any order, gets the
    mean of the measured speeds (the harmonic mean of the slowdowns), and so do the copies of a
    workload beside itself: the throughput of the GPU stays what was measured. Power and p99 are
    means of the known figures; a workload without latency has its slowdown for a p99 where a
    co-runner has one. A combination that failed once may not share.
    """
    groups: dict[tuple[str, _Members], list[Measurement]] = {}
    for found in measurements:
        groups.setdefault((found.gpu_model, tuple(sorted(_members(found)))), []).append(found)
    return [_entry(model, members, found) for (model, members), found in groups.items()]


def _members(found: Measurement) -> _Members:
    return tuple(
        _Member(name, share or 0) for name, share in zip(found.workloads, found.shares, strict=True)
    )


def _entry(model: str, members: _Members, found: Sequence[Measurement]) -> dict[str, object]:
    capped = any(member.share for member in members)
    slowdowns = _means(found)
    tails = _mean_tails(found)
    powers = [measured.power_w for measured in found if measured.power_w is not None]
    return {
        "pair" if len(members) == 2 else "set": tuple(member.workload for member in members),
        "share": tuple(member.share or None for member in members) if capped else None,
        "slowdown": slowdowns and tuple(slowdowns[member] for member in members),
        "p99": tuple(tails.get(member, slowdowns[member]) for member in members)
        if slowdowns and tails
        else None,
        "power_w": fmean(powers) if slowdowns and powers else None,
        "gpu_model": model,
    }


def _means(found: Sequence[Measurement]) -> dict[_Member, float] | None:
    """Return the mean slowdown of each member, None where they failed to run once."""
    known: dict[_Member, list[float]] = {}
    for measured in found:
        if measured.slowdown is None:
            return None
        for member, slowdown in zip(_members(measured), measured.slowdown, strict=True):
            known.setdefault(member, []).append(slowdown)
    return {member: harmonic_mean(slowdowns) for member, slowdowns in known.items()}


def _mean_tails(found: Sequence[Measurement]) -> dict[_Member, float]:
    """Return the mean growth of the tail latency of each member that has one."""
    known: dict[_Member, list[float]] = {}
    for measured in found:
        for member, p99 in zip(_members(measured), measured.p99 or (), strict=False):
            if p99 is not None:
                known.setdefault(member, []).append(p99)
    return {member: fmean(tails) for member, tails in known.items()}


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
