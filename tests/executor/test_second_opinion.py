"""The checker on decisions: its refusals, for which a part of the round suffices."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from dovetail import check
from dovetail.executor.second_opinion import (
    instance_of,
    instance_of_starts,
    starting,
    staying,
    unlawful,
    violations,
)
from dovetail.executor.simulation.beliefs import LogNormalNoise
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, Start, State
from tests.executor.simulation.test_random_decisions import world as random_world
from tests.executor.simulation.worlds import world

PAIRS = [("a", "b", 1.4, 1.2), ("a", "a", 1.1, 1.1)]


def state_of(where: Instance, *jobs: tuple) -> State:
    """Return a state with jobs of (workload, GPUs, fields); those without GPUs wait."""
    state = State(where, SlowdownTable.of(where))
    for number, (workload, gpus, fields) in enumerate(jobs):
        job = Job(number, f"j{number}", state.names.index(workload), len(gpus), 100.0, 0.0)
        for name, value in fields.items():
            setattr(job, name, value)
        if gpus:
            put(state, job, gpus)
        else:
            job.workers = fields.get("workers", 1)
            state.pending[number] = job
    return state


def put(state, job, gpus, shares=None, mode=0):
    state.pending.pop(job.number, None)
    state.running[job.number] = job
    job.phase, job.gpus, job.shares, job.mode = "running", tuple(gpus), shares, mode
    for gpu in gpus:
        state.residents[gpu].append(job)


def violations_of(state, *starts):
    """Return the violations of starts of (job, GPUs[, shares, mode])."""
    jobs = {**state.pending, **state.running}
    return violations(state, [Start(jobs[job], *rest) for job, *rest in starts])


@pytest.mark.parametrize(
    ("rules", "running", "waits", "start", "broken"),
    [
        ({}, ("a", {"gsla": 1.3}), ("b", {}), (1, (0,)), "j0: gsla: slowdown 1.4 > 1.3"),
        ({}, ("a", {}), ("b", {"gsla": 1.1}), (1, (0,)), "j1: gsla: slowdown 1.2 > 1.1"),
        ({}, ("b", {}), ("b", {}), (1, (0,)), "no entry lets"),
        ({"memory_mib": 1900.0}, ("a", {}), ("b", {}), (1, (0,)), "memory: j0, j1 need 2000 MiB"),
        ({"max_jobs_per_gpu": 1}, ("a", {}), ("b", {}), (1, (0,)), "holds 2 jobs, at most 1"),
        ({"shares": [50]}, ("a", {}), ("b", {}), (1, (1,), (50,)), "starts alone on n0-1"),
        ({}, ("a", {}), ("b", {"workers": 2}), (1, (0,)), "gives 'j1' 1 GPUs for 2 workers"),
        ({}, ("a", {}), ("b", {}), (1, (0,), (50, 50)), "gives 'j1' 2 shares"),
        ({}, ("a", {}), ("b", {}), (1, (0,), None, 1), "runs 'j1' in no known mode"),
        ({}, ("a", {}), ("b", {}), (1, (7,)), "puts 'j1' on a GPU that is not there"),
        ({}, ("a", {}), ("b", {}), (0, (1,)), "starts 'j0', which is running"),
    ],
)
def test_a_start_that_breaks_a_rule_is_reported(rules, running, waits, start, broken):
    (own, fields), (other, theirs) = running, waits
    state = state_of(world(slowdowns=PAIRS, **rules), (own, (0,), fields), (other, (), theirs))
    (why,) = violations_of(state, start)
    assert broken in why


def test_what_was_measured_counts_for_what_was_predicted():
    state = state_of(world(slowdowns=PAIRS), ("a", (0,), {"gsla": 1.45}), ("b", (), {}))
    assert violations_of(state, (1, (0,))) == []
    state.see((0, 0, 0, 1), 1.43)
    assert violations_of(state, (1, (0,))) == []
    state.see((0, 0, 0, 1), 1.43, 1.5)
    assert violations_of(state, (1, (0,))) == ["job j0: gsla: slowdown 1.5 > 1.45"]


def test_no_job_joins_a_gang_that_is_over_its_gsla_on_another_gpu():
    gang = ("a", (0, 1), {"gsla": 1.3})
    state = state_of(world(gpus=3, slowdowns=PAIRS), gang, ("b", (1,), {}), ("a", (), {}))
    assert "nothing may join" in violations_of(state, (2, (0,)))[-1]
    assert violations_of(state, (2, (2,))) == []


def test_two_that_start_together_are_looked_at_together():
    entry = {"pair": ["a", "b"], "share": [60, 40], "slowdown": [1.5, 1.6]}
    data = world(shares=[40, 60], start_capped=True).to_data() | {"slowdowns": [entry]}
    state = state_of(Instance.from_data(data), ("a", (), {}), ("b", (), {}))
    pair = [(0, (0,), (60,)), (1, (0,), (40,))]
    assert "throughput at 100 and 60 must be known" in violations_of(state, pair[0])[0]
    assert violations_of(state, *pair) == []


def test_three_jobs_are_bounded_by_their_pairs():
    pairs = [("a", "a", 1.4, 1.4)]
    where = world(slowdowns=pairs, max_jobs_per_gpu=3)
    state = state_of(where, *[("a", (0,), {"gsla": 1.5})] * 2, ("a", (), {}))
    assert (
        len([why for why in violations_of(state, (2, (0,))) if ": gsla: slowdown 1." in why]) == 2
    )
    for job in state.running.values():
        job.gsla = 2.0
    assert violations_of(state, (2, (0,))) == []
    # No tail latency with two others is known.
    state.pending[2].gsla, state.pending[2].latency = 2.0, True
    assert violations_of(state, (2, (0,))) == ["job j2: gsla: slowdown 1e+15 > 2"]


def test_declared_slowdowns_bound_three_jobs_until_they_are_measured():
    where = world(max_jobs_per_gpu=3, assumed={"pair": 1.2, "sets": "product"})
    running = [("a", (0,), {"gsla": 1.45, "latency": late}) for late in (False, True)]
    state = state_of(where, *running, ("a", (), {}))
    assert violations_of(state, (2, (0,))) == []  # 1.2 x 1.2 = 1.44
    state.running[1].gsla = 1.43
    assert violations_of(state, (2, (0,))) == ["job j1: gsla: slowdown 1.44 > 1.43"]
    state.running[1].gsla = 1.45
    state.see((0, 0, 0, 0), 1.3)
    broken = [f"job j{k}: gsla: slowdown 1.69 > 1.45" for k in range(2)]
    assert violations_of(state, (2, (0,))) == broken
    state.see((0, 0, 0, 0), math.nan)
    assert "nothing may join" in violations_of(state, (2, (0,)))[0]


def test_an_entry_comes_before_the_declared_rule():
    where = world(max_jobs_per_gpu=4, assumed={"pair": 1.2, "sets": "product"})
    sets = [
        {"set": ["a", "a", "a"], "slowdown": [1.7, 1.7, 1.7]},
        {"set": ["b", "b", "b"], "slowdown": None},
    ]
    where = Instance.from_data({**where.to_data(), "slowdowns": sets})
    state = state_of(where, *[("a", (0,), {"gsla": 1.72})] * 3, ("b", (), {}))
    # Three a may remain of four jobs, and 1.7 is below 1.2 x 1.2 x 1.2 = 1.728.
    broken = [f"job j{k}: gsla: slowdown 1.728 > 1.72" for k in range(3)]
    assert violations_of(state, (3, (0,))) == broken
    for job in state.running.values():
        job.gsla = 1.73
    assert violations_of(state, (3, (0,))) == []
    state = state_of(where, *[("b", (0,), {})] * 2, ("a", (0,), {}), ("b", (), {}))
    assert "no entry lets" in violations_of(state, (3, (0,)))[0]


@pytest.mark.parametrize(("seed", "kept"), [(3, False), (8, True)])
def test_beliefs_that_no_record_could_hold_are_judged_all_the_same(seed, kept):
    state = state_of(world(slowdowns=PAIRS), ("a", (0,), {}), ("b", (), {"gsla": 1.5}))
    state.predicted = state.believed = LogNormalNoise(10.0).of(state.instance, seed)
    assert state.predicted.slowdown[0, 0, 0, 1] < 1e-5
    assert (state.predicted.upper[0, 0, 1, 0] < 1.5) == kept
    assert (violations_of(state, (1, (0,))) == []) == kept


def test_no_job_starts_on_a_node_that_is_down():
    state = state_of(world(nodes=2, gpus=1, slowdowns=PAIRS), ("a", (), {}))
    state.down.add(1)
    assert violations_of(state, (0, (1,))) == ["job j0: gang: the cluster has no GPU n1-0"]
    assert violations_of(state, (0, (0,))) == []


def test_only_what_the_starts_touch_is_looked_at():
    gang, far = ("a", (0, 1, 2), {}), ("b", (2, 3), {})
    state = state_of(world(gpus=6, slowdowns=PAIRS), gang, far, ("a", (5,), {}), ("b", (), {}))
    seen = instance_of_starts(state, [Start(state.pending[3], (0,))])
    assert set(seen.places) == {"n0-0", "n0-1", "n0-2"}
    assert {job.id: job.gpus for job in seen.jobs if job.running} == {
        "j0": ("n0-0", "n0-1", "n0-2"),
        "j1": ("n0-2",),
    }


def any_starts(draw, state):
    """Return starts anywhere on one GPU model, two jobs a GPU, at any shares and batch."""
    starts = []
    places = Counter({gpu: 2 - len(on) for gpu, on in enumerate(state.residents)})
    for job in draw.sample(list(state.pending.values()), 4):
        model = draw.randrange(2)
        gpus = [gpu for gpu, left in places.items() if left and state.machines.model[gpu] == model]
        if len(gpus) >= job.workers:
            taken = draw.sample(gpus, job.workers)
            places.subtract(taken)
            shares = tuple(draw.choice([None, None, 30, 50, 70]) for _ in taken)
            mode = draw.randrange(len(state.modes[job.workload]))
            starts.append(Start(job, tuple(taken), shares, mode))
    return starts


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_the_round_gives_the_same_answer_as_all_of_it(seed):
    draw = Random(seed)
    state = state_of(random_world(draw))
    for number in range(30):
        gsla = draw.choice([math.inf, draw.uniform(1.0, 3.0)])
        workers = draw.choice([1, 1, 2])
        state.pending[number] = Job(
            number, f"j{number}", draw.randrange(3), workers, 100.0, 0.0, gsla=gsla
        )
    for _ in range(10):
        starts = any_starts(draw, state)
        whole = instance_of(state, state.machines.rules, (), ())
        rows = [*staying(whole), *(starting(state, start) for start in starts)]
        expected = check(whole, Plan(assignments=tuple(rows))).violations
        assert sorted(violations(state, starts)) == sorted(map(str, expected))
        # One is carried out, whatever it breaks.
        for start in starts[:1]:
            put(state, *start)


RAN = {"started_s": 0.0, "rate": 1.0, "work_s": 9000.0, "checkpoint_s": 0.0, "restart_s": 60.0}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, ""),
        ({"checkpoint_s": math.inf}, "does not resume from checkpoints"),
        ({"starts": 2, "waiting_since_s": 2000.0}, "was stopped 2000 s ago"),
        ({"starts": 2, "waiting_since_s": 400.0}, ""),
        ({"starts": 2, "waiting_since_s": 2000.0, "stops_apart_s": 1800.0}, ""),
        ({"gsla": 1.1, "started_s": 3400.0, "done_s": -3400.0}, ""),
        ({"gsla": 1.0}, "would break its gSLA of 1 by the restart"),
        # Of 4,000 s of work, 400 would be lost: 4,060 s on GPUs for 3,600 s alone.
        ({"gsla": 1.1, "checkpoint_s": 400.0}, "would break its gSLA of 1.1 by the restart"),
        ({"gsla": 1.1, "checkpoint_s": 300.0}, ""),
        ({"gsla": 1.5, "rate": 0.5}, "would break its gSLA of 1.5 by the restart"),
        ({"latency": True}, "is latency-critical or shares a GPU with such a job"),
    ],
)
def test_stops_that_break_a_rule_are_refused(changes, broken):
    state = state_of(world(), ("a", (0,), RAN | changes))
    state.now = 4000.0
    found = unlawful(state, [state.running[0]])
    assert found == ([f"stops 'j0', which {broken}"] if broken else [])


def test_neither_co_runners_of_services_nor_waiting_jobs_are_stopped():
    state = state_of(world(), ("a", (0,), RAN), ("b", (0,), {"latency": True}), ("a", (), {}))
    state.now = 4000.0
    found = unlawful(state, [state.running[0], state.pending[2]])
    assert [line.partition("which ")[2] for line in found] == [
        "is latency-critical or shares a GPU with such a job",
        "does not run",
    ]


def test_replicas_of_one_service_are_refused_on_one_gpu_whatever_the_slowdowns_allow():
    """What the policy's state lets share is refused, and other services may join."""
    ours, theirs = {"replica_of": "j0", "latency": True}, {"replica_of": "j2", "latency": True}
    jobs = ("a", (0,), ours), ("a", (), ours), ("a", (), theirs), ("a", (), theirs)
    state = state_of(world(slowdowns=PAIRS, max_jobs_per_gpu=2), *jobs)
    assert violations_of(state, (2, (0,))) == []
    assert violations_of(state, (1, (1,)), (2, (0,))) == []
    (why,) = violations_of(state, (1, (0,)))
    assert why == "puts 'j1' beside another replica of its service on n0-0"
    (why,) = violations_of(state, (2, (1,)), (3, (1,)))
    assert why == "puts 'j3' beside another replica of its service on n0-1"
