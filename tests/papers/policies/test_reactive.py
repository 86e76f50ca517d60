import pytest

from dovetail.executor.simulation import Options
from dovetail.instances.errors import UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world

SLOW = world(gpus=1, slowdowns=[("a", "b", 2, 2)])


def test_a_violated_pair_is_undone_after_it_was_observed():
    # j0 accepts a slowdown of 1.5 and has 2. After 60 s j1, which came last, is paused; it is
    # kept from j0, so it waits. j0 has done 30 of 100 and ends at 130. j1 has done 30 of 100,
    # restarts at 130, is restored until 140 and ends at 210.
    jobs = trace((0, 1, 100, "a", 1.5), (0, 1, 100, "b"))
    history = run(jobs, SLOW, policy_named("reactive"), Options(restart_s=10))
    assert finishes(history) == [130, 210]
    assert [stay.ending for stay in history.stays] == ["stopped", "finished", "finished"]


def test_the_pair_is_tried_again_after_a_while():
    # Apart for 20 s: j1 is paused at 60 for j0's sake. At 90 j2 arrives, and j1 is first in the
    # queue: it joins j0 again, is restored at once, and is paused again at 150.
    jobs = trace((0, 1, 200, "a", 1.5), (0, 1, 100, "b"), (90, 1, 10, "b"))
    policy = policy_named("reactive:apart_s=20")
    history = run(jobs, SLOW, policy, Options(restart_s=0))
    stops = [(stay.job, stay.start_s, stay.end_s) for stay in history.stays if stay.job == 1]
    assert stops[:2] == [(1, 0, 60), (1, 90, 150)]


def test_no_job_is_paused_within_the_gsla():
    # Slowdown 2 is accepted: both run side by side until 20.
    jobs = trace((0, 1, 10, "a", 2.0), (0, 1, 10, "b", 2.5))
    history = run(jobs, SLOW, policy_named("reactive:observe_s=1"), Options(restart_s=0))
    assert finishes(history) == [20, 20]


def test_a_paused_job_goes_elsewhere_at_once():
    # Two GPUs: j0 on the first, j1 on the second, j2 with j0. j1 ends at 5 (no job joins: the
    # queue is empty). At 6 j2 is paused for j0 and starts on the idle GPU: j0 has done 3 of 10
    # and ends at 13; so has j2, which ends at 13 too.
    jobs = trace((0, 1, 10, "a", 1.5), (0, 1, 5, "a"), (0, 1, 10, "b"))
    where = world(gpus=2, slowdowns=[("a", "b", 2, 2)])
    history = run(jobs, where, policy_named("reactive:observe_s=6"), Options(restart_s=0))
    assert finishes(history) == [13, 5, 13]


def test_options_are_checked():
    with pytest.raises(UnsupportedError, match="observe_s must be > 0, got 0"):
        policy_named("reactive:observe_s=0")
    with pytest.raises(UnsupportedError, match="apart_s must be >= 0, got -1"):
        policy_named("reactive:apart_s=-1")
