"""A policy's decision as a plan."""

import pytest

from dovetail.executor.live.rounds.previews import PlannedDecision, plan_of
from dovetail.instances.checking.checker import check
from dovetail.instances.plan import Plan
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import (
    Decision,
    Job,
    RoundProof,
    Start,
    State,
    objective_of,
    policy_named,
)
from tests.data import small


def test_a_plan_that_stops_one_job_says_which_others_stay():
    jobs = [
        {"id": "x", "state": "running", "gpus": ["g-0"]},
        {"id": "y", "state": "running", "gpus": ["g-1"]},
        {"id": "z"},
    ]
    instance = small(jobs)
    state = State(instance, SlowdownTable.of(instance))
    x, z = Job(0, "x", 0, 1, 100.0, 0.0, gpus=(0,)), Job(2, "z", 0, 1, 100.0, 0.0)
    decision = Decision(starts=(Start(z, (0,)),), stops=(x,))
    choice = PlannedDecision.of(instance, state, decision, "fifo", "throughput")
    plan = plan_of(choice)
    assert check(instance, plan).violations == ()
    assert {row.job: row.start for row in plan.assignments} == {"y": False, "z": True}
    assert [each.job for each in plan.waiting] == ["x"]


def waiting_beside(slowdown: float, decision: Decision) -> Plan:
    """Return the plan of a decision of ``dovetail`` while ``new`` could join the running ``x``."""
    jobs = [
        {"id": "x", "state": "running", "gpus": ["g-0"], "remaining_s": 100},
        {"id": "new", "workload": "b", "remaining_s": 100},
    ]
    instance = small(jobs, [{"pair": ["a", "b"], "slowdown": [slowdown, slowdown]}], gpus=1)
    state = State(instance, SlowdownTable.of(instance))
    objective = objective_of(policy_named("dovetail"))
    choice = PlannedDecision.of(instance, state, decision, "dovetail", objective)
    plan = plan_of(choice)
    assert check(instance, plan).violations == ()
    return plan


def test_a_plan_of_dovetail_reports_the_objective_of_the_policy():
    plan = waiting_beside(2.0, Decision(proof=RoundProof(0.0, 0.0, 0.0, 1)))
    assert plan.objective is not None
    assert (plan.objective.name, plan.objective.value, plan.objective.bound) == (
        "completion",
        0.0,
        None,
    )
    assert plan.notes == (
        "the policy proved a gap of 0.00 % for the starts of the 1 waiting job that it considered",
    )
    (waits,) = plan.waiting
    assert waits.reason == (
        "capacity: it could start with x on g-0 (slowdown 2.00), but completion would fall by 100"
    )


def test_a_decision_that_breaks_a_rule_of_the_objective_is_valued_as_throughput():
    """With x at 3 both would end at 300 s, later than the 200 s of one after the other."""
    start = Start(Job(1, "new", 1, 1, 100.0, 0.0), (0,))
    plan = waiting_beside(3.0, Decision(starts=(start,)))
    assert plan.objective is not None
    assert plan.objective.name == "throughput"
    assert plan.objective.value == pytest.approx(2 / 3)


def test_a_plan_of_three_under_caps_has_the_entry_of_the_set_and_says_that_it_is_an_estimate():
    jobs = [{"id": name, "remaining_s": 1000} for name in "xyz"]
    pair = {"pair": ["a", "a"], "share": [30, 30], "slowdown": [1.05, 1.05]}
    instance = small(jobs, [pair], gpus=1, shares=[30], max_jobs_per_gpu=3)
    state = State(instance, SlowdownTable.of(instance), capped_sets=True)
    for number, name in enumerate("xyz"):
        state.pending[number] = Job(number, name, 0, 1, 1000.0, 0.0)
    policy = policy_named("dovetail:time_limit_s=inf")
    choice = PlannedDecision.of(
        instance,
        state,
        policy.decide(state),
        "dovetail",
        objective_of(policy),
    )
    (entry,) = (one for one in choice.instance.slowdowns if one.set)
    assert (entry.share, entry.source) == ((30, 30, 30), "estimate")
    plan = plan_of(choice)
    assert check(choice.instance, plan).violations == ()
    assert [(row.job, row.share, row.source) for row in plan.assignments] == [
        (name, (30,), "estimate") for name in "xyz"
    ]
