"""What every policy must do, on random worlds with everything that can go wrong in them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.instance import Instance
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import POLICIES, policy_named
from tests.executor.simulation.worlds import run

WORKLOADS = ("a", "b", "c", "d", "e")
MODELS = {"V100": 16000.0, "A100": 40000.0}
SEEDS = (0, 1, 2)
PAGE = Path(__file__).parents[3] / "docs" / "policies.md"


def _slowdowns(draw):
    """Return entries for most pairs; of every fifth nothing is known, so it cannot run."""
    entries = []
    for k, a in enumerate(WORKLOADS):
        for b in WORKLOADS[k:]:
            mine, theirs = draw.uniform(1.0, 2.5, 2)
            if draw.random() > 0.2:
                entry = {"pair": [a, b], "slowdown": [mine, mine if a == b else theirs]}
                entries.append(entry)
    return entries


def _workload(draw, memory_mib):
    return {
        "memory_mib": memory_mib,
        "speed": {"A100": draw.uniform(1.0, 2.0)},
        "metrics": {name: draw.random() for name in ("gpu_util", "sm_active", "dram_active")},
    }


def _world(seed):
    """Return two nodes of V100 and two of A100, on which alone the last workload fits."""
    draw = np.random.default_rng(seed)
    memory = [*draw.uniform(1000, 12000, len(WORKLOADS) - 1), 20000.0]
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": f"world {seed}",
            "cluster": {
                "max_jobs_per_gpu": 3 if seed == 1 else 2,
                "nodes": [
                    {
                        "id": f"{model}-{k}",
                        "gpu_count": 2 + k,
                        "gpu": {"model": model, "memory_mib": MODELS[model]},
                    }
                    for model in MODELS
                    for k in range(2)
                ],
            },
            "workloads": {
                name: _workload(draw, need) for name, need in zip(WORKLOADS, memory, strict=True)
            },
            "jobs": [],
            "slowdowns": _slowdowns(draw),
        }
    )


def _trace(seed, jobs=40):
    draw = np.random.default_rng(100 + seed)
    arrivals = np.cumsum(draw.exponential(20.0, jobs))
    return Trace.of(
        f"trace {seed}",
        [
            TraceJob(
                id=f"j{k}",
                arrival_s=float(arrival),
                workers=int(draw.choice([1, 1, 1, 2, 3, 4])),
                duration_s=float(draw.lognormal(4.5, 1.0)),
                workload=str(draw.choice(WORKLOADS)),
                gsla=float(draw.uniform(1.0, 2.0)) if draw.random() < 0.7 else None,
                priority="latency" if draw.random() < 0.1 else "batch",
            )
            for k, arrival in enumerate(arrivals)
        ],
    )


def _options(seed):
    return Options(
        restart_s=5.0,
        across_nodes=1.2,
        node_mtbf_s=math.inf if seed == 0 else 1500.0,
        repair_s=200.0,
        checkpoint_s=30.0,
        observe_s=20.0,
        estimate_error=0.5,
        round_s=10.0 if seed == 2 else 0.0,
        seed=seed,
    )


def _simulate(name, seed):
    """Run with beliefs that differ from the truth: other numbers, and other pairs that run."""
    world = _world(seed)
    believed = world.replace(slowdowns=_world(seed + 50).slowdowns)
    predicted = SlowdownTable.of(believed)
    return run(_trace(seed), world, policy_named(name), _options(seed), predicted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", POLICIES)
def test_everyone_ends_and_nobody_runs_out_of_memory_twice_for_one_reason(name, seed):
    history = _simulate(name, seed)  # run() fails if anything in it is physically impossible
    assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)
    # Every crash tells of at least one more pair on one GPU model that does not run.
    crashes = {stay.start_s for stay in history.stays if stay.ending == "out_of_memory"}
    assert len(crashes) <= len(MODELS) * len(WORKLOADS) * (len(WORKLOADS) + 1) // 2


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_history(name):
    assert _simulate(name, 1).stays == _simulate(name, 1).stays


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_alone_in_the_world_runs_at_full_speed(name):
    # One job, four GPUs that hold it: it starts at once and is never slowed down or stopped.
    world = _world(0)
    trace = Trace.of("one", [TraceJob("j0", 5.0, 2, 100.0, "a", gsla=1.5)])
    history = run(trace, world, policy_named(name))
    speed = max(1.0, world.workloads["a"].speed["A100"])
    (stay,) = history.stays
    assert stay.start_s == 5.0
    assert stay.end_s in (pytest.approx(105.0), pytest.approx(5.0 + 100.0 / speed))


def test_every_policy_is_in_the_documentation():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {name.strip(" `") for row in rows for name in row.split("|")[1].split(",")}
    assert set(POLICIES) <= told
