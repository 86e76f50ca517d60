"""The running jobs of a round: their slowdowns, power and bounds, and the GPUs closed to others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.formulations.rules import most_bound
from dovetail.instances.slowdowns.shares import share_code, share_total

if TYPE_CHECKING:
    from dovetail.formulations.rounds import GpuClass, Resident, Round
    from dovetail.formulations.slowdowns import Sharing


def resident_slowdowns(compiled: Round, gpu: int) -> tuple[float, ...]:
    """Return the slowdown of each resident of a GPU that no job joins.

    Measured slowdowns come first, then those of the residents' combination. Residents without a
    known combination are treated as if each were alone; the checker warns about them, and no
    job may join them.
    """
    measured = tuple(float(compiled.jobs.slowdown[r.variant.job]) for r in compiled.residents[gpu])
    if not np.isnan(measured).any():
        return measured
    known = _known_together(compiled, gpu)
    return _on_host(compiled, gpu, known.slowdown if known else _each_alone(compiled, gpu))


def resident_power(compiled: Round, gpu: int) -> float | None:
    """Return the power of a GPU that no job joins, or None if it is unknown.

    If the power of its jobs together is unknown, it is the sum of their powers alone.
    """
    residents = compiled.residents[gpu]
    known = _known_together(compiled, gpu) if len(residents) > 1 else None
    if known is not None and not math.isnan(known.power_w):
        return known.power_w
    alone = [compiled.workload(resident.variant.job).power_w for resident in residents]
    return None if None in alone else math.fsum(filter(None, alone))


def measured_slowdowns(compiled: Round) -> tuple[Floats, Floats]:
    """Return the least slowdown of each job, and the factor on its known slowdowns, (n,) each.

    Both come from the measured slowdowns of running jobs, at their sub-batch; empty arrays if
    there are none.
    """
    jobs = compiled.jobs
    if np.isnan(jobs.slowdown).all():
        return np.empty(0), np.empty(0)
    least, factor = np.zeros(len(compiled)), np.ones(len(compiled))
    known: dict[int, float] = defaultdict(float)
    for gpu_class in compiled.classes:
        for resident, slowdown in _expected(compiled, gpu_class):
            known[resident.variant.job] = max(known[resident.variant.job], slowdown)
    for job in jobs.held:
        if jobs.holds[job] > jobs.workers[job]:
            least[job] = jobs.slowdown[job] / compiled.variants[job][0].slowdown_factor
        elif job in known:
            factor[job] = max(1.0, float(jobs.slowdown[job]) / known[job])
    return least, factor


def _expected(compiled: Round, gpu_class: GpuClass) -> Iterator[tuple[Resident, float]]:
    """Yield the residents of a class that have a known slowdown, with it."""
    residents = gpu_class.residents
    if len(residents) == 1:
        alone = compiled.alone(residents[0].variant, residents[0].share)
        if alone is not None:
            yield residents[0], alone
    elif residents and (known := _known_together(compiled, gpu_class.gpus[0])):
        yield from zip(residents, known.slowdown, strict=True)


def _each_alone(compiled: Round, gpu: int) -> tuple[float, ...]:
    found = []
    for resident in compiled.residents[gpu]:
        alone = compiled.alone(resident.variant, resident.share)
        found.append(resident.variant.slowdown_factor if alone is None else alone)
    return tuple(found)


def _known_together(compiled: Round, gpu: int) -> Sharing | None:
    """Return the residents' combination, with values multiplied by their sub-batch factors."""
    residents = compiled.residents[gpu]
    members = [(int(compiled.jobs.workload[r.variant.job]), share_code(r.share)) for r in residents]
    known = compiled.slowdowns.find(compiled.models[compiled.machines.model[gpu]], members)
    return known.times([r.variant.slowdown_factor for r in residents]) if known else None


def _bounds(compiled: Round, gpu: int) -> tuple[float, ...] | None:
    """Return the bound that each resident's gSLA is checked against, or None if unknown."""
    residents = compiled.residents[gpu]
    if len(residents) == 1:
        return _on_host(compiled, gpu, _each_alone(compiled, gpu))
    known = _known_together(compiled, gpu)
    latency = [bool(compiled.jobs.latency[r.variant.job]) for r in residents]
    return _on_host(compiled, gpu, known.bounds(latency)) if known else None


def _on_host(compiled: Round, gpu: int, figures: Sequence[float]) -> tuple[float, ...]:
    """Return figures of a GPU's residents times the slowdown by the host's load."""
    if compiled.hosts is None:
        return tuple(figures)
    of_job = compiled.hosts.slowdown[compiled.machines.node[gpu]]
    residents = compiled.residents[gpu]
    return tuple(
        figure * float(of_job[resident.variant.job])
        for resident, figure in zip(residents, figures, strict=True)
    )


def bound_now(compiled: Round, job: int) -> float:
    """Return the bound that a running job's gSLA is checked against, infinity if unknown."""
    largest = 0.0
    for gpu in compiled.jobs.held[job][0]:
        bounds = _bounds(compiled, gpu)
        if bounds is None:
            return np.inf
        place = [r.variant.job for r in compiled.residents[gpu]].index(job)
        largest = max(largest, bounds[place])
    return largest


def closed_gpus(compiled: Round, held: Iterable[int]) -> set[int]:
    """Return the GPUs that no job may join: a rule is already broken, or a job over its gSLA.

    ``held`` has one GPU of each class with residents.
    """
    closed: set[int] = set()
    over: set[int] = set()
    most = most_bound(compiled.jobs.gsla).tolist()
    for gpu in held:
        bounds = _bounds(compiled, gpu)
        if bounds is None or _overfull(compiled, gpu):
            closed.add(gpu)
        # Jobs that no entry allows to share are treated as alone, on all GPUs of their gangs.
        each = _on_host(compiled, gpu, _each_alone(compiled, gpu)) if bounds is None else bounds
        for resident, bound in zip(compiled.residents[gpu], each, strict=True):
            if bound > most[resident.variant.job]:
                over.add(resident.variant.job)
    return closed.union(gpu for k in over for gpu in compiled.jobs.held[k][0])


def _overfull(compiled: Round, gpu: int) -> bool:
    residents = compiled.residents[gpu]
    memory = sum(r.variant.memory_mib for r in residents)
    return (
        memory > compiled.machines.gpu_room_mib[gpu]
        or share_total(r.share for r in residents) > compiled.machines.rules.share_sum
    )
