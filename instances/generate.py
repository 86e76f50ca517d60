"""Seeded synthetic instances of any size.

Nothing here is measured. Gang sizes and durations follow Microsoft's Philly cluster; the slowdowns
come from the contention model of ``contention``. The solo ``metrics`` show its hidden traits only
in part, so a predictor cannot be perfect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, GpuModel, Instance, Job, Node, Workload
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns import contention
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.shares import NO_CAP, caps_of


class _GangSize(NamedTuple):
    """Jobs of one gang size: fraction of all jobs, mean and deviation of ln(duration / s)."""

    workers: int
    part: float
    mean: float
    deviation: float


PHILLY: Final = (
    _GangSize(1, 0.9327, 6.72, 1.97),
    _GangSize(2, 0.0221, 4.52, 3.27),
    _GangSize(4, 0.0228, 9.11, 2.78),
    _GangSize(8, 0.0200, 9.65, 2.79),
    _GangSize(16, 0.0024, 9.27, 3.34),
)
"""Counted in 82,157 jobs of Philly (Jeon et al., ATC 2019; September to December 2017), without
the 90 jobs of other sizes; a log-normal is fitted to the durations of each size."""

MODELS: Final = {
    "K80": (GpuModel(model="K80", memory_mib=11441.0, sms=13), 0.2),
    "T4": (GpuModel(model="T4", memory_mib=15360.0, sms=40), 0.4),
    "V100": (GpuModel(model="V100", memory_mib=16384.0, sms=80), 1.0),
    "RTX 3090": (GpuModel(model="RTX 3090", memory_mib=24576.0, sms=82), 1.1),
    "A100": (GpuModel(model="A100", memory_mib=40960.0, sms=108), 1.9),
    "H100": (GpuModel(model="H100", memory_mib=81920.0, sms=132), 3.3),
    "H200": (GpuModel(model="H200", memory_mib=143771.0, sms=132), 3.7),
}
"""GPU models by NVIDIA's data sheets, each with a rough training speed, V100 = 1."""

_DURATION_S = (10.0, 30 * 86400.0)
_ARRIVAL_GAP_S = 30.0
_DEMAND_MET = 0.4
_GPUS_PER_NODE = 8
_NODES_PER_RACK = 4
_PROCESS_MIB = 300.0
_MEMORY_PARTS = (1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 5 / 6)
_MEMORY_ODDS = (0.14, 0.22, 0.22, 0.19, 0.14, 0.05, 0.04)
_PCIE_BYTES_S = 16e9


def generate(
    jobs: int,
    *,
    seed: int = 0,
    gpus: int | None = None,
    workloads: int | None = None,
    gangs: bool = True,
    shares: Sequence[int] = (10, 20, 30, 40, 50, 60, 70, 80, 90),
    gang_sharing: Literal["partial", "whole"] = "partial",
    gpu_models: Sequence[str] = ("V100",),
    running: float = 0.0,
    weighted: bool = False,
    margin: float = 0.0,
) -> Instance:
    """Return a synthetic instance; the same arguments always give the same instance.

    Every two workloads have an entry for every two shares that sum to 100 and one without shares.
    gSLAs are uniform in 1..2. Workloads have metrics, throughput by share and power.

    Parameters
    ----------
    jobs : int
        Number of jobs.
    seed : int
        Seed of the random numbers, >= 0.
    gpus : int, optional
        GPUs of the cluster, in nodes of 8. Default: 40 % of the GPUs that the jobs ask for, and at
        least the largest gang.
    workloads : int, optional
        Number of different workloads. Default: one for each job, at most 64.
    gangs : bool
        Gangs of up to 16 workers, with the frequencies of Philly; False: one worker each.
    shares : sequence of int
        The allowed caps; empty: no caps.
    gang_sharing : {"partial", "whole"}
        Whether a gang may share only some of its GPUs.
    gpu_models : sequence of str
        Keys of ``MODELS``, used by the nodes in turn. The slowdowns hold on all of them.
    running : float
        Fraction of the jobs, 0..1, that already run, as far as there are GPUs: the first to
        arrive, alone on their GPUs, half of them under a cap if their gSLA allows one.
    weighted : bool
        Weights drawn from 1, 2 and 4; False: all 1.
    margin : float
        If above 0, upper bounds lie this fraction above the slowdowns on average (0.1: 10 %).

    Returns
    -------
    Instance
        Named by its size and seed.

    Raises
    ------
    InputError
        When an argument is out of its range.
    """
    kinds = min(jobs, 64) if workloads is None else workloads
    _check_range("jobs", jobs, 1, 100_000)
    _check_range("workloads", kinds, 1, 1_000)
    _check_range("gpus", 1 if gpus is None else gpus, 1, 100_000)
    _check_range("seed", seed, 0, 2**63)
    _check_range("running", running, 0, 1)
    _check_range("margin", margin, 0, 10)
    draw = np.random.Generator(np.random.PCG64(seed))
    queue = _jobs(draw, jobs, _ids("w", kinds), gangs, weighted)
    cluster = _cluster(gpus or _enough_gpus(queue), shares, gang_sharing, gpu_models)
    traits = contention.draw_traits(draw, kinds)
    profiles = _workloads(draw, traits, cluster)
    return Instance(
        name=f"generated-{jobs}-seed-{seed}",
        cluster=cluster,
        workloads=profiles,
        jobs=_started(draw, queue, cluster, profiles, round(running * jobs)),
        slowdowns=Slowdowns.joined([*_entries(draw, traits, caps_of(cluster.shares), margin)]),
    )


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(f"must be between {least} and {most}, got {value}", name)


