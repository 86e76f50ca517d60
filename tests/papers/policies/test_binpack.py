from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace
from tests.papers.policies.profiled import profiled


def _gpus(history):
    return {stay.job: stay.gpus for stay in history.stays if stay.ending == "finished"}


def test_the_fullest_gpu_that_holds_the_job_is_taken():
    # Two nodes of one GPU of 16,000 MiB. j0 (a, 10,000) opens node 0. j1 (b, 8,000) does not fit
    # there and opens node 1. j2 (c, 5,000) fits both and goes to node 0, the fuller one.
    where = profiled(
        {"a": {"memory_mib": 10000.0}, "b": {"memory_mib": 8000.0}, "c": {"memory_mib": 5000.0}},
        nodes=2,
    )
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"))
    assert _gpus(run(jobs, where, policy_named("binpack"))) == {0: (0,), 1: (1,), 2: (0,)}


def test_an_idle_node_stays_idle_whatever_it_costs():
    # Both on one node at slowdown 3, though the other is idle: 30 instead of 10.
    where = profiled({"a": {}}, nodes=2, slowdown=3.0)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"))
    assert finishes(run(jobs, where, policy_named("binpack"))) == [30, 30]


def test_a_job_that_does_not_fit_is_passed_over():
    # j1 (9,000) fits with neither job of its kind; j2 (1,000) does and does not wait for it.
    where = profiled({"a": {"memory_mib": 9000.0}, "b": {}}, slowdown=1.0)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"), (0, 1, 10, "b"))
    assert finishes(run(jobs, where, policy_named("binpack"))) == [10, 20, 10]


def test_a_gang_goes_to_the_fullest_node_that_holds_it():
    # Nodes of two GPUs. j0 (one GPU) opens node 0; the gang fits there too, one worker with it.
    where = profiled({"a": {}}, nodes=2, gpus=2)
    jobs = trace((0, 1, 10, "a"), (0, 2, 10, "a"))
    assert _gpus(run(jobs, where, policy_named("binpack"))) == {0: (0,), 1: (0, 1)}
