"""The rules, and their tolerances in every module that decides."""

from __future__ import annotations

import pytest

from dovetail import check
from dovetail.formulations import rules
from dovetail.instances._record import IDLE
from dovetail.instances.checking import rules as checked_rules
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_second_opinions_have_the_same_tolerances():
    assert rules.MEMORY_TOLERANCE_MIB == checked_rules.MEMORY_TOLERANCE_MIB
    assert rules.GSLA_TOLERANCE == checked_rules.GSLA_TOLERANCE


def test_a_rate_alone_needs_both_measurements():
    workload = Workload(memory_mib=1, throughput={100: 10.0, 50: 8.0})
    assert rules.slowdown_alone(workload, None) == 1
    assert rules.slowdown_alone(workload, 50) == 1.25
    assert rules.slowdown_alone(workload, 40) is None
    assert rules.slowdown_alone(Workload(memory_mib=1, throughput={50: 8.0}), 50) is None


def test_idle_is_known_alone_of_isolated_workloads_only():
    assert rules.slowdown_alone(Workload(memory_mib=1), IDLE) is None
    assert rules.slowdown_alone(Workload(memory_mib=1, isolation="blocks"), IDLE) == 1


@pytest.mark.parametrize("policy", ["fifo", "castor", "dovetail"])
def test_a_sum_of_memory_that_is_over_by_rounding_fits_everywhere(policy):
    fits_in_memory_but_for_rounding(policy)


def fits_in_memory_but_for_rounding(policy):
    where = world(1, 1, memory_mib=1000.3, per_process_mib=0.2)
    workloads = {"a": {"memory_mib": 1000.1}}
    where = Instance.from_data({**where.to_data(), "workloads": workloads})
    assert 1000.1 + 0.2 > 1000.3
    assert finishes(run(trace((0, 1, 10, "a")), where, policy_named(policy))) == [10]
    pending = Instance.from_data({**where.to_data(), "jobs": [{"id": "j", "workload": "a"}]})
    plan = Plan(assignments=(Assignment(job="j", gpus=tuple(pending.places)),))
    assert check(pending, plan).valid
