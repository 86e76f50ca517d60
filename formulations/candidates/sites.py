"""What a plan puts on the GPUs: groups of jobs, and what they are worth."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.formulations.candidates.groups import Score
from dovetail.formulations.rounds import Resident, Round, resident_power, resident_slowdowns
from dovetail.formulations.values import JobValues, Rows
from dovetail.instances.plan import Assignment
from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.shares import share_code


class Site(NamedTuple):
    """GPUs of one class that hold the same jobs under a plan.

    Attributes
    ----------
    gpu_class : int
        Index of the class.
    kind : GpuKind
        The GPU model, and how jobs share it.
    occupants : tuple of Resident
        The jobs on each GPU: the running jobs, then the starting jobs.
    gpus : tuple of int
        The numbers of the GPUs.
    """

    gpu_class: int
    kind: GpuKind
    occupants: tuple[Resident, ...]
    gpus: tuple[int, ...]

    @property
    def model(self) -> str:
        """The GPU model."""
        return self.kind.model


def sites_of(compiled: Round, assignments: Iterable[Assignment]) -> tuple[Site, ...]:
    """Return the sites of a valid plan, in the order of their first GPU."""
    index = {name: k for k, name in enumerate(compiled.jobs.ids)}
    number = compiled.machines.number
    held: dict[int, list[Resident]] = defaultdict(list)
    for row in assignments:
        job = index[row.job]
        if not compiled.jobs.running[job]:
            ways = compiled.variants_of(job)
            sizes = compiled.variants.sub_batch[ways].tolist()
            variant = ways[sizes.index(row.sub_batch) if row.sub_batch in sizes else 0]
            for gpu, share in zip(row.gpus, row.shares, strict=True):
                held[number[gpu]].append(Resident(job, variant, share_code(share)))
    found: dict[tuple[int, tuple[Resident, ...]], list[int]] = defaultdict(list)
    classes = compiled.classes
    for k, (gpus, there) in enumerate(zip(classes.gpus, classes.on, strict=True)):
        for member in gpus:
            found[k, (*there, *held.get(member, ()))].append(member)
    kind = [compiled.kinds[k] for k in classes.kind.tolist()]
    sites = [Site(k, kind[k], o, tuple(g)) for (k, o), g in found.items()]
    return tuple(sorted(sites, key=lambda site: site.gpus[0]))


def rows_at(compiled: Round, site: Site) -> Rows:
    """Return the group that the GPUs of a site hold under a plan."""
    occupants = site.occupants
    slowdown, power_w = _figures_at(compiled, site)
    return Rows(
        gpu_class=np.array([site.gpu_class]),
        job=np.array([[o.job for o in occupants]], dtype=np.int64),
        variant=np.array([[o.variant for o in occupants]], dtype=np.int64),
        share=np.array([[o.share for o in occupants]], dtype=np.int64),
        slowdown=np.array([slowdown], dtype=np.float64),
        power_w=np.array([power_w]),
    )


def _figures_at(compiled: Round, site: Site) -> tuple[Sequence[float], float]:
    """Return the slowdown of each job at a site under a plan, and the power."""
    occupants, jobs = site.occupants, compiled.jobs
    if all(jobs.running[o.job] for o in occupants):
        gpu = site.gpus[0]
        return resident_slowdowns(compiled, gpu), resident_power(compiled, gpu)
    if len(occupants) == 1:
        alone = compiled.alone(occupants[0].variant, occupants[0].share) or 1.0
        return (alone,), float(compiled.power_alone[occupants[0].job])
    workload = jobs.workload
    members = [(int(workload[o.job]), o.share) for o in occupants]
    known = compiled.slowdowns.find(site.kind, members)
    if known is None:
        raise AssertionError("jobs that start together in a valid plan have a known slowdown")
    found = known.times(compiled.variants.slowdown_factor[[o.variant for o in occupants]].tolist())
    return found.slowdown, found.power_w


def worth(values: JobValues, held: Iterable[tuple[int, Rows]]) -> tuple[dict[int, float], float]:
    """Return the least gain of each job in these groups, and the value of the groups beyond.

    Parameters
    ----------
    values : JobValues
        The objective.
    held : iterable of (int, Rows)
        Numbers of GPUs, and the group on each of them.
    """
    least: dict[int, float] = {}
    beyond = 0.0
    for number, rows in held:
        beyond += number * float(values.value(rows)[0])
        for job, gain in zip(rows.job[0].tolist(), values.gains(rows)[0], strict=True):
            least[job] = min(float(gain), least.get(job, math.inf))
    return least, beyond


def plan_value(
    values: JobValues, assignments: Sequence[Assignment], slowdown: Mapping[str, float]
) -> float:
    """Return the value of a valid plan under any objective, as its class defines it.

    Parameters
    ----------
    values : JobValues
        The objective.
    assignments : sequence of Assignment
        The plan.
    slowdown : mapping of str to float
        The largest slowdown of each placed job, which hosts may raise.
    """
    compiled = values.round
    sites = [site for site in sites_of(compiled, assignments) if site.occupants]
    held = [(len(site.gpus), rows_at(compiled, site)) for site in sites]
    known = np.zeros(len(compiled))
    for _, rows in held:
        np.maximum.at(known, rows.job, rows.slowdown)
    raised = np.ones(len(compiled))
    for k, job in enumerate(compiled.jobs.ids):
        if job in slowdown:
            raised[k] = slowdown[job] / known[k]
    for _, rows in held:
        rows.slowdown[:] *= raised[rows.job]
    gains, beyond = worth(values, held)
    cost = math.fsum(number * float(values.cost(rows)[0]) for number, rows in held)
    score = Score(0.0, math.fsum([*gains.values(), beyond]), cost)
    return values.sign * score.value(values)
