import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_a_job_over_the_threshold_gives_way_to_a_new_one():
    # One GPU, threshold 10 GPU s, restarts cost 5 s. j0 is demoted at 10 with no job waiting and
    # runs on. j1 arrives at 12 and takes its GPU until 15. j0 has done 12 of 30: it is restored
    # until 20 and ends at 20 + 18 = 38.
    jobs = trace((0, 1, 30, "a"), (12, 1, 3, "a"))
    options = Options(restart_s=5)
    history = run(jobs, world(gpus=1), policy_named("tiresias:threshold_gpu_s=10"), options)
    assert finishes(history) == [38, 15]


def test_the_moment_of_demotion_is_waited_for():
    # j1 waits from 4. j0 runs its first 10 s undisturbed, is demoted at 10 and preempted at once,
    # though nothing else happens then. j1 runs from 10 to 13, j0 the other 20 s until 33.
    jobs = trace((0, 1, 30, "a"), (4, 1, 3, "a"))
    options = Options(restart_s=0)
    history = run(jobs, world(gpus=1), policy_named("tiresias:threshold_gpu_s=10"), options)
    assert finishes(history) == [33, 13]


def test_service_counts_every_gpu_of_a_gang():
    # j0 holds two GPUs: it is demoted after 5 s. j1 (two GPUs, 4 s) runs from 5 to 9.
    jobs = trace((0, 2, 30, "a"), (1, 2, 4, "a"))
    options = Options(restart_s=0)
    history = run(jobs, world(gpus=2), policy_named("tiresias:threshold_gpu_s=10"), options)
    assert finishes(history) == [34, 9]


def test_no_job_preempts_within_its_queue():
    # Both in the low queue after 10 s of service each: j0 first (10), then j1 (20). j0 began
    # first, so it takes the GPU back at 20 and keeps it until its end at 40; j1 ends at 60.
    jobs = trace((0, 1, 30, "a"), (1, 1, 30, "a"))
    options = Options(restart_s=0)
    history = run(jobs, world(gpus=1), policy_named("tiresias:threshold_gpu_s=10"), options)
    assert finishes(history) == [40, 60]


def test_only_as_many_are_preempted_as_it_takes():
    # Two GPUs, j0 and j1 in the low queue at 10. j2 needs one: j1, which began later, gives way.
    jobs = trace((0, 1, 30, "a"), (0, 1, 30, "a"), (12, 1, 5, "b"))
    options = Options(restart_s=0)
    history = run(jobs, world(gpus=2), policy_named("tiresias:threshold_gpu_s=10"), options)
    assert finishes(history) == [30, 35, 17]


def test_a_starving_job_is_promoted():
    # PromoteKnob 1. j0 runs 10 s, is demoted and gives way to j1 (10 s, until 20) and j2 (until
    # 30). It ran for 10 s, so at 20 it has waited as long: it is promoted, and having begun
    # before j2 it runs from 20 to 30. Demoted again, it gives way to j2 (30 to 40), ends at 45.
    jobs = trace((0, 1, 25, "a"), (1, 1, 10, "a"), (2, 1, 10, "a"))
    options = Options(restart_s=0)
    policy = "tiresias:threshold_gpu_s=10"
    assert finishes(run(jobs, world(gpus=1), policy_named(policy), options)) == [45, 20, 30]
    promoting = policy_named(f"{policy},promote=1")
    assert finishes(run(jobs, world(gpus=1), promoting, options)) == [45, 20, 40]


def test_promotion_does_not_wait_for_another_event():
    # PromoteKnob 2. j0 runs until 10 and is demoted; j1 runs until 19, j2 until 29, when it is
    # demoted, then j3. j0 ran 10 s, so at 30 it has waited 20 s: it is promoted, takes the GPU
    # from j3, which began later, and ends at 35. j3 ends at 43, j2 at 48.
    jobs = trace((0, 1, 15, "a"), (1, 1, 9, "a"), (2, 1, 15, "a"), (3, 1, 9, "a"))
    options = Options(restart_s=0)
    history = run(
        jobs, world(gpus=1), policy_named("tiresias:threshold_gpu_s=10,promote=2"), options
    )
    assert finishes(history) == [35, 19, 48, 43]


def test_options_are_checked():
    with pytest.raises(UnsupportedError, match="threshold_gpu_s must be > 0, got 0"):
        policy_named("tiresias:threshold_gpu_s=0")
    with pytest.raises(UnsupportedError, match="promote must be > 0, got -1"):
        policy_named("tiresias:promote=-1")
