"""The worth of isolated pairs to plans and to a simulated day of services and training.

    python benchmarks/isolation/isolated_pairs.py [--seconds 4] [--seeds 5] [--kernels 30]

The slowdowns are those of the simulated GPU of ``tally.py``, under MPS and isolated, for services
at loads of 30, 50 and 70 %: nothing here ran on a GPU. A service accepts a p99 that is 15 % longer,
waits for earlier requests included. The same instances and traces are solved and simulated with and
without the share ``idle``. Isolated by the gate with slices (kernels with PTX), the gate with whole
kernels (stock PyTorch), and the library before the gate with whole kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from simulated.kernels import Work
from simulated.ways import Way
from tally import TRAINING, Case

from dovetail import check, solve
from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.pool import simulate
from dovetail.instances.instance import Instance
from dovetail.instances.traces.trace import Trace, TraceJob
from dovetail.solver.policies.dovetail import Dovetail

LOADS = (0.3, 0.5, 0.7)
GSLA = 1.15
DAY_S = 86400.0
Data = dict[str, Any]


def main() -> None:
    """Print the entries, the plans and the simulated days."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="simulated, of each entry")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kernels", type=int, default=30, help="in an iteration of training")
    options = parser.parse_args()
    for way in ("gate-slices", "gate-due", "blocking"):
        print(f"isolated by {way}")
        _compare(_entries(options, way), options.seeds)


def _compare(entries: list[Data], seeds: int) -> None:
    admissible = [e for e in entries if e["p99"][0] <= GSLA]
    isolated = [e for e in entries if "share" in e]
    print(f"{len(admissible)} pairs keep a p99 of {GSLA}: ", end="")
    print(f"{sum(e in isolated for e in admissible)} of {len(isolated)} isolated", end=", ")
    unpartitioned = len(entries) - len(isolated)
    print(f"{sum(e not in isolated for e in admissible)} of {unpartitioned} under MPS")
    found = [_round(entries, seed) for seed in range(seeds)]
    _print("plan, throughput of 40 jobs on 24 GPUs", found)
    found = [_day(entries, seed) for seed in range(seeds)]
    _print("day, mean JCT of training in h", found)


def _entries(options: argparse.Namespace, isolated: Way) -> list[Data]:
    """Return the slowdowns of every service with every training, under MPS and isolated."""
    found = []
    ways: tuple[tuple[Way, Data], ...] = (("mps", {}), (isolated, {"share": [None, "idle"]}))
    for load in LOADS:
        case = Case(options, 0, load)
        for training in TRAINING:
            others = [Work(case.training(training))]
            for way, share in ways:
                ran = case.run(way, others)
                _, growth, _, made = case.figures(ran, others)
                mean = np.mean(ran.latencies_s) / np.mean(case.alone.latencies_s)
                slowdown = [round(max(1.0, float(mean)), 4), round(1 / max(1e-3, made), 4)]
                p99 = round(max(1.0, 1 + float(growth)), 4)
                entry: Data = {"pair": [f"service-{load:.0%}", training], "slowdown": slowdown}
                found.append(entry | {"p99": [p99, slowdown[1]]} | share)
    return found


def _instance(entries: list[Data], gpus: int, jobs: list[Data]) -> Instance:
    services = {f"service-{load:.0%}": {"memory_mib": 8000} for load in LOADS}
    training = {name: {"memory_mib": 20000, "isolation": "blocks"} for name in TRAINING}
    gpu = {"model": "A100", "memory_mib": 40960}
    return Instance.from_data(
        {
            "name": "services-and-training",
            "cluster": {
                "shares": ["idle"],
                "nodes": [{"id": "n0", "gpu_count": gpus, "gpu": gpu}],
            },
            "workloads": services | training,
            "jobs": jobs,
            "slowdowns": entries,
        }
    )


def _job(k: int, draw: np.random.Generator, service: bool) -> Data:
    names = [f"service-{load:.0%}" for load in LOADS] if service else list(TRAINING)
    limits: Data = {"priority": "latency", "gsla": GSLA} if service else {"gsla": 4.0}
    return {"id": f"j{k}", "workload": str(draw.choice(names)), **limits}


def _round(entries: list[Data], seed: int) -> tuple[float, float]:
    draw = np.random.default_rng(seed)
    instance = _instance(entries, 24, [_job(k, draw, k < 16) for k in range(40)])
    values = []
    for shares in ((), instance.cluster.shares):
        tried = instance.altered(cluster=instance.cluster.replace(shares=shares))
        result = solve(tried)
        assert result.status == "optimal"
        assert check(tried, result.plan).valid
        values.append(result.objective)
    return values[0], values[1]


def _day(entries: list[Data], seed: int) -> tuple[float, float]:
    draw = np.random.default_rng(seed)
    services = [_traced(_job(k, draw, True), 0.0, DAY_S) for k in range(16)]
    arrivals = np.sort(draw.uniform(0, DAY_S / 2, 120)).tolist()
    lengths = draw.lognormal(8.5, 1.0, 120).clip(300, DAY_S / 2).tolist()
    training = [
        _traced(_job(16 + k, draw, False), *times)
        for k, times in enumerate(zip(arrivals, lengths, strict=True))
    ]
    trace = Trace.of("services-and-training", [*services, *training])
    world = _instance(entries, 24, [])
    means = []
    for shares in ((), world.cluster.shares):
        history = simulate(
            trace, world.altered(cluster=world.cluster.replace(shares=shares)), Dovetail()
        )
        assert max(_tails(history, trace, entries)) <= GSLA
        ends = [
            outcome.finish_s - job.arrival_s
            for outcome, job in zip(history.outcomes, trace.jobs, strict=True)
            if job.priority == "batch"
        ]
        means.append(float(np.mean(ends)) / 3600)
    return means[0], means[1]


def _traced(job: Data, arrival_s: float, duration_s: float) -> TraceJob:
    return TraceJob(arrival_s=arrival_s, workers=1, duration_s=duration_s, **job)


def _tails(history: History, trace: Trace, entries: list[Data]) -> Iterator[float]:
    """Yield the growth of p99 whenever a service shared a GPU, 1 first."""
    yield 1.0
    known = {(*e["pair"], "share" in e): e["p99"][0] for e in entries}
    for one, other in permutations(history.stays, 2):
        service, training = trace.jobs[one.job], trace.jobs[other.job]
        together = one.start_s < other.end_s and other.start_s < one.end_s
        if service.priority == "latency" and together and one.gpus == other.gpus:
            isolated = other.shares is not None and other.shares[0] is not None
            yield known[service.workload, training.workload, isolated]


def _print(what: str, found: list[tuple[float, float]]) -> None:
    without, with_idle = np.array(found).T
    gain = with_idle / without - 1
    error = gain.std(ddof=1) / len(gain) ** 0.5
    print(f"{what}: without {without.mean():.2f}, with idle {with_idle.mean():.2f}: ", end="")
    print(f"{gain.mean():+.1%} (standard error {error:.1%}), every p99 kept")


if __name__ == "__main__":
    main()
