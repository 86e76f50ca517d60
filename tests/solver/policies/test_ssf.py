from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_a_gang_counts_by_its_gpus():
    # Two GPUs, both held until 10. j1 needs 2 x 4 = 8 GPU seconds, j2 1 x 6 = 6, j3 1 x 7 = 7:
    # j2 and j3 start at 10 and end at 16 and 17, then j1 ends at 21. By duration j1 went first.
    jobs = trace((0, 2, 10, "a"), (1, 2, 4, "a"), (2, 1, 6, "a"), (3, 1, 7, "b"))
    assert finishes(run(jobs, world(gpus=2), policy_named("ssf"))) == [10, 21, 16, 17]
    assert finishes(run(jobs, world(gpus=2), policy_named("sjf"))) == [10, 14, 20, 21]


def test_strict_order_holds_up_those_behind():
    # j1 (2 x 3 = 6) waits for j0's GPU until 10; j2 (1 x 8) must wait for it: 13 + 8 = 21.
    jobs = trace((0, 1, 10, "a"), (1, 2, 3, "a"), (1, 1, 8, "a"))
    assert finishes(run(jobs, world(gpus=2), policy_named("ssf"))) == [10, 13, 9]
    assert finishes(run(jobs, world(gpus=2), policy_named("ssf:backfill=false"))) == [10, 13, 21]
