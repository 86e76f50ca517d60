"""The objective ``fewest`` of Dovetail's own policy."""

from __future__ import annotations

import random

import pytest

from dovetail.executor.second_opinion import instance_of
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.generate import generate
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace, world
from tests.oracle import optimum

FEWEST = "dovetail:objective=fewest"


class Compared:
    """The policy, each of whose rounds is solved by enumeration too."""

    def __init__(self, cluster):
        self.policy = policy_named(f"{FEWEST},patience_s=inf,time_limit_s=inf")
        self.cluster = cluster
        self.rounds = []

    def decide(self, state):
        best = optimum(instance_of(state, self.cluster, (), ()), "fewest")
        decision = self.policy.decide(state)
        started = sum(row.start for row in best.plan.assignments)
        assert len(decision.starts) == started
        if started:
            self.rounds.append((decision.proof, best.value, len(state.running)))
        return decision


@pytest.mark.parametrize("seed", range(8))
def test_every_round_has_the_least_cost(seed):
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


@pytest.mark.parametrize(("policy", "hours"), [("dovetail", 2.0), (FEWEST, 1.5)])
def test_a_job_joins_a_running_one_while_a_gpu_is_idle(policy, hours):
    # Alone an hour each on two GPUs; together 1.5 hours on one.
    where = world(gpus=2, slowdowns=[("a", "b", 1.5, 1.5)])
    jobs = trace((0, 1, 3600, "a"), (1e-3, 1, 3600, "b"))
    history = run(jobs, where, policy_named(policy))
    assert summary(history, jobs)["gpu_time_h"] == pytest.approx(hours, rel=1e-6)
