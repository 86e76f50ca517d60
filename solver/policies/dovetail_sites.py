"""Where a waiting job may join a running one, and what the round needs to know of that one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.policies.dovetail_outlook import Kind
from dovetail.solver.policies.dovetail_ways import WayBook, Ways, seat_on
from dovetail.solver.policies.state import Job, State

Floats = NDArray[np.float64]

GSLA_SLACK: Final = 1e-9
"""By how much a bound may be above a gSLA: rounding."""


@dataclass(frozen=True, eq=False)
class Site:
    """GPUs that a running job has to itself and that are alike.

    Attributes
    ----------
    job : Job
        The running job.
    kind : Kind
        Of the GPUs.
    gpus : list of int
        Where another may join it.
    ways : Ways
        How every workload may.
    """

    job: Job
    kind: Kind
    gpus: list[int]
    ways: Ways


def sites_of(state: State, book: WayBook, reserved: Mapping[int, float]) -> list[Site]:
    """Return where running jobs, on no reserved GPU, have GPUs to themselves."""
    if state.machines.rules.max_jobs_per_gpu < 2:
        return []
    found: list[Site] = []
    for job in state.running.values():
        lone = [gpu for gpu in job.gpus if len(state.residents[gpu]) == 1]
        if lone and reserved.keys().isdisjoint(job.gpus):
            found += _sites_on(state, book, job, lone)
    return found


def _sites_on(state: State, book: WayBook, job: Job, lone: Sequence[int]) -> Iterator[Site]:
    machines = state.machines
    alike: dict[tuple[Kind, int | None], list[int]] = defaultdict(list)
    for gpu in lone:
        kind = Kind(machines.model[gpu], machines.memory_mib[gpu])
        alike[kind, job.share_on(gpu)].append(gpu)
    for (kind, _), gpus in alike.items():
        seat = seat_on(job, gpus[0])
        yield Site(job, kind, gpus, book.beside(*kind[:2], job.workload, (seat,)))


class Hosts(NamedTuple):
    """The running jobs of the sites, one entry a site.

    ``left_s``: seconds each needs alone; ``slowdown``: its present one, all told; ``partly``:
    whether it shares already; ``room``: GPUs that it has to itself at the site; ``latency``:
    whether it is latency-critical.
    """

    left_s: Floats
    slowdown: Floats
    partly: Floats
    weight: Floats
    workers: Floats
    gsla: Floats
    room: Floats
    latency: Floats

    @classmethod
    def of(cls, state: State, sites: Sequence[Site]) -> Hosts:
        """Return the numbers of the jobs of some sites."""
        rows = [_host(state, site) for site in sites]
        left, slowdown, partly, weight, workers, gsla, room, latency = np.array(rows).T
        return cls(left, slowdown, partly > 0, weight, workers, gsla, room, latency > 0)


def _host(state: State, site: Site) -> tuple[float, ...]:
    job = site.job
    speed = state.speed[site.kind[0]][job.workload]
    partly = any(len(state.residents[gpu]) > 1 for gpu in job.gpus)
    return (
        job.remaining(state.now) / speed,
        speed / job.rate,
        float(partly),
        job.weight,
        job.workers,
        job.gsla + GSLA_SLACK,
        len(site.gpus),
        job.latency,
    )
