from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_the_first_that_does_not_fit_holds_up_all_behind_it():
    # Two GPUs. j0 takes one for 10 s. j1 needs both and waits until 10; j2 needs one, which is
    # idle, and still waits for j1: it runs from 15 to 20.
    jobs = trace((0, 1, 10, "a"), (1, 2, 5, "a"), (2, 1, 5, "b"))
    history = run(jobs, world(gpus=2), policy_named("fifo"))
    assert finishes(history) == [10, 15, 20]
