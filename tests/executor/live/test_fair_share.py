"""Fair shares between users: in the state machine, and in a service on the simulated pool."""

from __future__ import annotations

import os

import pytest

from dovetail.executor.jobs import checkpoint
from dovetail.executor.jobs.journal import read_state_machine
from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import OVER, QUEUED
from dovetail.executor.live.errors import RefusedError
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.rounds.fair_share import standings
from dovetail.instances.errors import InputError
from tests.executor.waiting import wait_until

from .telling import ANN, BOB, Story
from .test_service import ME, is_in, service_in
from .test_service import spec as live_spec

EVA = Owner(name="other-eva", uid=os.geteuid() + 2000, gid=1000)
POLICIES = ("dovetail", "fifo", "sjf", "castor")

HELD_S = 1e6
"""A work that no busy machine ends before its job is cancelled."""


def starts(service):
    """Return all jobs that were started, with the times of their first starts, in this order."""
    started = [job.id for job in service.api.jobs(over=True) if job.runs]
    first = {
        job: min(s.at_s for s in service.api.job(job).history if s.state == "starting")
        for job in started
    }
    return dict(sorted(first.items(), key=lambda item: item[1]))


def order_of_starts(service):
    """Return the owners of all jobs that were started, in the order of their starts."""
    return [service.api.job(job).owner for job in starts(service)]


