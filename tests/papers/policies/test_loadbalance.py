from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace
from tests.papers.policies.profiled import companions, profiled, util


def test_the_pair_that_is_least_utilised_is_made_first():
    # j0 (0.9) and j1 (0.2) run. j2 (0.6) came before j3 (0.1), but 0.2 + 0.1 is the least sum:
    # j3 joins j1, and only the place with j0 is left for j2.
    where = profiled({"a": util(0.9), "b": util(0.2), "c": util(0.6), "d": util(0.1)}, gpus=2)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"), (0, 1, 10, "d"))
    assert companions(run(jobs, where, policy_named("loadbalance"))) == {
        0: {2},
        1: {3},
        2: {0},
        3: {1},
    }


def test_idle_gpus_are_used_first():
    where = profiled({"a": util(0.1)}, gpus=2)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"))
    assert finishes(run(jobs, where, policy_named("loadbalance"))) == [10, 10]


def test_sm_activity_substitutes_utilisation():
    where = profiled({"a": {"metrics": {"sm_active": 0.5}}})
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"))
    assert finishes(run(jobs, where, policy_named("loadbalance"))) == [20, 20]
