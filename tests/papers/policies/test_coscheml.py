from dovetail.executor.simulation import Options
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.papers.policies.profiled import companions, profiled


def test_the_least_interference_first_and_oom_is_foreseen():
    # j0 (a) and j1 (b) run. Sums: a+c 1.2+1.4 = 2.6, b+c 1.1+1.1 = 2.2, a+d and b+d 3.0 and 2.0.
    # d with b is best, so c joins a, though it came first.
    slowdown = {("a", "c"): (1.2, 1.4), ("b", "c"): (1.1, 1.1), ("a", "d"): (1.5, 1.5)}
    slowdown["b", "d"] = (1.0, 1.0)
    where = profiled({name: {} for name in "abcd"}, gpus=2, slowdown=slowdown)
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"), (0, 1, 10, "d"))
    assert companions(run(jobs, where, policy_named("coscheml"))) == {
        0: {2},
        1: {3},
        2: {0},
        3: {1},
    }


def test_what_is_not_predicted_is_not_tried():
    # Nothing is known of (a, b): j1 waits for j0, and j2 (a) passes it.
    where = world(gpus=1, slowdowns=[("a", "a", 1, 1)])
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"), (0, 1, 10, "a"))
    history = run(jobs, where, policy_named("coscheml"))
    assert finishes(history) == [10, 20, 10]
    assert all(stay.ending == "finished" for stay in history.stays)


def test_a_job_is_joined_by_one_other_at_most():
    where = world(gpus=1, slowdowns=[("a", "a", 1, 1)], max_jobs_per_gpu=3)
    jobs = trace(*[(0, 1, 10, "a")] * 3)
    assert finishes(run(jobs, where, policy_named("coscheml"))) == [10, 10, 20]


def test_what_was_measured_corrects_the_prediction():
    # Believed: c with a 1.1 + 1.1, with b 1.2 + 1.2. In truth with a it is 3 + 3. j2 learns
    # that from 0 on, measured after 5 s. When it ends at 30, a+c is known to be 6, and j3 (c)
    # joins b.
    truth = {("a", "c"): (3.0, 3.0), ("b", "c"): (1.2, 1.2)}
    belief = {("a", "c"): (1.1, 1.1), ("b", "c"): (1.2, 1.2)}
    where, believed = (
        profiled({name: {} for name in "abc"}, gpus=2, slowdown=s) for s in (truth, belief)
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 10, "c"), (31, 1, 10, "c"))
    predicted = SlowdownTable.of(believed)
    options = Options(observe_s=5)
    history = run(jobs, where, policy_named("coscheml"), options, predicted)
    assert companions(history)[2] == {0}
    assert companions(history)[3] == {1}


def test_a_gang_may_have_several_co_runners():
    # j0 and j1 run alone on one GPU each, the third is idle. The gang of three takes the idle one
    # and joins both.
    where = world(gpus=3, slowdowns=[("a", "b", 1, 1)])
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "a"), (0, 3, 10, "b"))
    history = run(jobs, where, policy_named("coscheml"))
    assert finishes(history) == [10, 10, 10]
    assert companions(history)[2] == {0, 1}