def _ids(letter: str, count: int) -> list[str]:
    width = len(str(count - 1))
    return [f"{letter}{k:0{width}d}" for k in range(count)]


def _jobs(
    draw: np.random.Generator, count: int, workloads: list[str], gangs: bool, weighted: bool
) -> list[Job]:
    sizes = PHILLY if gangs else PHILLY[:1]
    size = draw.choice(len(sizes), count, p=_odds([kind.part for kind in sizes]))
    mean = np.array([kind.mean for kind in sizes])[size]
    deviation = np.array([kind.deviation for kind in sizes])[size]
    duration_s = np.exp(mean + deviation * draw.standard_normal(count))
    duration_s = np.round(np.clip(duration_s, *_DURATION_S))
    arrival_s = np.round(np.cumsum(draw.exponential(_ARRIVAL_GAP_S, count)))
    gsla = np.round(draw.uniform(1.0, 2.0, count), 2)
    workload = draw.integers(len(workloads), size=count)
    weight = draw.choice([1.0, 2.0, 4.0], count) if weighted else np.ones(count)
    return [
        Job(
            id=name,
            workload=workloads[workload[k]],
            workers=sizes[size[k]].workers,
            gsla=float(gsla[k]),
            weight=float(weight[k]),
            arrival_s=float(arrival_s[k]),
            remaining_s=float(duration_s[k]),
        )
        for k, name in enumerate(_ids("j", count))
    ]


def _odds(parts: Sequence[float]) -> list[float]:
    return [part / sum(parts) for part in parts]


def _enough_gpus(jobs: Sequence[Job]) -> int:
    workers = [job.workers for job in jobs]
    return max(math.ceil(_DEMAND_MET * sum(workers)), *workers, 1)


def _cluster(
    gpus: int,
    shares: Sequence[int],
    gang_sharing: Literal["partial", "whole"],
    gpu_models: Sequence[str],
) -> Cluster:
    data = {
        "shares": list(shares),
        "gang_sharing": gang_sharing,
        "reserve_mib": _PROCESS_MIB,
        "per_process_mib": _PROCESS_MIB,
        "nodes": _nodes(gpus, [_model(name) for name in gpu_models]),
    }
    return Cluster.from_data(data)


def _model(name: str) -> GpuModel:
    if name not in MODELS:
        raise InputError(f"must be one of {listed(MODELS)}, got {shown(name)}", "gpu_models")
    return MODELS[name][0]


def _nodes(gpus: int, models: Sequence[GpuModel]) -> list[Node]:
    if not models:
        raise InputError("must name at least one model, got none", "gpu_models")
    return [
        Node(
            id=f"n{k}",
            rack=f"r{k // _NODES_PER_RACK}",
            gpu_count=min(_GPUS_PER_NODE, gpus - start),
            gpu=models[k % len(models)],
        )
        for k, start in enumerate(range(0, gpus, _GPUS_PER_NODE))
    ]


def _workloads(
    draw: np.random.Generator, traits: contention.Traits, cluster: Cluster
) -> dict[str, Workload]:
    count = len(traits.sm)
    models = list(dict.fromkeys(node.gpu for node in cluster.nodes if node.gpu))
    smallest_mib = min(model.memory_mib for model in models)
    part = draw.choice(_MEMORY_PARTS, count, p=_odds(_MEMORY_ODDS))
    memory_mib = np.round(smallest_mib * part * draw.uniform(0.8, 1.1, count))
    pace = np.exp(draw.uniform(0.0, 6.0, count))
    rates = {
        100: pace,
        **{p: pace / contention.solo_slowdown(traits, p / 100) for p in caps_of(cluster.shares)},
    }
    power_w = contention.solo_power_w(traits)
    return {
        name: Workload(
            memory_mib=float(memory_mib[k]),
            metrics=_metrics(traits, k),
            throughput={p: float(f"{rate[k]:.5g}") for p, rate in rates.items()},
            power_w=float(power_w[k]),
            speed=_speeds(draw, [model.model for model in models]),
        )
        for k, name in enumerate(_ids("w", count))
    }


