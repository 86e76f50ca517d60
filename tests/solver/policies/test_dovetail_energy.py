"""The objective ``energy`` of Dovetail's own policy."""

from __future__ import annotations

import random

import pytest

from dovetail.executor.second_opinion import instance_of
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.generate import generate
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.oracle import optimum


class Compared:
    """The policy, each of whose rounds is solved by enumeration too."""

    def __init__(self, cluster):
        self.policy = policy_named("dovetail:objective=energy,patience_s=inf,time_limit_s=inf")
        self.cluster = cluster
        self.rounds = []

    def decide(self, state):
        best = optimum(instance_of(state, self.cluster, (), ()), "energy")
        decision = self.policy.decide(state)
        started = sum(row.start for row in best.plan.assignments)
        assert len(decision.starts) == started
        if started:
            self.rounds.append((decision.proof, best.value, len(state.running)))
        return decision


def _powered(where, alone, together):
    """Return a world in which each workload takes so many watts alone, each pair so many."""
    workloads = {n: w.replace(power_w=alone.get(n)) for n, w in where.workloads.items()}
    entries = [entry.replace(power_w=together.get(entry.pair)) for entry in where.slowdowns]
    return where.replace(workloads=workloads, slowdowns=entries)


@pytest.mark.parametrize("seed", range(8))
def test_every_round_has_the_most_throughput_per_watt(seed):
    where = generate(1, seed=seed, gpus=4, workloads=5, shares=())
    names, draw = list(where.workloads), random.Random(seed)
    jobs = trace(
        *[
            (
                draw.choice([0, 0, 500, 900]) + k,
                draw.choice([1, 1, 2, 3]),
                draw.uniform(300, 2000),
                draw.choice(names),
            )
            for k in range(7)
        ]
    )
    policy = Compared(where.cluster)
    run(jobs, where, policy)
    assert any(running for _, _, running in policy.rounds)
    for proof, best, _ in policy.rounds:
        assert proof.value == pytest.approx(best, rel=1e-9)
        assert proof.bound == pytest.approx(best, rel=1e-6)


def test_of_two_partners_the_one_of_more_work_per_watt_is_taken():
    # With a, b runs at 1/1.1 and c at 1/1.3: b by time. Of 2 / 1.1 work at 300 W and 2 / 1.3 at
    # 200 W, c has more per watt; which of them waits is all that there is to choose.
    slowdowns = [("a", "b", 1.1, 1.1), ("a", "c", 1.3, 1.3)]
    where = world(gpus=1, slowdowns=slowdowns, workloads=("a", "b", "c"))
    where = _powered(where, dict.fromkeys("abc", 150.0), {("a", "b"): 300.0, ("a", "c"): 200.0})
    jobs = trace((0, 1, 1000, "a"), (0, 1, 1000, "b"), (0, 1, 1000, "c"))
    for name, waits in (("dovetail", 2), ("dovetail:objective=energy", 1)):
        starts = [one.first_start_s for one in run(jobs, where, policy_named(name)).outcomes]
        assert [k for k, start in enumerate(starts) if start > 0] == [waits]


@pytest.mark.parametrize(
    ("alone", "together", "shares"),
    [
        # Apart 2 of work at 400 W: 0.005; together 4 / 3 at 260 W or 270 W: 0.00513 or 0.00494.
        ({"a": 200.0, "b": 200.0}, 260.0, True),
        ({"a": 200.0, "b": 200.0}, 270.0, False),
        # One that is unknown counts as the other; an unknown pair takes what both take.
        ({"a": 200.0}, 260.0, True),
        ({"a": 200.0}, 270.0, False),
        ({"a": 200.0, "b": 200.0}, None, False),
        ({}, None, False),
    ],
)
def test_jobs_share_while_gpus_are_idle_if_that_gives_more_per_watt(alone, together, shares):
    where = _powered(world(gpus=2, slowdowns=[("a", "b", 1.5, 1.5)]), alone, {("a", "b"): together})
    jobs = trace((0, 1, 3000, "a"), (0, 1, 3000, "b"))
    history = run(jobs, where, policy_named("dovetail:objective=energy"))
    assert finishes(history) == ([4500, 4500] if shares else [3000, 3000])


def test_jobs_that_take_no_part_count():
    # Of a and b, apart 2 / 200 = 0.01 and together 1.6 / 165 = 0.0097. With r and r, which make 2
    # of work at 100 W and have no room for others, 4 / 300 = 0.0133 and 3.6 / 265 = 0.0136.
    slowdowns = [("r", "r", 1.0, 1.0), ("a", "b", 1.25, 1.25)]
    where = world(gpus=3, slowdowns=slowdowns, workloads=("r", "a", "b"), memory_mib=2000.0)
    where = _powered(where, dict.fromkeys("rab", 100.0), {("r", "r"): 100.0, ("a", "b"): 165.0})
    with_r = trace((0, 1, 9000, "r"), (0, 1, 9000, "r"), (1, 1, 1000, "a"), (2, 1, 1000, "b"))
    without = trace((1, 1, 1000, "a"), (2, 1, 1000, "b"))
    policy = "dovetail:objective=energy"
    shared = [
        run(jobs, where, policy_named(policy)).outcomes[-1].shared_s > 0
        for jobs in (without, with_r)
    ]
    assert shared == [False, True]


def test_no_job_starts_on_reserved_gpus():
    # The gang is overdue at once: it gets the GPU that is idle and waits for the other.
    where = _powered(world(gpus=2), {"a": 100.0, "b": 100.0}, {})
    jobs = trace((0, 1, 1000, "a"), (1, 2, 100, "b"), (2, 1, 10, "a"))
    policy = "dovetail:objective=energy,patience_s=0,patience_stretch=0"
    assert finishes(run(jobs, where, policy_named(policy))) == [1000, 1100, 1110]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("objective=jct", "objective must be one of"),
        ("objective=energy,energy_price=1", "must be 0 with objective=energy"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(UnsupportedError, match=message):
        policy_named(f"dovetail:{options}")
