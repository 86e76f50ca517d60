"""The policies of papers decide for the live service as well."""

import pytest

from tests.executor.live.test_fair_share import overtaking, starts_of_lower_and_higher_nice
from tests.executor.live.test_policy_view import (
    gpus_that_a_policy_takes,
    tell_the_brain_what_a_policy_decides,
    view_with_a_drained_device,
)


@pytest.mark.parametrize("policy", ["tiresias", "gavel", "lucid", "random"])
def test_many_jobs_of_one_user_do_not_lock_out_another(tmp_path, policy):
    assert overtaking(tmp_path, policy) <= 2


@pytest.mark.parametrize("policy", ["lucid", "random"])
def test_a_users_jobs_start_in_the_order_the_user_gave(tmp_path, policy):
    first, last = starts_of_lower_and_higher_nice(tmp_path, policy)
    assert max(first) <= min(last)


@pytest.mark.parametrize("name", ["unaware", "random", "binpack"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_policy_decides_the_brain_takes_what_the_world_lets_pass(name, seed):
    tell_the_brain_what_a_policy_decides(name, seed)


@pytest.mark.parametrize("name", ["unaware", "random", "binpack"])
def test_no_job_starts_on_a_device_that_takes_none(name):
    view, _ = view_with_a_drained_device()
    assert "g1" not in gpus_that_a_policy_takes(name, view)
