"""GPU models that take fewer jobs than others: every policy keeps to that."""

import pytest

from dovetail.instances.instance import Instance
from dovetail.solver.policies import POLICIES, policy_named
from tests.executor.simulation.worlds import run, trace, world


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("most", [1, 2])
def test_every_policy_keeps_the_limit_of_a_model(name, most):
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
