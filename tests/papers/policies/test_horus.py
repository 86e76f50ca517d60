import pytest

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.papers.policies.profiled import companions, profiled, util


def test_the_projected_utilisation_closest_to_all_of_the_gpu_is_cheapest():
    # Equal memory, so utilisation decides. j3 (0.5) would make 1.3 with j0 (0.8): 0.3 over,
    # 1.6 x 0.3 = 0.48; 0.9 with j1 (0.4): 0.1; 0.6 with j2 (0.1): 0.4. It joins j1.
    where = profiled({"a": util(0.8), "b": util(0.4), "c": util(0.1), "d": util(0.5)}, gpus=3)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"), (0, 1, 10, "d"))
    assert companions(run(jobs, where, policy_named("horus")))[3] == {1}


def test_full_memory_is_dear():
    # Utilisation: 0.9 with j0, 0.8 with j1: 0.1 cheaper there. Memory: 12,000 + 1,000 of
    # 16,000 in use there against 2,000: 1.3 x 11/16 = 0.89 dearer. It joins j1.
    heavy = {"memory_mib": 12000.0, **util(0.4)}
    where = profiled({"a": heavy, "b": util(0.3), "c": util(0.5)}, gpus=2)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"))
    assert companions(run(jobs, where, policy_named("horus")))[2] == {1}


def test_a_limit_keeps_jobs_of_high_utilisation_apart():
    # 0.6 + 0.6 is above 1: side by side at slowdown 2 both end at 20, apart at 10 and 20.
    where = profiled({"a": util(0.6)}, gpus=1)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"))
    assert finishes(run(jobs, where, policy_named("horus"))) == [20, 20]
    assert finishes(run(jobs, where, policy_named("horus:most_util=1"))) == [10, 20]


def test_it_needs_the_utilisation_and_a_sensible_limit():
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"))
    where = world(gpus=1, slowdowns=[("a", "b", 2, 2)])
    with pytest.raises(InputError, match=r"workloads.b.metrics: .* needs gpu_util or sm_active"):
        run(jobs, where, policy_named("horus"))
    with pytest.raises(UnsupportedError, match="most_util must be > 0, got 0"):
        policy_named("horus:most_util=0")
