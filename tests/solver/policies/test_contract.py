"""The contract of policies, on random worlds with every kind of failure."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from itertools import pairwise
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
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "policies.md"


def _slowdowns(draw):
    """Return entries for most pairs; every fifth has none, so it cannot run."""
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


def _nodes(model, seed):
    drained = {"id": f"{model}-drained", "gpus": []} | ({"rack": "r0"} if seed == 1 else {})
    gpu = {"model": model, "memory_mib": MODELS[model]}
    return [drained, *({"id": f"{model}-{k}", "gpu_count": 2 + k, "gpu": gpu} for k in range(2))]


def _world(seed):
    """Return two nodes of V100 and two of A100, on which alone the last workload fits.

    Before the nodes of each model stands one without GPUs, which is in a rack for one seed.
    """
    draw = np.random.default_rng(seed)
    memory = [*draw.uniform(1000, 12000, len(WORKLOADS) - 1), 20000.0]
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": f"world {seed}",
            "cluster": {
                "max_jobs_per_gpu": 3 if seed == 1 else 2,
                "nodes": [node for model in MODELS for node in _nodes(model, seed)],
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


@cache
def _simulated(name, seed):
    return _simulate(name, seed)


def _simulate(name, seed):
    """Run with beliefs that differ from the truth: other numbers, and other pairs that run."""
    world = _world(seed)
    believed = world.replace(slowdowns=_world(seed + 50).slowdowns)
    predicted = SlowdownTable.of(believed)
    return run(_trace(seed), world, policy_named(name), _options(seed), predicted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", POLICIES)
def test_all_jobs_end_and_none_runs_out_of_memory_twice_for_one_reason(name, seed):
    history = _simulated(name, seed)  # run() fails if anything in it is physically impossible
    assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)
    # Every crash reveals at least one more pair on one GPU model that does not run.
    crashes = {stay.start_s for stay in history.stays if stay.ending == "out_of_memory"}
    assert len(crashes) <= len(MODELS) * len(WORKLOADS) * (len(WORKLOADS) + 1) // 2


def _with_tails(entries, seed):
    """Return entries of which half have tail latencies, on either side of most gSLAs."""
    draw = np.random.default_rng(200 + seed)
    return [
        {**entry, "p99": list(draw.uniform(1.0, 2.5, 1).repeat(2))}
        if draw.random() < 0.5
        else entry
        for entry in entries
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_a_latency_critical_job_keeps_its_gsla(name):
    seed = 1  # three jobs may share a GPU, and nodes fail
    world = _world(seed)
    entries = _with_tails([entry.to_data() for entry in world.slowdowns], seed)
    world = Instance.from_data({**world.to_data(), "slowdowns": entries})
    jobs = [dataclasses.replace(job, priority="latency") for job in _trace(seed).jobs]
    # Every other job is latency-critical. run() fails where one has a forbidden co-runner.
    jobs[::2] = _trace(seed).jobs[::2]
    history = run(Trace.of("latency", jobs), world, policy_named(name), _options(seed))
    assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)


def _ever_together(name, tail, *priority):
    """Tell whether two jobs that come to one GPU one after the other ever share it."""
    entry = {"pair": ["a", "b"], "slowdown": [1.1, 1.1], **({"p99": tail} if tail else {})}
    node = {"id": "n0", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 40000.0}}
    data = _world(0).to_data() | {"cluster": {"nodes": [node]}, "slowdowns": [entry]}
    jobs = [
        TraceJob("j0", 0.0, 1, 1000.0, "a", gsla=1.5, priority=priority[0]),
        TraceJob("j1", 1.0, 1, 100.0, "b", gsla=1.5, priority=priority[1]),
    ]
    history = run(Trace.of("two", jobs), Instance.from_data(data), policy_named(name))
    stays = sorted(history.stays, key=lambda stay: stay.start_s)
    return any(one.end_s > next_.start_s for one, next_ in pairwise(stays))


@pytest.mark.parametrize("name", POLICIES)
def test_only_a_tail_above_the_gsla_keeps_a_latency_critical_job_apart(name):
    shares = _ever_together(name, None, "batch", "batch")
    assert _ever_together(name, [9.0, 9.0], "batch", "batch") == shares
    assert _ever_together(name, None, "latency", "latency") == shares
    assert _ever_together(name, [1.4, 9.0], "latency", "batch") == shares
    assert _ever_together(name, [9.0, 1.4], "batch", "latency") == shares
    assert not _ever_together(name, [9.0, 1.4], "latency", "batch")
    assert not _ever_together(name, [1.4, 9.0], "batch", "latency")


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_history(name):
    assert _simulate(name, 1).stays == _simulated(name, 1).stays


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
    documented = {name.strip(" `") for row in rows for name in row.split("|")[1].split(",")}
    assert set(POLICIES) <= documented
