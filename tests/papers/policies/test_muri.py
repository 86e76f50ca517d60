import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance, Workload
from dovetail.papers.policies.muri import Stages, interleaved_s, stages
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world

FREE_RESTARTS = Options(restart_s=0.0)


def staged(where: Instance, **used: tuple[float, float]) -> Instance:
    """Return a world whose workloads use CPU and GPU for these parts of an iteration."""
    data = where.to_data()
    for name, (cpu, gpu) in used.items():
        data["workloads"][name]["metrics"] = {"cpu_util": cpu, "gpu_util": gpu}
    return Instance.from_data(data)


def test_an_iteration_of_a_group_is_the_sum_of_the_longest_stages():
    a, b, c = (0, 8, 2, 0), (0, 2, 8, 0), (0, 0, 5, 5)
    assert interleaved_s([a]) == 10
    # b loads 2 s first; then a loads during b's 8 s on the GPU, then a is on the GPU for 2 s.
    assert interleaved_s([a, b]) == 2 + 8 + 2
    # Two of a: loading never overlaps loading, 8 + 8 with one GPU stage at the same time, and 2.
    assert interleaved_s([a, a]) == 18
    # Two of c: one is on the GPU while the other is on the network, and at both ends alone.
    assert interleaved_s([c, c]) == 15
    # c's GPU stage overlaps b's loading (5), its network b's GPU (8).
    assert interleaved_s([b, c]) == 13


def test_stages_come_from_metrics_and_batch():
    batch = {"size": 8, "min": 8, "fixed_mib": 0.0, "mib_per_sample": 1.0, "comm_s": 2.0}
    batch["step_s"] = {"fixed": 2.0, "per_sample": 1.0}
    metrics = {"cpu_util": 0.25, "sm_active": 0.5}

    def workload(**fields):
        return Workload.from_data({"memory_mib": 1.0, **fields})

    # A step of 2 + 8 s and 2 s of communication: 12 s.
    assert stages(workload(batch=batch)) == Stages(12.0, (0.0, 0.0, 10.0, 2.0))
    assert stages(workload(batch=batch, metrics=metrics)) == Stages(12.0, (0.0, 3.0, 6.0, 2.0))
    assert stages(workload(metrics=metrics)) == Stages(1.0, (0.0, 0.25, 0.5, 0.0))
    assert stages(workload(metrics={"cpu_util": 0.25})) is None


SLOWDOWNS = [("a", "b", 1.2, 1.2), ("a", "a", 1.8, 1.8), ("b", "b", 1.8, 1.8)]


def test_jobs_are_matched_by_efficiency():
    # Two GPUs for two a's (loading) and two b's (computing). With an iteration of 1.2 s for a
    # with b and 1.8 s for equals, each a gets a b, and all take 120 s.
    where = staged(world(gpus=2, slowdowns=SLOWDOWNS), a=(0.8, 0.2), b=(0.2, 0.8))
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 100, "b"))
    assert finishes(run(jobs, where, policy_named("muri"))) == [120, 120, 120, 120]


def test_only_as_many_are_merged_as_there_are_gpus_too_few():
    # Three jobs on two GPUs: the a's lose more together than a with b does, and the second a
    # keeps a GPU to itself.
    where = staged(world(gpus=2, slowdowns=SLOWDOWNS), a=(0.8, 0.2), b=(0.2, 0.8))
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "a"), (0, 1, 100, "b"))
    assert sorted(finishes(run(jobs, where, policy_named("muri")))) == [100, 120, 120]


def test_gangs_are_only_merged_with_gangs_of_as_many_workers():
    # The gang of a's and the single b ask for three GPUs of two, and are not merged: b has the
    # least service and goes first, the gang in the next round.
    where = staged(world(gpus=2, slowdowns=SLOWDOWNS), a=(0.8, 0.2), b=(0.2, 0.8))
    jobs = trace((0, 2, 100, "a"), (0, 1, 10, "b"))
    history = run(jobs, where, policy_named("muri:round_s=50"))
    assert finishes(history) == [150, 10]


def test_without_a_profile_predicted_slowdowns_give_the_efficiency():
    # 1 / 1.2 + 1 / 1.2 is more than one job alone, 1 / 2.5 + 1 / 2.5 is less.
    jobs = trace((0, 1, 300, "a"), (0, 1, 300, "b"))
    together = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    assert finishes(run(jobs, together, policy_named("muri"))) == [360, 360]
    apart = world(gpus=1, slowdowns=[("a", "b", 2.5, 2.5)])
    assert finishes(run(jobs, apart, policy_named("muri"))) == [300, 660]


def test_groups_grow_in_rounds_up_to_the_most_jobs_a_gpu_may_hold():
    slowdowns = [("a", "b", 1.1, 1.1), ("a", "c", 1.1, 1.1), ("b", "c", 1.1, 1.1)]
    names = ("a", "b", "c")
    jobs = trace(*[(0, 1, 100, name) for name in names])
    three = world(gpus=1, slowdowns=slowdowns, workloads=names, max_jobs_per_gpu=3)
    history = run(jobs, three, policy_named("muri"))
    assert [outcome.first_start_s for outcome in history.outcomes] == [0, 0, 0]
    two = world(gpus=1, slowdowns=slowdowns, workloads=names)
    history = run(jobs, two, policy_named("muri"))
    assert [outcome.first_start_s for outcome in history.outcomes] == [0, 0, 360]


def test_the_least_remaining_or_the_least_attained_service_comes_first():
    jobs = trace((0, 1, 720, "a"), (0, 1, 720, "b"))
    # Remaining: a keeps its lead. Attained: they take turns of 360 s.
    for priority, expected in (("srsf", [720, 1440]), ("2d-las", [1080, 1440])):
        policy = policy_named(f"muri:priority={priority}")
        assert finishes(run(jobs, world(gpus=1), policy, FREE_RESTARTS)) == expected


@pytest.mark.parametrize("option", ["priority=fair", "round_s=0"])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(UnsupportedError, match=option.partition("=")[0]):
        policy_named(f"muri:{option}")
