from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_the_order_is_drawn():
    # One GPU that no jobs can share: j1 to j3 follow j0 in an order that depends on the seed, and
    # always end at 20, 30 and 40 in some order.
    jobs = trace(*[(0, 1, 10, "a") for _ in range(4)])
    where = world(gpus=1, max_jobs_per_gpu=1)
    ends = [tuple(finishes(run(jobs, where, policy_named(f"random:seed={k}")))) for k in range(12)]
    assert len(set(ends)) > 1
    assert all(sorted(end) == [10, 20, 30, 40] for end in ends)


def test_idle_gpus_are_used_before_any_is_shared():
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"))
    assert finishes(run(jobs, world(gpus=2), policy_named("random"))) == [10, 10]


def test_the_co_runner_is_drawn():
    # j0 (a) and j1 (b) hold the two GPUs. j2 joins one of them at 1: with a both have 10 s left
    # at slowdown 2 and end at 21; with b nothing is lost and all end at 11.
    jobs = trace((0, 1, 11, "a"), (0, 1, 11, "b"), (1, 1, 10, "c"))
    where = world(
        gpus=2, workloads="abc", slowdowns=[("a", "c", 2, 2), ("b", "c", 1, 1), ("a", "b", 1, 1)]
    )
    ends = {tuple(finishes(run(jobs, where, policy_named(f"random:seed={k}")))) for k in range(12)}
    assert ends == {(21, 11, 21), (11, 11, 11)}
