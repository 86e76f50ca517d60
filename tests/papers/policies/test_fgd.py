from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import run, trace
from tests.papers.policies.profiled import companions, profiled


def needs(**mib):
    """Return workloads that need so much of the 16,000 MiB of a GPU."""
    return {name: {"memory_mib": float(memory)} for name, memory in mib.items()}


def test_a_job_that_fills_a_gpu_leaves_the_idle_one_whole():
    # The mix is a and b, half each. Before, the 6,000 next to j0 are lost to a: 3/16 of a GPU is
    # expected to be a fragment. With j0, j1 leaves none; on the idle GPU, it changes nothing.
    where = profiled(needs(a=10000, b=6000, c=16000), gpus=2)
    jobs = trace((0, 1, 1000, "a"), (1, 1, 1000, "b"), (2, 1, 10, "c"))
    history = run(jobs, where, policy_named("fgd"))
    assert companions(history) == {0: {1}, 1: {0}, 2: set()}
    assert history.outcomes[2].first_start_s == 2
    assert companions(run(jobs, where, policy_named("unaware")))[1] == set()


def placed_after(first):
    """Return the job that a job of 3,000 MiB joins after a first job has come and gone.

    7,000 MiB are free next to j1 and 4,000 next to j2.
    """
    where = profiled(needs(m=7000, t=4000, x=9000, y=12000, s=3000), nodes=2, max_jobs_per_gpu=3)
    jobs = trace((0, 1, 10, first), (20, 1, 999, "x"), (20, 1, 999, "y"), (30, 1, 10, "s"))
    return companions(run(jobs, where, policy_named("fgd")))[3]


def test_the_mix_decides_where_a_fragment_is_least():
    # x and y fit on neither GPU, wherever s goes. m needs the 7,000: with j1, s would leave 8,000
    # to no m, with j2 only 1,000. t has room on both GPUs after s went to j1; with j2, s
    # leaves 1,000 to no t.
    assert placed_after("m") == {2}
    assert placed_after("t") == {1}


def test_a_gang_goes_to_one_node_if_one_holds_it():
    where = profiled(needs(c=16000), nodes=2, gpus=2)
    jobs = trace((0, 1, 100, "c"), (1, 2, 100, "c"), (2, 2, 10, "c"))
    first, second, third = run(jobs, where, policy_named("fgd")).stays
    assert (first.gpus, second.gpus) == ((0,), (2, 3))
    assert (third.gpus, third.start_s) == ((0, 1), 100)


def test_a_gang_that_no_node_holds_spans_nodes():
    where = profiled(needs(c=16000), nodes=3, gpus=2)
    (stay,) = run(trace((0, 3, 100, "c")), where, policy_named("fgd")).stays
    assert stay.gpus == (0, 1, 2)


def test_a_job_that_fits_nowhere_is_passed():
    where = profiled(needs(a=10000, b=6000, c=16000))
    jobs = trace((0, 1, 100, "a"), (1, 1, 10, "c"), (2, 1, 10, "b"))
    starts = [outcome.first_start_s for outcome in run(jobs, where, policy_named("fgd")).outcomes]
    assert starts[2] == 2 < starts[1]
