"""Dovetail's own policy in random worlds: all its decisions can be carried out."""

import numpy as np
import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world

POLICIES = (
    "dovetail",
    "dovetail:gpu_price=1",
    "dovetail:patience_s=300,patience_stretch=0",
    "dovetail:patience_s=0,patience_stretch=0,window=1",
    "dovetail:time_limit_s=0",
    "dovetail:objective=energy,patience_s=300,patience_stretch=0",
)


def _world(rng):
    """Return three nodes of two models and memories, shares, sub-batches, random slowdowns."""
    names = [f"w{k}" for k in range(5)]
    shares = [[], [40, 60]][rng.integers(2)]
    gpus = [("V100", 16000.0), ("V100", 32000.0), ("K80", 12000.0)]
    slowdowns = []
    for k, a in enumerate(names):
        for b in names[k:]:
            if rng.random() < 0.8:
                slowdowns.append({"pair": [a, b], "slowdown": _pair(rng, a == b)})
            if shares and a != b:
                caps = {"pair": [a, b], "share": [40, 60], "slowdown": _pair(rng, False)}
                slowdowns.append(caps)
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "random",
            "cluster": {
                "shares": shares,
                "gang_sharing": ["partial", "whole"][rng.integers(2)],
                "nodes": [
                    {"id": f"n{k}", "gpu_count": 3, "gpu": {"model": m, "memory_mib": mib}}
                    for k, (m, mib) in enumerate(gpus)
                ],
            },
            "workloads": {name: _workload(rng) for name in names},
            "jobs": [],
            "slowdowns": slowdowns,
        }
    )


def _pair(rng, same):
    mine, theirs = (1 + rng.exponential(0.4, 2)).tolist()
    return [mine, mine] if same else [mine, theirs]


def _workload(rng):
    memory = float(rng.integers(3000, 11000))
    batch = {"size": 32, "min": 8, "fixed_mib": 1000, "mib_per_sample": (memory - 1000) / 32}
    batch["step_s"] = {"fixed": 0.02, "per_sample": 0.003}
    return {"memory_mib": memory, "speed": {"K80": 0.5}, "batch": batch}


def _jobs(rng):
    arrival = np.cumsum(rng.exponential(60, 40)) * rng.integers(0, 2)
    return trace(
        *[
            (at, int(rng.choice([1, 1, 1, 2, 3])), rng.exponential(600) + 1, f"w{rng.integers(5)}")
            + ((1 + rng.random(),) if rng.random() < 0.5 else ())
            for at in arrival.tolist()
        ]
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_decision_can_be_carried_out(seed):
    rng = np.random.default_rng(seed)
    where, jobs = _world(rng), _jobs(rng)
    noise = SlowdownTable.of(where)
    options = Options(
        node_mtbf_s=20000, repair_s=500, estimate_error=0.5, seed=seed, across_nodes=1.2
    )
    history = run(jobs, where, policy_named(POLICIES[seed % len(POLICIES)]), options, noise)
    assert len(history.outcomes) == len(jobs.jobs)
    assert not np.isnan([outcome.finish_s for outcome in history.outcomes]).any()


@pytest.mark.parametrize(("gsla", "ends"), [(1.2, [100.0, 150.0]), (1.25, [117.5, 55.0])])
def test_a_gsla_holds_alone_at_a_cap_after_the_co_runner_has_ended(gsla, ends):
    """Both are slowed 1.1 times at half the SMs; alone there, where it goes on, a 1.25 times.

    After 55 s with b, a has 50 s of work left, which take 62.5 s.
    """
    data = world(gpus=1, shares=(50,)).to_data()
    data["slowdowns"] = [{"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1]}]
    data["workloads"]["a"]["throughput"] = {"100": 5.0, "50": 4.0}
    jobs = trace((0, 1, 100, "a", gsla), (0, 1, 50, "b"))
    history = run(jobs, Instance.from_data(data), policy_named("dovetail"))
    assert finishes(history) == ends
    assert all(outcome.breach_s == 0 for outcome in history.outcomes)