def _metrics(traits: contention.Traits, k: int) -> Metrics:
    return Metrics(
        sm_active=round(float(traits.sm[k]), 3),
        sm_occupancy=round(float(traits.occupancy[k]), 3),
        dram_active=round(float(traits.dram[k]), 3),
        pcie_rx_bytes_s=float(f"{_PCIE_BYTES_S * traits.pcie[k]:.4g}"),
    )


def _speeds(draw: np.random.Generator, models: Sequence[str]) -> dict[str, float]:
    """Return speeds relative to the first model, which differ slightly between workloads."""
    first = MODELS[models[0]][1]
    spread = np.exp(0.15 * draw.standard_normal(len(models)))
    speeds = {
        model: round(MODELS[model][1] / first * float(spread[k]), 3)
        for k, model in enumerate(models)
    }
    return {**speeds, models[0]: 1.0} if len(models) > 1 else {}


def _started(
    draw: np.random.Generator,
    jobs: Sequence[Job],
    cluster: Cluster,
    workloads: dict[str, Workload],
    count: int,
) -> tuple[Job, ...]:
    """Return the jobs, of which the first ``count`` that fit run alone on their GPUs."""
    free: dict[str, list[str]] = {}
    for node in cluster.nodes:
        for gpu in node.devices:
            free.setdefault(gpu.model, []).append(gpu.id)
    started: dict[str, Job] = {}
    for job in jobs:
        model = next((model for model, ids in free.items() if len(ids) >= job.workers), None)
        if model is not None and len(started) < count:
            gpus, free[model] = free[model][: job.workers], free[model][job.workers :]
            started[job.id] = _running(
                draw, job, gpus, _cap(draw, job, workloads, caps_of(cluster.shares))
            )
    return tuple(started.get(job.id, job) for job in jobs)


def _running(draw: np.random.Generator, job: Job, gpus: list[str], cap: int | None) -> Job:
    assert job.remaining_s is not None
    left = max(1.0, round(job.remaining_s * draw.uniform(0.1, 1.0)))
    share = None if cap is None else (cap,) * job.workers
    return job.replace(state="running", gpus=tuple(gpus), share=share, remaining_s=left)


def _cap(
    draw: np.random.Generator, job: Job, workloads: dict[str, Workload], shares: Sequence[int]
) -> int | None:
    rate = workloads[job.workload].throughput
    bearable = [p for p in shares if rate[100] / rate[p] <= (job.gsla or 1.0)]
    return int(draw.choice(bearable)) if bearable and draw.random() < 0.5 else None


def _entries(
    draw: np.random.Generator, traits: contention.Traits, shares: Sequence[int], margin: float
) -> Iterator[Slowdowns]:
    """Yield the entries without shares, then those for every two shares that sum to 100."""
    apart = contention.noisy(draw, contention.open_slowdown(traits))
    yield _pair_entries(draw, traits, None, apart, apart, margin)
    capped = {
        p: contention.noisy(draw, contention.capped_slowdown(traits, p / 100, 1 - p / 100))
        for p in shares
        if 100 - p in shares
    }
    for p, slowdown in capped.items():
        yield _pair_entries(draw, traits, (p, 100 - p), slowdown, capped[100 - p], margin)


def _pair_entries(
    draw: np.random.Generator,
    traits: contention.Traits,
    share: tuple[int, int] | None,
    mine: contention.Floats,
    theirs: contention.Floats,
    margin: float,
) -> Slowdowns:
    """Return an entry for each pair at one split; row i of ``mine`` is i's slowdown with j."""
    upper = 1 + margin * draw.uniform(0.5, 1.5, mine.shape)
    power_w = contention.pair_power_w(traits, mine, theirs.T)
    i, j = np.triu_indices(len(mine))
    if share and share[0] > share[1]:
        i, j = i[i != j], j[i != j]
    slowdown = np.stack([mine[i, j], theirs[j, i]], axis=1)
    high = [
        [round(value * by, 3) for value in values]
        for values, by in zip(slowdown.tolist(), upper[i, j].tolist(), strict=True)
    ]
    return Slowdowns.of_pairs(
        _ids("w", len(mine)),
        np.stack([i, j], axis=1),
        slowdown=slowdown,
        share=np.array(share or (NO_CAP, NO_CAP)),
        upper=np.array(high).reshape(-1, 2) if margin else None,
        power_w=power_w[i, j],
    )
