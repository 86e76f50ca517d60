"""How many jobs a round weighs, and of which users."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.fair_share import taking_part
from tests.executor.live.telling import ANN, spec

ANY = spec()


def queue(*jobs):
    """Return waiting jobs by (uid, nice), one a second after the other."""
    found = {}
    for k, (uid, nice) in enumerate(jobs, 1):
        owner = ANN.replace(uid=uid)
        job = LiveJob(
            f"j{k}", ANY.model_copy(update={"owner": owner, "nice": nice}), JobState.WAITING, k
        )
        job.competes_since_s = float(k)
        found[job.id] = job
    return found


def test_few_jobs_all_take_part():
    jobs = queue(*[(1, 0)] * 5)
    assert set(taking_part(jobs, (), 5)) == set(jobs)


def test_users_share_equally_and_take_what_others_leave():
    jobs = queue(*[(1, 0)] * 100, *[(2, 0)] * 100, *[(3, 0)] * 4)
    counts = Counter(jobs[name].spec.owner.uid for name in taking_part(jobs, (), 40))
    assert counts == {1: 18, 2: 18, 3: 4}


def test_low_nice_comes_first_and_a_part_by_age():
    jobs = queue(*[(1, 5)] * 60, *[(1, -5)] * 60)
    part = taking_part(jobs, (), 40)
    assert {f"j{k}" for k in range(1, 5)} <= set(part)
    assert {f"j{k}" for k in range(61, 97)} <= set(part)
    assert len(part) == 40


def test_reservations_stay():
    jobs = queue(*[(1, 0)] * 60)
    assert "j60" in taking_part(jobs, ["j60"], 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2)), max_size=80), st.integers(1, 40))
def test_the_number_has_a_bound_and_no_user_is_left_out(users, most):
    jobs = queue(*users)
    part = taking_part(jobs, (), most)
    owners = {job.spec.owner.uid for job in jobs.values()}
    assert len(part) <= max(most, len(owners))
    assert {jobs[name].spec.owner.uid for name in part} == owners
    assert len(part) >= min(most, len(jobs))