def overtaking(tmp_path, policy):
    """Return how many of Bob's jobs start between the coming and the start of Eva's only one.

    Bob's jobs are shorter, earlier and weigh more, so any policy would start them first. Two were
    about to start, one on each device.
    """
    many = [live_spec(work_s=20, owner=BOB, weight=9.0, estimate_s=20.0) for _ in range(40)]
    one = live_spec(work_s=40, owner=EVA, estimate_s=40.0)
    with service_in(tmp_path, policy=policy, limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit(many, BOB)
        wait_until(lambda: sum(job.runs for job in service.api.jobs()) >= 2)
        service.api.submit([one], EVA)
        wait_until(lambda: service.api.job("j41").runs)
        for job in service.api.jobs():
            service.api.cancel(job.id, BOB if job.owner == "bob" else EVA)
        began, came_s = starts(service), service.api.job("j41").submitted_s
    return sum(came_s < at_s < began["j41"] for at_s in began.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_many_jobs_of_one_user_do_not_lock_out_another(tmp_path, policy):
    assert overtaking(tmp_path, policy) <= 2


def test_users_take_turns_on_one_device(tmp_path):
    with service_in(tmp_path, policy="sjf", limits=AdmissionLimits(any_user=True)) as service:
        service.api.drain(["n-0", "n-1"], True, ME)
        service.api.submit([live_spec(work_s=1, owner=BOB, estimate_s=1.0) for _ in range(6)], BOB)
        service.api.submit([live_spec(work_s=4, owner=EVA, estimate_s=4.0) for _ in range(3)], EVA)
        service.api.drain(["n-0"], False, ME)
        wait_until(lambda: not service.api.jobs())
        owners = order_of_starts(service)
    # The policy alone would start all of Bob's, which are shorter, before Eva's first.
    assert EVA.name in owners[:2]
    assert owners.count(EVA.name) == 3
    machine = read_state_machine(tmp_path)
    assert set(machine.used) == {BOB.uid, EVA.uid}


def starts_of_lower_and_higher_nice(tmp_path, policy):
    """Return when jobs of a user started that are first, and last, in the order the user gave.

    Any policy that stops no running job would start the last ones first.
    """
    with service_in(tmp_path, policy=policy) as service:
        service.api.submit([live_spec(work_s=HELD_S, workers=2)], ME)
        wait_until(lambda: service.api.job("j1").runs)
        service.api.submit([live_spec(work_s=1, estimate_s=1.0, weight=9.0, nice=1)] * 4, ME)
        service.api.submit([live_spec(work_s=2, estimate_s=40.0, nice=-1)] * 4, ME)
        assert service.api.job("j2").waiting_for.endswith(", after jobs of me with a lower nice")
        assert "order: waits for jobs of me with a lower nice" in service.api.explain("j2")
        assert "order: " not in service.api.explain("j6")
        service.api.cancel("j1", ME)
        wait_until(lambda: not service.api.jobs())
        began = starts(service)
    return [began[f"j{k}"] for k in range(6, 10)], [began[f"j{k}"] for k in range(2, 6)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_users_jobs_start_in_the_order_the_user_gave(tmp_path, policy):
    first, last = starts_of_lower_and_higher_nice(tmp_path, policy)
    assert max(first) <= min(last)


def test_what_is_reserved_for_services_goes_first_to_the_user_with_less(tmp_path):
    with service_in(tmp_path, policy="sjf", limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit([live_spec(work_s=HELD_S, owner=BOB)] * 2, BOB)
        wait_until(lambda: sum(job.runs for job in service.api.jobs()) == 2)
        critical = live_spec(work_s=HELD_S, owner=BOB, priority="latency", gsla=1.0)
        service.api.submit([critical] * 2, BOB)
        wait_until(lambda: "reserved" in service.api.job("j4").waiting_for)
        service.api.submit([live_spec(work_s=HELD_S, owner=EVA)] * 2, EVA)
        service.api.cancel("j1", BOB)
        wait_until(lambda: len(starts(service)) == 3)
        service.api.cancel("j2", BOB)
        wait_until(lambda: len(starts(service)) == 4)
        began = [*starts(service)]
        for job in service.api.jobs():
            service.api.cancel(job.id, ME)
    assert began[2] == "j5", "Eva has no device yet, so hers comes first"
    assert began[3] in ("j3", "j4"), "now both have one, and the service is Bob's"


def test_a_users_order_is_nothing_to_others(tmp_path):
    with service_in(tmp_path, policy="fifo", limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit([live_spec(work_s=HELD_S, workers=2)], ME)
        wait_until(lambda: service.api.job("j1").runs)
        service.api.submit([live_spec(work_s=1, owner=BOB, nice=-20) for _ in range(6)], BOB)
        service.api.submit([live_spec(work_s=1, owner=EVA, nice=20) for _ in range(2)], EVA)
        service.api.cancel("j1", ME)
        wait_until(lambda: not service.api.jobs())
        assert order_of_starts(service)[1:4].count(EVA.name) >= 1


def test_the_bound_on_waits_holds_whatever_the_order(tmp_path):
    """A gang is last, behind more single jobs than its maximum wait allows."""
    with service_in(tmp_path, policy="dovetail:patience_s=2,patience_stretch=0") as service:
        service.api.submit([live_spec(work_s=HELD_S, workers=2)], ME)
        wait_until(lambda: service.api.job("j1").runs)
        service.api.submit([live_spec(work_s=5, estimate_s=0.25, workers=2, nice=20)], ME)
        # Each takes half a second on the wall clock, all of them 15 s.
        service.api.submit([live_spec(work_s=10, estimate_s=0.5, nice=-20)] * 60, ME)
        service.api.cancel("j1", ME)
        wait_until(lambda: service.api.job("j2").runs)
        for job in service.api.jobs():
            service.api.cancel(job.id, ME)
        began, came_s = starts(service), service.api.job("j2").submitted_s
    assert began["j2"] >= came_s + 2, "it came before its turn"
    ahead = [*began].index("j2") - 1
    assert ahead < 55, "it was overdue, and waited for all the others"


def test_the_explanation_names_the_user_whose_jobs_come_first(tmp_path):
    with service_in(tmp_path, limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit([live_spec(work_s=HELD_S, owner=BOB)] * 4, BOB)
        wait_until(lambda: sum(job.runs for job in service.api.jobs()) == 2)
        service.api.submit([live_spec(work_s=HELD_S, owner=EVA)], EVA)
        explanation = service.api.explain("j3").splitlines()
        assert service.api.job("j3").waiting_for.startswith(
            "fair share: an idle device, after jobs of"
        )
        assert service.api.job("j5").waiting_for == "an idle device"
        reasons = {each.job: each.reason for each in service.api.plan().waiting}
        for job in service.api.jobs():
            service.api.cancel(job.id, ME)
    first = "fair share: waits for jobs of other-eva, who has 0 devices and is charged "
    assert any(line.startswith(first) for line in explanation)
    assert reasons["j3"].startswith(first)
    assert reasons["j5"] == "capacity: no device is idle"


def test_a_user_may_have_so_many_jobs_waiting_and_such_weights(tmp_path):
    with service_in(tmp_path, limits=AdmissionLimits(waiting=3, any_user=True)) as service:
        service.api.drain([], True, ME)
        service.api.submit([live_spec(owner=BOB)] * 2, BOB)
        message = "^bob may have 3 waiting jobs, has 2, and 2 more are submitted$"
        with pytest.raises(RefusedError, match=message):
            service.api.submit([live_spec(owner=BOB)] * 2, BOB)
        with pytest.raises(InputError, match=r"^weight: must be <= 10 \(administrators: any\)"):
            service.api.submit([live_spec(owner=BOB, weight=11.0)], BOB)
        service.api.submit([live_spec(owner=BOB, weight=10.0)], BOB)
        service.api.submit([live_spec(owner=EVA)] * 3, EVA)
        service.api.submit([live_spec(weight=1e15)] * 4, ME)
        assert len(service.api.jobs()) == 10


def test_the_rest_goes_to_users_that_can_use_it(tmp_path):
    with service_in(tmp_path, policy="fifo", limits=AdmissionLimits(any_user=True)) as service:
        service.api.submit([live_spec(work_s=HELD_S, owner=BOB)], BOB)
        wait_until(lambda: service.api.job("j1").runs)
        service.api.submit([live_spec(work_s=HELD_S, workers=2, owner=EVA)], EVA)
        service.api.submit([live_spec(work_s=HELD_S, owner=BOB) for _ in range(2)], BOB)
        service.api.cancel("j2", EVA)
        wait_until(is_in(service, "j2", *OVER))
        wait_until(lambda: service.api.job("j3").runs)
        for job in ("j1", "j3", "j4"):
            service.api.cancel(job, BOB)


class TestBrain:
    def test_used_time_is_of_the_journal(self):
        story = Story()
        story.ended(story.running(owner=ANN))
        again = checkpoint.restored(checkpoint.state_text(story.machine), [])
        assert story.machine.used[ANN.uid] > 0
        assert again.used == story.machine.used

    def test_a_returning_user_pays_nothing_for_time_without_a_queue(self):
        story = Story()
        story.ended(story.running(owner=ANN))
        story.submit(owner=BOB)
        story.submit(owner=ANN)
        known = standings(story.machine)
        assert known[ANN.uid] == known[BOB.uid]

    def test_waiting_jobs_are_counted(self):
        story = Story()
        story.submit(owner=ANN)
        story.submit(owner=BOB)
        waiting = [job for job in story.machine.jobs.values() if job.state in QUEUED]
        assert story.machine.waiting == {ANN.uid: 1, BOB.uid: 1}
        assert len(waiting) == 2
