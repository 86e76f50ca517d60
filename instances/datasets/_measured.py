"""From what was measured together to the entries and the cluster of an instance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, harmonic_mean, median
from typing import NamedTuple

from dovetail.instances._record import listed
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError

UNKNOWN_MEMORY_MIB = 16384.0
"""Memory of a GPU where the data give none; the workloads then need 0 and it never binds."""

_MOST_GPUS = 100_000
_MEDIAN_RANGE = (0.95, 20.0)
_USUAL_RANGE = (0.5, 20.0)
_LEAST_BY_NOISE = 0.9
"""Where no slowdown is above 1, one below this is no noise of a measurement."""

_AGREES_WITHIN = 2.0


class _Member(NamedTuple):
    """A workload on a shared GPU; share 0 is none."""

    workload: str
    share: int


_Members = tuple[_Member, ...]
_Groups = Mapping[tuple[str, _Members], Sequence[Measurement]]


def entries(measurements: Iterable[Measurement]) -> list[dict[str, object]]:
    """Return one entry for each GPU model and combination, in the order they first appear.

    A combination (workloads with their shares) measured several times, in any order, gets the
    mean of the measured speeds (the harmonic mean of the slowdowns), and so do the copies of a
    workload with itself: the throughput of the GPU stays what was measured. Power and p99 are
    means of the known figures; a workload without latency has its slowdown for a p99 where a
    co-runner has one. A combination that failed once may not share.
    """
    groups = _grouped(measurements)
    return [_entry(model, members, found) for (model, members), found in groups.items()]


def require_slowdowns(slowdowns: Iterable[float], path: str, source: str) -> None:
    """Refuse numbers that cannot be slowdowns: half of all jobs do not run faster together.

    Raises
    ------
    InputError
        When their median is that of speeds or of percentages, or none is above 1 and some are
        below 0.9.
    """
    values = list(slowdowns)
    middle = median(values) if values else 1.0
    least, most = _MEDIAN_RANGE
    if middle < least:
        odd = f"half are at most {middle:.4g}, as speeds are"
    elif middle > most:
        odd = f"half are at least {middle:.4g}, as percentages are"
    elif values and max(values) <= 1 and min(values) < _LEAST_BY_NOISE:
        odd = f"none is above 1 and the least is {min(values):.4g}, as speeds are"
    else:
        return
    raise InputError(f"must be iteration time together / alone; {odd}", path, source)


def slowdowns_of(measurements: Iterable[Measurement]) -> Iterator[float]:
    """Yield every measured slowdown."""
    return chain.from_iterable(found.slowdown or () for found in measurements)


def doubts(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return a line for each thing that is legal in measurements and likely a mistake.

    These are names that differ in case only, slowdowns below 0.5 or above 20, more than half of
    them below 1, and repeats that differ by more than a factor of 2.
    """
    measured = list(measurements)
    odd = (*_twins(measured), *_unusual(measured), *_mostly_faster(measured))
    return (*odd, *_disagreeing(_grouped(measured)))


def _twins(measured: Iterable[Measurement]) -> Iterator[str]:
    spellings: dict[str, dict[str, None]] = {}
    for name in chain.from_iterable(found.workloads for found in measured):
        spellings.setdefault(name.casefold(), {})[name] = None
    for names in spellings.values():
        if len(names) > 1:
            yield f"{listed(names)} differ in case only and are {len(names)} workloads"


def _unusual(measured: Iterable[Measurement]) -> Iterator[str]:
    least, most = _USUAL_RANGE
    odd = [
        (value, found)
        for found in measured
        for value in found.slowdown or ()
        if not least <= value <= most
    ]
    if odd:
        value, found = odd[0]
        where = f"{value:g} of {' + '.join(found.workloads)} on {found.gpu_model}"
        rule = f"below {least:g} or above {most:g}: speeds or percentages?"
        yield f"{_counted(len(odd), 'slowdown')} {rule} The first is {where}"


def _mostly_faster(measured: Iterable[Measurement]) -> Iterator[str]:
    values = list(slowdowns_of(measured))
    faster = sum(value < 1 for value in values)
    if 2 * faster > len(values):
        yield f"{faster} of {_counted(len(values), 'slowdown')} are below 1: speeds?"


def _disagreeing(groups: _Groups) -> Iterator[str]:
    ranges = [
        (min(values), max(values), member.workload, members, model)
        for (model, members), found in groups.items()
        for member, values in (_measured(found) or {}).items()
    ]
    wide = [each for each in ranges if each[1] > _AGREES_WITHIN * each[0]]
    if wide:
        least, most, workload, members, model = wide[0]
        pair = " + ".join(member.workload for member in members)
        where = f"{workload} in {pair} on {model} from {least:g} to {most:g}"
        rule = f"differ by more than a factor of {_AGREES_WITHIN:g} and are averaged"
        yield f"repeats of {_counted(len(wide), 'slowdown')} {rule}, as {where}"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _grouped(measurements: Iterable[Measurement]) -> _Groups:
    """Return the measurements of each GPU model and combination."""
    groups: dict[tuple[str, _Members], list[Measurement]] = {}
    for found in measurements:
        groups.setdefault((found.gpu_model, tuple(sorted(_members(found)))), []).append(found)
    return groups


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
    known = _measured(found)
    if known is None:
        return None
    return {member: harmonic_mean(slowdowns) for member, slowdowns in known.items()}


def _measured(found: Sequence[Measurement]) -> dict[_Member, list[float]] | None:
    """Return the slowdowns of each member, None where they failed to run once."""
    known: dict[_Member, list[float]] = {}
    for measured in found:
        if measured.slowdown is None:
            return None
        for member, slowdown in zip(_members(measured), measured.slowdown, strict=True):
            known.setdefault(member, []).append(slowdown)
    return known


def cluster(
    measurements: Iterable[Measurement], nodes: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """Return a cluster that allows the caps and the most workloads on a GPU that were measured."""
    measured = list(measurements)
    caps = {share for found in measured for share in found.shares if share is not None}
    return {
        "max_jobs_per_gpu": max((len(found.workloads) for found in measured), default=2),
        "shares": sorted(caps),
        "nodes": nodes,
    }


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
