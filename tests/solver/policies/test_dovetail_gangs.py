"""Gangs that share with several running jobs, and jobs that determine the end of all work."""

import pytest

from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world

HOSTS = [("g", "a", 1.1, 1.05), ("g", "b", 1.2, 1.05), ("g", "c", 3.0, 1.05)]


def gang_beside(*hosts, gpus, workers=2, **cluster):
    """Return when a gang of 10 s ends that arrives at 10 and shares with jobs of 1,000 s."""
    jobs = trace(*[(0, 1, 1000, name) for name in hosts], (10, workers, 10, "g"))
    where = world(1, gpus, HOSTS, workloads=("a", "b", "c", "g"), **cluster)
    return finishes(run(jobs, where, policy_named("dovetail")))[-1]


def test_a_gang_joins_two_hosts_and_runs_at_the_pace_of_the_worse():
    assert gang_beside("a", "b", gpus=2) == 10 + 12


def test_a_gang_leaves_the_host_that_would_slow_it_most():
    assert gang_beside("a", "c", "b", gpus=3) == 10 + 12


def test_a_gang_takes_an_idle_gpu_and_one_of_a_host():
    # With the idle GPU alone it would need no hosts, but a gang of two needs one.
    assert gang_beside("a", gpus=2) == 10 + 11


def test_hosts_that_end_let_the_gang_go_faster():
    # At 10 the gang of 40 s joins a, which has 10 s left and ends 10.5 s later, and b. Until then
    # it does 10.5 / 1.2 = 8.75 at the pace of b's GPU, which stays: 48 s in all.
    jobs = trace((0, 1, 20, "a"), (0, 1, 1000, "b"), (10, 2, 40, "g"))
    where = world(1, 2, HOSTS, workloads=("a", "b", "c", "g"))
    assert finishes(run(jobs, where, policy_named("dovetail")))[-1] == 10 + 48


def test_whole_gangs_join_no_gang_in_part():
    assert gang_beside("a", "b", gpus=2, gang_sharing="whole") == 1000 + 10


def test_gslas_keep_a_gang_from_a_host():
    # b takes no job that slows it by more than 1.02: the gang has a and c.
    jobs = trace((0, 1, 1000, "a"), (0, 1, 1000, "b", 1.02), (0, 1, 1000, "c"), (10, 2, 10, "g"))
    where = world(1, 3, HOSTS, workloads=("a", "b", "c", "g"))
    assert finishes(run(jobs, where, policy_named("dovetail")))[-1] == 10 + 30


def test_two_gangs_that_want_the_same_hosts_start_one_after_the_other():
    # The second gang's round follows within a second, when the first has taken its GPUs.
    jobs = trace(*[(0, 1, 1000, "a")] * 4, (10, 2, 10, "g"), (10, 2, 10, "g"))
    where = world(1, 4, HOSTS, workloads=("a", "b", "c", "g"))
    ended = finishes(run(jobs, where, policy_named("dovetail")))
    assert ended[-2:] == [pytest.approx(21, abs=1.01)] * 2


def test_a_job_that_the_end_of_all_work_hangs_on_starts_first():
    # 120 s of work on two GPUs: 60 s at best, and the last job alone needs these. Shortest first
    # would end at 30 + 60.
    jobs = trace(*[(0, 1, 10, "a")] * 6, (0, 1, 60, "a"))
    assert max(finishes(run(jobs, world(1, 2), policy_named("dovetail")))) == 60


def test_a_gang_that_takes_two_hosts_leaves_the_third_to_another():
    # The gang may share with x and y only. s would rather join x or y than z, and though two
    # jobs wait, three hosts are needed.
    slowdowns = [("g", "x", 1.1, 1.1), ("g", "y", 1.1, 1.1)]
    slowdowns += [("s", "x", 1.1, 1.1), ("s", "y", 1.15, 1.1), ("s", "z", 1.2, 1.1)]
    where = world(gpus=3, slowdowns=slowdowns, workloads=("x", "y", "z", "g", "s"))
    hosts = [(0, 1, 1000, name) for name in ("x", "y", "z")]
    history = run(
        trace(*hosts, (10, 2, 100, "g"), (10, 1, 50, "s")), where, policy_named("dovetail")
    )
    assert [outcome.first_start_s for outcome in history.outcomes] == [0, 0, 0, 10, 10]
    x, y, z, g, s = (stay.gpus for stay in sorted(history.stays, key=lambda stay: stay.job))
    assert (set(g), s) == ({*x, *y}, z)
