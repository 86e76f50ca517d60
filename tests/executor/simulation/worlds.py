"""Small worlds and traces whose simulations can be computed by hand."""

from __future__ import annotations

from benchmarks.conservation import violations
from dovetail.executor.simulation import History, Options, simulate
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import Policy


def world(nodes=1, gpus=2, slowdowns=(), workloads=("a", "b"), memory_mib=16000.0, **cluster):
    """Return ``nodes`` x ``gpus`` V100 and workloads of 1,000 MiB.

    ``slowdowns`` are (workload, other, slowdown of the first, of the second).
    """
    gpu = {"model": "V100", "memory_mib": memory_mib}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "world",
            "cluster": {
                "nodes": [{"id": f"n{k}", "gpu_count": gpus, "gpu": gpu} for k in range(nodes)],
                **cluster,
            },
            "workloads": {name: {"memory_mib": 1000.0} for name in workloads},
            "jobs": [],
            "slowdowns": [
                {"pair": [a, b], "slowdown": [mine, theirs]} for a, b, mine, theirs in slowdowns
            ],
        }
    )


def trace(*jobs, **fields):
    """Return a trace of (arrival, workers, duration, workload[, gsla]) named j0, j1, ..."""
    made = [
        TraceJob(f"j{k}", float(arrival), workers, float(duration), workload, *rest, **fields)
        for k, (arrival, workers, duration, workload, *rest) in enumerate(jobs)
    ]
    return Trace.of("trace", made)


def run(
    jobs: Trace,
    where: Instance,
    policy: Policy,
    options: Options | None = None,
    predicted: SlowdownTable | None = None,
) -> History:
    """Simulate, and fail if the history is physically impossible."""
    history = simulate(jobs, where, policy, options, predicted)
    assert violations(history, jobs, where, options, predicted) == []
    return history


def finishes(history: History) -> list[float]:
    """Return when each job ended, to the microsecond."""
    return [round(outcome.finish_s, 6) for outcome in history.outcomes]
