from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.papers.policies.lucid import sharing_scores
from dovetail.solver.policies import State, policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def used(where: Instance, **gpu_util: float) -> Instance:
    """Return a world whose workloads use the GPU so much."""
    data = where.to_data()
    for name, use in gpu_util.items():
        data["workloads"][name]["metrics"] = {"gpu_util": use}
    return Instance.from_data(data)


def test_scores_follow_gpu_use_and_else_the_mean_speed_with_others():
    # d and e have no profile: d runs at 1 / 1.25 = 0.8 with e, e at 1 / 1.1 = 0.91.
    slowdowns = [("d", "e", 1.25, 1.1)]
    where = world(slowdowns=slowdowns, workloads=("a", "b", "c", "d", "e", "f"))
    where = used(where, a=0.24, b=0.25, c=0.53)
    assert sharing_scores(State(where, SlowdownTable.of(where))) == [0, 1, 2, 2, 1, 2]


PAIRS = [("a", "b", 1.25, 1.25), ("b", "c", 1.25, 1.25), ("a", "c", 1.25, 1.25)]


def test_packing_is_by_score_and_in_the_order_of_service():
    # GPU 0 has the Jumbo c, GPU 1 the Tiny a. Both the short c and the Medium b would join: the
    # c has less service (10 < 12) and may only join the a. b may not join the Jumbo and waits
    # until the c ends at 1 + 12.5; then it joins a, to which it is the next, until 13.5 + 15.
    # a has done 1 + 10 by 13.5, 12 more by 28.5, and ends at 28.5 + 77 = 105.5.
    where = used(world(gpus=2, slowdowns=PAIRS, workloads=("a", "b", "c")), a=0.1, b=0.3, c=0.9)
    jobs = trace((0, 1, 100, "c"), (0, 1, 100, "a"), (1, 1, 12, "b"), (1, 1, 10, "c"))
    history = run(jobs, where, policy_named("lucid"))
    assert finishes(history) == [100, 105.5, 28.5, 13.5]


def test_a_long_job_does_not_join_a_short_one():
    # b has more than twice the service of a: 201 > 2 x 100.
    where = used(world(gpus=1, slowdowns=PAIRS, workloads=("a", "b", "c")), a=0.1, b=0.3)
    jobs = trace((0, 1, 100, "a"), (1, 1, 201, "b"))
    assert finishes(run(jobs, where, policy_named("lucid"))) == [100, 301]
    joined = trace((0, 1, 100, "a"), (1, 1, 200, "b"))
    assert run(joined, where, policy_named("lucid")).outcomes[1].shared_s > 0


def test_nothing_is_packed_while_load_is_light():
    where = used(world(gpus=2, slowdowns=PAIRS, workloads=("a", "b", "c")), a=0.1, b=0.1)
    history = run(trace((0, 1, 10, "a"), (1, 1, 10, "b")), where, policy_named("lucid"))
    assert finishes(history) == [10, 11]


def test_only_gangs_of_equal_size_on_one_node_are_packed():
    # On one node of two GPUs the gang of b's joins the gang of a's and the single b does not.
    where = used(world(gpus=2, slowdowns=PAIRS, workloads=("a", "b", "c")), a=0.1, b=0.1)
    jobs = trace((0, 2, 100, "a"), (1, 2, 10, "b"), (1, 1, 10, "b"))
    assert finishes(run(jobs, where, policy_named("lucid"))) == [102.5, 13.5, 112.5]
    # Over two nodes no job joins: the single b is first by service and then the gang.
    spread = used(world(2, 1, PAIRS, ("a", "b", "c")), a=0.1, b=0.1)
    assert finishes(run(jobs, spread, policy_named("lucid"))) == [100, 120, 110]
