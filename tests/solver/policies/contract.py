"""The contract of policies: tests that those of the core and of rooms inherit.

On random worlds with every kind of failure. Latency-critical jobs start before all others and are
never stopped, and the limits of GPU models are kept, whatever the policy is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace, world

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


def _with_memory(seed, memory, *sizes):
    """Return a world whose workloads need this memory, on A100s and V100s of these sizes."""
    data = _world(seed).to_data()
    for workload, need in zip(data["workloads"].values(), memory, strict=True):
        del workload["memory_mib"]
        workload |= need
    models = ["A100"] if not sizes else ["V100", "V100", "A100"]
    nodes = [
        {"id": f"n{k}", "gpu_count": 4, "gpu": {"model": model, "memory_mib": size}}
        for k, (model, size) in enumerate(zip(models, [*sizes, 41000.0], strict=True))
    ]
    data["cluster"] |= {"nodes": nodes, "reserve_mib": 1000.0, "per_process_mib": 400.0}
    return Instance.from_data(data)


def _declared(seed, sets):
    """Return a world with declared slowdowns, and one in which each is an entry.

    All are eighths, so that products do not depend on their order.
    """
    data = _world(seed).to_data()
    draw = np.random.default_rng(seed)
    pairs = list(itertools.combinations_with_replacement(WORKLOADS, 2))
    known = {
        pair: None if k % 5 == 4 else (float(draw.integers(8, 16)) / 8,) * 2
        for k, pair in enumerate(pairs)
        if k % 2
    }
    entries = [{"pair": list(pair), "slowdown": value} for pair, value in known.items()]
    entries = [{**e, "slowdown": e["slowdown"] and list(e["slowdown"])} for e in entries]
    never = {"set": ["a", "b", "c"], "slowdown": None}
    rule = {"pair": 1.25} | ({"sets": sets} if sets else {})
    declared = {**data, "slowdowns": [*entries, *([never] if sets else [])]}
    declared["cluster"] = {**data["cluster"], "assumed": rule}
    whole = {pair: known.get(pair, (1.25, 1.25)) for pair in pairs}
    written = [{"pair": list(p), "slowdown": v and list(v)} for p, v in whole.items()]
    for three in itertools.combinations_with_replacement(WORKLOADS, 3) if sets else ():
        with_others = [
            [whole[tuple(sorted((three[i], three[j])))] for j in range(3) if j != i]
            for i in range(3)
        ]
        if all(all(each) for each in with_others):
            values = [each[0][0] * each[1][0] for each in with_others]
            written.append({"set": list(three), "slowdown": values})
    written = [entry for entry in written if entry.get("set") != never["set"]]
    written += [never] if sets else []
    return Instance.from_data(declared), Instance.from_data({**data, "slowdowns": written})


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


def _world_of_nodes(seed):
    """Return nodes of four, three, four and two GPUs, on which many pairs may share."""
    sizes = {"n0": 4, "n1": 3, "n2": 4, "n3": 2}
    gpu = {"model": "V100", "memory_mib": 40000.0}
    nodes = [{"id": name, "gpu_count": size, "gpu": gpu} for name, size in sizes.items()]
    return Instance.from_data(_world(seed).to_data() | {"cluster": {"nodes": nodes}})


def _gangs_on_nodes(seed):
    """Return a trace with single jobs, gangs on any nodes, and gangs with each rule for nodes."""
    draw = np.random.default_rng(300 + seed)
    rules = [(1, {}), (1, {}), (2, {}), (2, {"workers_per_node": 2}), (2, {"workers_per_node": 1})]
    rules += [(4, {"workers_together": 2}), (4, {"workers_per_node": 4}), (6, {})]
    rules += [(6, {"workers_per_node": 3}), (6, {"workers_together": 3})]
    made = []
    for k, arrival in enumerate(np.cumsum(draw.exponential(30.0, 40)).tolist()):
        workers, rule = rules[int(draw.integers(len(rules)))]
        workload, length_s = str(draw.choice(WORKLOADS)), float(draw.lognormal(4.5, 1.0))
        priority = "latency" if draw.random() < 0.1 else "batch"
        made.append(
            TraceJob(f"j{k}", arrival, workers, length_s, workload, priority=priority, **rule)
        )
    return Trace.of(f"gangs {seed}", made)


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


def _with_tails(entries, seed):
    """Return entries of which half have tail latencies, on either side of most gSLAs."""
    draw = np.random.default_rng(200 + seed)
    return [
        {**entry, "p99": list(draw.uniform(1.0, 2.5, 1).repeat(2))}
        if draw.random() < 0.5
        else entry
        for entry in entries
    ]


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


def metered(gpus=1, **changes):
    """Return a world in which no pair may share, with the metrics that policies ask for."""
    data = world(gpus=gpus, **changes).to_data()
    for workload in data["workloads"].values():
        workload["metrics"] = {"gpu_util": 0.5, "sm_active": 0.5, "dram_active": 0.5}
    return Instance.from_data(data)


def with_services(jobs, *numbers):
    """Return a trace of which these jobs are latency-critical."""
    made = [
        dataclasses.replace(job, priority="latency", gsla=1.1) if k in numbers else job
        for k, job in enumerate(jobs.jobs)
    ]
    return Trace.of("services", made)


def stays_of(history, job):
    return [stay for stay in history.stays if stay.job == job]


class PolicyContract:
    """What holds of every policy; a subclass has the fixture ``name``."""

    @pytest.mark.parametrize("seed", SEEDS)
    def test_all_jobs_end_and_none_runs_out_of_memory_twice_for_one_reason(self, name, seed):
        history = _simulated(name, seed)  # run() fails if anything in it is physically impossible
        assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)
        # Every crash reveals at least one more pair on one GPU model that does not run.
        crashes = {stay.start_s for stay in history.stays if stay.ending == "out_of_memory"}
        assert len(crashes) <= len(MODELS) * len(WORKLOADS) * (len(WORKLOADS) + 1) // 2

    def test_a_latency_critical_job_keeps_its_gsla(self, name):
        seed = 1  # three jobs may share a GPU, and nodes fail
        world = _world(seed)
        entries = _with_tails([entry.to_data() for entry in world.slowdowns], seed)
        world = Instance.from_data({**world.to_data(), "slowdowns": entries})
        jobs = [dataclasses.replace(job, priority="latency") for job in _trace(seed).jobs]
        # Every other job is latency-critical. run() fails where one has a forbidden co-runner.
        jobs[::2] = _trace(seed).jobs[::2]
        history = run(Trace.of("latency", jobs), world, policy_named(name), _options(seed))
        assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)

    def test_only_a_tail_above_the_gsla_keeps_a_latency_critical_job_apart(self, name):
        shares = _ever_together(name, None, "batch", "batch")
        assert _ever_together(name, [9.0, 9.0], "batch", "batch") == shares
        assert _ever_together(name, None, "latency", "latency") == shares
        assert _ever_together(name, [1.4, 9.0], "latency", "batch") == shares
        assert _ever_together(name, [9.0, 1.4], "batch", "latency") == shares
        assert not _ever_together(name, [9.0, 1.4], "latency", "batch")
        assert not _ever_together(name, [1.4, 9.0], "batch", "latency")

    def test_the_same_seed_gives_the_same_history(self, name):
        assert _simulate(name, 1).stays == _simulated(name, 1).stays

    def test_what_is_alone_in_the_world_runs_at_full_speed(self, name):
        # One job, four GPUs that hold it: it starts at once and is never slowed down or stopped.
        world = _world(0)
        trace = Trace.of("one", [TraceJob("j0", 5.0, 2, 100.0, "a", gsla=1.5)])
        history = run(trace, world, policy_named(name))
        speed = max(1.0, world.workloads["a"].speed["A100"])
        (stay,) = history.stays
        assert stay.start_s == 5.0
        assert stay.end_s in (pytest.approx(105.0), pytest.approx(5.0 + 100.0 / speed))

    @pytest.mark.parametrize("seed", range(2))
    def test_workers_stay_together_on_nodes(self, name, seed):
        world, jobs = _world_of_nodes(seed), _gangs_on_nodes(seed)
        options = Options(restart_s=5.0, node_mtbf_s=2500.0, repair_s=100.0, seed=seed)
        history = run(jobs, world, policy_named(name), options)
        assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)
        node = [gpu.node for gpu in world.places.values()]
        for stay in history.stays:
            job = jobs.jobs[stay.job]
            on = Counter(node[gpu] for gpu in stay.gpus)
            if job.workers_per_node is not None:
                assert set(on.values()) == {job.workers_per_node}
            assert all(number % (job.workers_together or 1) == 0 for number in on.values())

    def test_of_jobs_that_wait_the_service_starts_first(self, name):
        jobs = trace(*[(0, 1, 3600, "b")] * 5, (0, 1, 86400, "a"), *[(0, 1, 3600, "b")] * 5)
        history = run(with_services(jobs, 5), metered(), policy_named(name))
        (stay,) = stays_of(history, 5)
        assert (stay.start_s, stay.end_s) == (0.0, 86400.0)

    def test_a_service_takes_the_next_idle_gpu(self, name):
        # Short jobs wait before it comes, and more come while it waits.
        jobs = trace(
            (0, 1, 1000, "b"),
            *[(10, 1, 100, "b")] * 3,
            (20, 1, 5000, "a"),
            *[(30 + k, 1, 50, "b") for k in range(3)],
        )
        history = run(with_services(jobs, 4), metered(), policy_named(name))
        (stay,) = stays_of(history, 4)
        assert stay.start_s <= 1000.0

    def test_a_gang_of_services_starts_when_the_last_of_its_gpus_is_idle(self, name):
        jobs = trace(
            *[(0, 1, 1000 * k, "b") for k in range(1, 5)],
            (10, 3, 500, "a"),
            *[(20, 1, 5000, "b")] * 8,
        )
        history = run(with_services(jobs, 4), metered(gpus=4), policy_named(name))
        assert stays_of(history, 4)[0].start_s <= 3000.0

    def test_no_job_joins_where_a_service_waits(self, name):
        # Jobs that go well together follow one another, so the GPU would not be idle for hours.
        stream = [(400 * k, 1, 1000, "b") for k in range(50)]
        service = (500, 1, 3600, "a")
        where = metered(slowdowns=[("b", "b", 1.01, 1.01)])
        jobs = trace(*stream[:2], service, *stream[2:])
        history = run(with_services(jobs, 2), where, policy_named(name))
        running = [stay.end_s for stay in history.stays if stay.start_s <= 500 < stay.end_s]
        assert stays_of(history, 2)[0].start_s <= max(running)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_service_waits_no_longer_than_what_runs_when_it_comes(self, name, seed):
        draw = random.Random(seed)
        batch = [
            (
                draw.uniform(0, 3600),
                draw.choice([1, 1, 2]),
                draw.uniform(60, 1500),
                draw.choice("bcd"),
            )
            for _ in range(60)
        ]
        services = [(draw.uniform(300, 3000), draw.choice([1, 2]), 9000, "a") for _ in range(3)]
        jobs = sorted([*batch, *services])
        numbers = [k for k, job in enumerate(jobs) if job[3] == "a"]
        pairs = [(x, y, 1.05, 1.05) for x, y in itertools.combinations_with_replacement("bcd", 2)]
        where = metered(gpus=6, slowdowns=pairs, workloads=tuple("abcd"), gang_sharing="partial")
        history = run(with_services(trace(*jobs), *numbers), where, policy_named(name))
        for k in numbers:
            came_s = jobs[k][0]
            ends_s = [
                stay.end_s
                for stay in history.stays
                if stay.start_s <= came_s < stay.end_s and stay.job not in numbers
            ]
            assert stays_of(history, k)[0].start_s <= max([came_s, *ends_s]) + 1e-6

    @pytest.mark.parametrize("most", [1, 2])
    def test_every_policy_keeps_the_limit_of_a_model(self, name, most):
        data = world(nodes=2, slowdowns=[("a", "b", 1.1, 1.2), ("a", "a", 1.1, 1.1)]).to_data()
        data["cluster"]["max_jobs_per_gpu"] = 3
        for workload in data["workloads"].values():
            workload["metrics"] = {"sm_active": 0.4, "gpu_util": 0.4}
        old = {"model": "K80", "memory_mib": 11441.0, "max_jobs": most}
        data["cluster"]["nodes"].append({"id": "old", "gpu_count": 2, "gpu": old})
        where = Instance.from_data(data)
        jobs = [(10 * k, 1 + k % 2, 600 + 50 * k, "ab"[k % 3 == 0]) for k in range(16)]
        history = run(trace(*jobs), where, policy_named(name))
        assert len(history.outcomes) == len(jobs)

    def test_a_percentage_is_that_many_mib(self, name):
        seed = 1  # three jobs may share a GPU, and nodes fail
        # Of 41,000 MiB the GPUs offer 40,000, and 400 of a worker's memory are its process's.
        # Sixteenths are exact in both units.
        draw = np.random.default_rng(seed)
        percent = (6.25 * draw.integers(1, 11, len(WORKLOADS))).tolist()
        in_percent = [{"memory_percent": p} for p in percent]
        in_mib = [{"memory_mib": 400.0 * p - 400.0} for p in percent]
        one, other = (
            run(_trace(seed), _with_memory(seed, memory), policy_named(name), _options(seed))
            for memory in (in_percent, in_mib)
        )
        assert one.stays == other.stays

    @pytest.mark.parametrize("seed", range(2))
    def test_a_percentage_is_of_each_gpu(self, name, seed):
        # GPUs of three sizes, two of them of one model; some workloads need MiB.
        draw = np.random.default_rng(seed)
        memory = [{"memory_percent": float(p)} for p in draw.uniform(20, 80, 3)]
        memory += [{"memory_mib": float(mib)} for mib in draw.uniform(1000, 8000, 2)]
        world = _with_memory(seed, memory, 16000.0, 41000.0)
        history = run(_trace(seed), world, policy_named(name), _options(seed))
        assert all(math.isfinite(outcome.finish_s) for outcome in history.outcomes)

    def test_declared_pairs_are_as_if_each_had_an_entry(self, name):
        seed = 1  # three jobs may share a GPU, and nodes fail
        one, other = _declared(seed, None)
        histories = [run(_trace(seed), w, policy_named(name), _options(seed)) for w in (one, other)]
        assert histories[0].stays == histories[1].stays

    def test_declared_sets_are_as_if_each_had_an_entry(self, name):
        # Without gSLAs: bounds of entries of sets have no margin for the choice among estimates.
        seed = 1
        jobs = [dataclasses.replace(job, gsla=None, priority="batch") for job in _trace(seed).jobs]
        jobs = Trace.of("free", jobs)
        one, other = _declared(seed, "product")
        histories = [run(jobs, w, policy_named(name), _options(seed)) for w in (one, other)]
        assert histories[0].stays == histories[1].stays

    def test_it_is_in_the_documentation(self, name):
        rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
        documented = {each.strip(" `") for row in rows for each in row.split("|")[1].split(",")}
        assert name in documented
