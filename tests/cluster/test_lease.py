"""The arithmetic of leases, with two clocks that differ."""

import pytest

from dovetail.cluster.lease import GrantedLease, RemoteLease, require_length
from dovetail.instances.errors import InputError


def test_before_the_first_answer_the_lease_runs_from_the_controller_s_start():
    # (15 + 5) x 1.01 + 2 after 100.
    assert RemoteLease(15.0, 100.0).over_s == pytest.approx(122.2)


def test_an_answer_is_quoted_and_the_lease_runs_from_its_receipt():
    lease = RemoteLease(10.0, 0.0)
    lease.note_answer(5000.0, 5007.0, 40.0)
    assert lease.quoted_s == 5000.0
    # (10 + 5) x 1.01 + 2 after 40, whatever the node's clock says.
    assert lease.over_s == pytest.approx(57.15)


def test_a_longer_lease_of_an_earlier_controller_counts():
    lease = RemoteLease(4.0, 0.0)
    lease.note_answer(5000.0, 5030.0, 40.0)
    # (30 + 5) x 1.01 + 2 after 40; and (4 + 5) x 1.01 + 2 after 80, when that is over.
    assert lease.over_s == pytest.approx(77.35)
    lease.note_answer(5040.0, 5044.0, 80.0)
    assert lease.over_s == pytest.approx(91.09)


def test_another_agent_s_clock_is_not_quoted():
    lease = RemoteLease(10.0, 0.0)
    lease.note_answer(5000.0, 5007.0, 40.0)
    lease.forget_clock()
    assert lease.quoted_s is None
    assert lease.over_s == pytest.approx(57.15)


@pytest.mark.parametrize("rate", [0.995, 1.0, 1.005])
@pytest.mark.parametrize("late_s", [0.0, 0.5, 14.0])
def test_no_job_outlives_what_the_controller_concludes(rate, late_s):
    """The node read its clock ``late_s`` before the answer came; a renewal quotes it at once."""
    lease = RemoteLease(15.0, 0.0)
    received_s = 50.0
    read_at_s = received_s - late_s
    node_clock_s = 7000.0 + rate * read_at_s
    lease.note_answer(node_clock_s, node_clock_s, received_s)
    # On the node jobs are killed 5 s after quoted + 15 s; when that is by the controller's clock:
    killed_s = (lease.quoted_s + 15.0 + 5.0 - 7000.0) / rate
    assert killed_s < lease.over_s


def test_a_lease_of_an_earlier_controller_counts_until_it_has_lapsed():
    lease = RemoteLease(5.0, 100.0, left_s=15.0)
    # (15 + 5) x 1.01 + 2 after 100: no other one is known yet.
    assert lease.over_s == pytest.approx(122.2)
    # Known 4 s later: 11 s are left of it, and (11 + 5) x 1.01 + 2 = 18.16.
    lease.note_answer(7004.0, 7015.0, 104.0)
    assert lease.over_s == pytest.approx(122.16)
    # With 1 s left, the own 5 s count: (5 + 5) x 1.01 + 2 = 12.1.
    lease.note_answer(7014.0, 7015.0, 114.0)
    assert lease.over_s == pytest.approx(126.1)


def test_a_node_is_gone_only_for_a_controller_that_has_called_it_after_the_lapse():
    lease = RemoteLease(15.0, 100.0)
    # Lapsed after 15 x 1.01 = 15.15 s, over after 22.2 s.
    for requested_s in (101.0, 115.1):
        lease.note_request(requested_s)
        assert lease.gone_s == float("inf")
    for requested_s in (118.0, 121.5):
        lease.note_request(requested_s)
        assert lease.gone_s == pytest.approx(122.2)
    # It answers, and is lost again; the controller, frozen until 150, has to call it first.
    lease.note_answer(5000.0, 5015.0, 120.0)
    assert lease.gone_s == float("inf")
    lease.note_request(150.0)
    assert lease.gone_s == pytest.approx(152.0)


def test_the_longest_lease_granted_is_kept_until_it_has_lapsed(tmp_path):
    path = tmp_path / "lease.json"
    assert GrantedLease(path, 15.0, 0.0).longest_s == 15.0
    assert GrantedLease(path, 5.0, 0.0).longest_s == 15.0
    last = GrantedLease(path, 6.0, 100.0)
    last.forget_lapsed(115.1)
    assert last.longest_s == GrantedLease(path, 5.0, 100.0).longest_s == 15.0
    last.forget_lapsed(115.2)
    assert last.longest_s == GrantedLease(path, 5.0, 200.0).longest_s == 6.0


@pytest.mark.parametrize("lease_s", [0.0, 4.9, float("nan"), float("inf")])
def test_a_lease_that_would_lapse_without_a_fault_is_refused(lease_s):
    with pytest.raises(InputError, match=r"lease: must be 5 s or more, got"):
        require_length(lease_s)
