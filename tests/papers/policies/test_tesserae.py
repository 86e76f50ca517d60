import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.papers.policies.profiled import companions

FREE_RESTARTS = Options(restart_s=0.0)


def test_the_heaviest_matching_packs_not_the_best_pair():
    # a with c gains 0.6, the most of any pair, but then d is left: b with d gains nothing. a with d
    # gains 0.5 and b with c 0.54, together 1.04.
    where = world(
        workloads=("a", "b", "c", "d"),
        slowdowns=[
            ("a", "c", 1.25, 1.25),
            ("a", "d", 4 / 3, 4 / 3),
            ("b", "c", 1.3, 1.3),
            ("b", "d", 2.5, 2.5),
        ],
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 100, "b"), (0, 1, 100, "c"), (0, 1, 100, "d"))
    found = companions(run(jobs, where, policy_named("tesserae"), FREE_RESTARTS))
    assert found == {0: {3}, 1: {2}, 2: {1}, 3: {0}}
    alone = run(jobs, where, policy_named("tesserae:packing=false"), FREE_RESTARTS)
    assert companions(alone) == {0: set(), 1: set(), 2: set(), 3: set()}


def test_only_gangs_of_one_size_are_packed():
    where = world(slowdowns=[("a", "b", 1.1, 1.1)])
    jobs = trace((0, 2, 100, "a"), (0, 1, 100, "b"))
    assert companions(run(jobs, where, policy_named("tesserae"), FREE_RESTARTS))[1] == set()
    jobs = trace((0, 2, 100, "a"), (0, 2, 100, "b"))
    assert companions(run(jobs, where, policy_named("tesserae"), FREE_RESTARTS))[1] == {0}


def test_a_preemption_moves_no_other_job():
    # At 360 the order is j2 (100 s), j1 (640 s), j0 (1,640 s): j2 takes the GPU of j0, the second.
    jobs = trace((0, 1, 2000, "a"), (0, 1, 1000, "a"), (100, 1, 100, "a"))
    policy = policy_named("tesserae:order=srtf,packing=false")
    history = run(jobs, world(), policy, FREE_RESTARTS)
    stays = {job: [stay for stay in history.stays if stay.job == job] for job in range(3)}
    assert [stay.gpus for stay in stays[1]] == [(0,)]
    assert [(stay.gpus, stay.start_s) for stay in stays[2]] == [((1,), 360)]


def test_jobs_below_the_threshold_come_first():
    # j0 has had 360 GPU seconds when the second round begins.
    jobs = trace((0, 1, 1000, "a"), (100, 1, 100, "a"))
    where = world(gpus=1)
    early = policy_named("tesserae:threshold_gpu_s=360")
    assert finishes(run(jobs, where, early, FREE_RESTARTS)) == [1360, 460]
    late = policy_named("tesserae")
    assert finishes(run(jobs, where, late, FREE_RESTARTS)) == [1000, 1180]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("order=ftf", "order must be one of ('tiresias', 'srtf'), got 'ftf'"),
        ("threshold_gpu_s=0", "threshold_gpu_s must be > 0, got 0"),
        ("round_s=0", "round_s must be a finite number > 0, got 0"),
    ],
)
def test_an_option_out_of_range_is_refused(option, message):
    with pytest.raises(UnsupportedError) as error:
        policy_named(f"tesserae:{option}")
    assert message in str(error.value)
