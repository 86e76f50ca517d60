"""Jobs left out of a round of the policy ``dovetail`` would not have started in it."""

import random

import numpy as np
import pytest

from dovetail.executor.simulation import simulate
from dovetail.instances.generate import generate
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import dovetail, policy_named


@pytest.mark.parametrize(
    "world",
    [
        {},
        {"gang_sharing": "whole", "shares": (30, 70)},
        {"gpu_models": ("V100", "A100"), "shares": (), "margin": 0.1},
        {"max_jobs_per_gpu": 3, "shares": ()},
        {"max_jobs_per_gpu": 3, "shares": (), "gang_sharing": "whole"},
    ],
    ids=["partial", "whole", "models", "sets", "whole-sets"],
)
def test_every_round_is_worth_the_same_with_all_jobs(monkeypatch, world):
    most = world.pop("max_jobs_per_gpu", 2)
    instance = generate(1, seed=5, gpus=12, workloads=8, **world)
    instance = instance.replace(cluster=instance.cluster.replace(max_jobs_per_gpu=most))
    draw = random.Random(7)
    names = list(instance.workloads)
    jobs = [
        TraceJob(
            id=str(k),
            arrival_s=draw.uniform(0, 2.5e3),
            workers=draw.choice([1, 1, 1, 2, 4]),
            duration_s=draw.uniform(60, 3000),
            workload=draw.choice(names),
            gsla=draw.uniform(1, 2),
        )
        for k in range(25)
    ]
    few, every_job = (policy_named("dovetail:time_limit_s=1000") for _ in range(2))
    may_join, fewer = dovetail.may_join, 0

    class Both:
        def decide(self, state):
            nonlocal fewer
            decision = few.decide(state)
            with monkeypatch.context() as patch:
                patch.setattr(dovetail, "may_join", any_job)
                whole = every_job.decide(state)
            assert (decision.proof is None) == (whole.proof is None)
            if decision.proof is not None:
                value, bound, _, jobs = decision.proof
                assert (value, bound) == pytest.approx((whole.proof[:2]), rel=2e-6, abs=1e-6)
                assert jobs == whole.proof.jobs
            return decision

    def any_job(state, jobs, hosts, book):
        nonlocal fewer
        fewer += not may_join(state, jobs, hosts, book).all()
        return np.ones((len(hosts), len(jobs)), dtype=bool)

    simulate(Trace("drawn", tuple(sorted(jobs, key=lambda job: job.arrival_s))), instance, Both())
    assert fewer > 10
