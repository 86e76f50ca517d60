from dovetail.executor.simulation import Options
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_the_shortest_goes_first():
    # One GPU, held until 10 by j0. Then j2 (2 s), j3 (4 s), j1 (6 s): 12, 16, 22.
    jobs = trace((0, 1, 10, "a"), (1, 1, 6, "a"), (2, 1, 2, "a"), (3, 1, 4, "b"))
    assert finishes(run(jobs, world(gpus=1), policy_named("sjf"))) == [10, 22, 12, 16]


def test_no_job_is_preempted_by_a_shorter_one():
    jobs = trace((0, 1, 100, "a"), (1, 1, 1, "a"))
    assert finishes(run(jobs, world(gpus=1), policy_named("sjf"))) == [100, 101]


def test_jobs_behind_one_that_does_not_fit_pass_it_by_default():
    # Two GPUs, one held by j0 until 10. j1 (3 s) needs both. j2 (5 s) takes the idle one at 2 and
    # is done at 7; j1 runs from 10 to 13. In strict order j2 waits for j1: 13 and 18.
    jobs = trace((0, 1, 10, "a"), (1, 2, 3, "a"), (2, 1, 5, "a"))
    assert finishes(run(jobs, world(gpus=2), policy_named("sjf"))) == [10, 13, 7]
    assert finishes(run(jobs, world(gpus=2), policy_named("sjf:backfill=false"))) == [10, 13, 18]


def test_the_order_is_that_of_believed_durations():
    # With errors of estimates the jobs are the same, the order is not: some seed swaps j1 and j2.
    jobs = trace((0, 1, 10, "a"), (1, 1, 6, "a"), (2, 1, 5, "a"))
    orders = {
        tuple(
            finishes(
                run(jobs, world(gpus=1), policy_named("sjf"), Options(estimate_error=1.0, seed=k))
            )
        )
        for k in range(8)
    }
    assert orders == {(10, 21, 15), (10, 16, 21)}
