from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_the_shortest_takes_the_idle_gpu_and_the_next_the_first_that_fits():
    # At 1, one of three GPUs is idle: the shorter b (10 s) takes it and ends at 11. The longer
    # one (20 s) has no entry with a on GPU 0 and joins c on GPU 1, before the b on GPU 2:
    # it takes 60 s, far worse than waiting for the idle GPU.
    where = world(
        gpus=3,
        slowdowns=[("b", "c", 3.0, 1.0), ("b", "b", 1.0, 1.0)],
        workloads=("a", "b", "c"),
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "c"), (1, 1, 20, "b"), (1, 1, 10, "b"))
    history = run(jobs, where, policy_named("sjf-ffs"))
    assert finishes(history) == [100, 100, 61, 11]


def test_nothing_is_shared_while_idle_gpus_are_enough():
    where = world(gpus=2, slowdowns=[("a", "b", 1.0, 1.0)])
    history = run(trace((0, 1, 10, "a"), (0, 1, 10, "b")), where, policy_named("sjf-ffs"))
    assert [outcome.shared_s for outcome in history.outcomes] == [0, 0]
