import pytest

from dovetail.instances.errors import UnsupportedError
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace, world


def test_filtering_keeps_both_gslas_and_s1_takes_the_least_sum():
    # J_R is the a. b would be slowed 1.6 > 1.5 and falls out; c (1.3 + 1.3) loses to d
    # (1.1 + 1.2). d ends at 12, when a has done 12 / 1.1 = 10.909 s of its 100; the c takes its
    # place for 13 s, of which a makes 10; then only b is left, and a runs alone:
    # 25 + 100 - 20.909 = 104.091. b follows.
    where = world(
        gpus=1,
        slowdowns=[("a", "b", 1.0, 1.6), ("a", "c", 1.3, 1.3), ("a", "d", 1.1, 1.2)],
        workloads=("a", "b", "c", "d"),
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"), (0, 1, 10, "d"), gsla=1.5)
    history = run(jobs, where, policy_named("tensorshare:selection=s1"))
    assert finishes(history) == [104.090909, 114.090909, 25, 12]


def test_s2_takes_the_more_sensitive_partner():
    # S1: a with b is 1.2 + 1.2, a with c 1.2 + 1.5: b. Sensitivities over the other two of the
    # queue: a 0 -> 0.01, b the deviation of 1.2 and 1.3 = 0.05, c that of 1.5 and 2.5 = 0.5.
    # S2: b 120 + 24, c 120 + 3: c, which ends at 15.
    where = world(
        gpus=1,
        slowdowns=[("a", "b", 1.2, 1.2), ("a", "c", 1.2, 1.5), ("b", "c", 1.3, 2.5)],
        workloads=("a", "b", "c"),
    )
    jobs = trace((0, 1, 100, "a"), (0, 1, 10, "b"), (0, 1, 10, "c"))
    assert finishes(run(jobs, where, policy_named("tensorshare")))[1:] == [27, 15]
    assert finishes(run(jobs, where, policy_named("tensorshare:selection=s1")))[1:] == [12, 27]


def test_a_job_that_ran_out_of_partners_stays_alone():
    # b ends at 12 and leaves a alone with an empty queue: dedicated use. The b of 20 waits for
    # the end of a: a did 10 by 12 and ends at 102. Reconsidered, the b joins a at 20 and ends
    # at 32; a has done 10 + 8 + 10 by then and ends at 104.
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 1, 100, "a"), (0, 1, 10, "b"), (20, 1, 10, "b"))
    assert finishes(run(jobs, where, policy_named("tensorshare"))) == [102, 12, 112]
    again = run(jobs, where, policy_named("tensorshare:reconsider=true"))
    assert finishes(again) == [104, 12, 32]


def test_partners_have_as_many_workers_and_share_all_gpus():
    # The gang of two a's passes over the single b and takes the gang of b's; the single one
    # then waits until both are gone: 12 s, and a ends at 102.
    where = world(gpus=2, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 2, 100, "a"), (0, 1, 10, "b"), (0, 2, 10, "b"))
    assert finishes(run(jobs, where, policy_named("tensorshare"))) == [102, 112, 12]


def test_a_pair_that_does_not_fit_in_memory_is_left_out():
    where = world(gpus=1, slowdowns=[("a", "b", 1.1, 1.1)], memory_mib=1500.0)
    history = run(trace((0, 1, 10, "a"), (0, 1, 10, "b")), where, policy_named("tensorshare"))
    assert finishes(history) == [10, 20]
    assert [stay.ending for stay in history.stays] == ["finished", "finished"]


def test_jobs_are_combined_despite_idle_gpus_by_default():
    # Two jobs, three GPUs: the paper's text combines them, its footnote 6 may leave them alone.
    where = world(gpus=3, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 1, 10, "a"), (0, 1, 10, "b"))
    assert finishes(run(jobs, where, policy_named("tensorshare"))) == [12, 12]
    alone = run(jobs, where, policy_named("tensorshare:dedicated_if_room=true"))
    assert finishes(alone) == [10, 10]


def test_an_unknown_selection_is_refused():
    with pytest.raises(UnsupportedError, match="selection must be s1 or s2, got 's3'"):
        policy_named("tensorshare:selection=s3")
