from dovetail.executor.simulation import Options
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def _gpus(history):
    return {stay.job: stay.gpus for stay in history.stays if stay.ending == "finished"}


def test_interference_is_not_looked_at():
    # One GPU, slowdown 3: both would be done sooner one after the other. Side by side j1 (10 s)
    # ends at 30; j0 (20 s) has done 10 by then and ends at 40.
    jobs = trace((0, 1, 20, "a"), (0, 1, 10, "b"))
    history = run(jobs, world(gpus=1, slowdowns=[("a", "b", 3, 3)]), policy_named("unaware"))
    assert finishes(history) == [40, 30]


def test_the_job_left_alone_is_joined_by_the_next():
    # One GPU of two places, slowdown 2. j0 (10 s) and j1 (5 s) share; j1 ends at 10. j2 joins
    # j0, which has done 5 of 10, until 20; j2 (8 s) has done 5 then and ends at 23.
    jobs = trace((0, 1, 10, "a"), (0, 1, 5, "b"), (0, 1, 8, "b"))
    history = run(jobs, world(gpus=1, slowdowns=[("a", "b", 2, 2)]), policy_named("unaware"))
    assert finishes(history) == [20, 10, 23]


def test_the_least_allocated_node_and_the_emptiest_gpu_come_first():
    # Two nodes of two GPUs: 0 and 1, 2 and 3. j0 goes to GPU 0, j1 to the other node, j2 and j3
    # on the other GPUs; only then is anything shared.
    jobs = trace(*[(0, 1, 10, "a") for _ in range(5)])
    where = world(nodes=2, gpus=2, slowdowns=[("a", "a", 2, 2)])
    history = run(jobs, where, policy_named("unaware"))
    assert _gpus(history) == {0: (0,), 1: (2,), 2: (1,), 3: (3,), 4: (0,)}


def test_gangs_of_different_sizes_share():
    # j0 holds one of two GPUs; the gang takes both and runs at the pace of the shared one:
    # j0 (10 s at slowdown 2) until 20, j1 then has done 10 of 15 and ends at 25.
    jobs = trace((0, 1, 10, "a"), (0, 2, 15, "b"))
    history = run(jobs, world(gpus=2, slowdowns=[("a", "b", 2, 2)]), policy_named("unaware"))
    assert finishes(history) == [20, 25]


def test_a_pair_that_cannot_run_is_tried_once():
    # Nothing is said of (a, b), so they cannot run together: j1 crashes with j0 and waits, and
    # so does j2, one after the other, until 10. Then they share at slowdown 1.
    jobs = trace((0, 1, 10, "a"), (0, 1, 5, "b"), (0, 1, 5, "b"))
    where = world(gpus=1, slowdowns=[("b", "b", 1, 1)])
    history = run(jobs, where, policy_named("unaware"), Options(restart_s=1))
    assert finishes(history) == [10, 15, 15]
    assert [stay.job for stay in history.stays if stay.ending == "out_of_memory"] == [1]
