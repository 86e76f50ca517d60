"""Latency-critical jobs start before all others and are never stopped, whatever the policy is."""

import pytest

from dovetail.executor.simulation.pool import PolicyError
from dovetail.solver.policies import Decision, policy_named
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_forecast import believed_ends
from dovetail.solver.policies.reservations import earliest
from dovetail.solver.policies.services import services_first, services_kept
from tests.executor.simulation.worlds import run, trace, world
from tests.executor.test_second_opinion import state_of
from tests.solver.policies.contract import metered, stays_of, with_services


def test_gpus_are_kept_for_a_gang_of_services():
    # Four of four GPUs for a gang; one becomes idle after the other, and jobs wait for each.
    jobs = trace(
        *[(0, 1, 1000 * k, "b") for k in range(1, 5)],
        (10, 4, 500, "a"),
        *[(20, 1, 5000, "b")] * 4,
    )
    where = metered(gpus=4)
    history = run(with_services(jobs, 4), where, policy_named("dovetail"))
    assert stays_of(history, 4)[0].start_s == 4000.0
    assert stays_of(run(jobs, where, policy_named("dovetail")), 4)[0].start_s > 4000.0


class JoinsAnything:
    """Starts whatever has room, as if nothing was ever reserved."""

    def decide(self, state):
        draft = Draft(state)
        draft.release(state.reserved_gpus)
        for job in state.pending.values():
            if not job.latency and draft.has_room(0, job):
                draft.start(job, (0,))
        return draft.decision()


def test_a_policy_that_knows_no_reservations_cannot_break_one():
    stream = [(400 * k, 1, 1000, "b") for k in range(50)]
    jobs = trace(*stream[:3], (900, 1, 3600, "a"), *stream[3:])
    where = metered(slowdowns=[("b", "b", 1.0, 1.0)])
    history = run(with_services(jobs, 3), where, JoinsAnything())
    assert stays_of(history, 3)[0].start_s == 1400.0


def test_what_is_reserved_for_another_is_not_taken():
    # The first gang is overdue when the service comes: the two GPUs are the gang's.
    jobs = trace((0, 1, 1000, "b"), (0, 1, 2000, "b"), (1, 2, 100, "b"), (1500, 1, 50, "a"))
    policy = policy_named("dovetail:patience_s=100,patience_stretch=0,preempt=false")
    history = run(with_services(jobs, 3), metered(gpus=2), policy)
    assert stays_of(history, 2)[0].start_s == 2000.0


class Stops:
    """Stops whatever runs."""

    def decide(self, state):
        return Decision(stops=tuple(state.running.values()), wake_s=state.now + 10)


def test_the_simulator_refuses_to_stop_a_service():
    jobs = with_services(trace((0, 1, 100, "a")), 0)
    with pytest.raises(PolicyError, match=r"stops 'j0', which is latency-critical"):
        run(jobs, metered(), Stops())


SERVICE = {"latency": True, "replica_of": "s"}
SERVING = SERVICE | {"rate": 1.0}


def test_a_service_is_expected_never_to_end_and_a_job_beside_it_is():
    jobs = (
        ("a", (0,), SERVICE | {"rate": 1.0}),
        ("b", (0,), {"rate": 0.5}),
        ("b", (1,), {"rate": 1.0}),
    )
    state = state_of(world(slowdowns=[("a", "b", 1.1, 2.0)]), *jobs)
    ends = believed_ends(state)
    assert ends[0] > 3e8
    assert (ends[1], ends[2]) == (200.0, 100.0)


def test_no_gpu_is_reserved_that_never_becomes_idle():
    jobs = ("a", (0,), SERVING), ("b", (1,), {"rate": 1.0}), ("a", (), SERVICE)
    state = state_of(world(), *jobs)
    ends = believed_ends(state)
    assert earliest(state, state.pending[2], ends, ()) == ((1,), 100.0)
    assert earliest(state, state.pending[2], ends, (1,)) is None


def test_jobs_join_services_although_a_replica_waits_for_a_gpu_of_its_own():
    jobs = ("a", (0,), SERVING), ("a", (1,), SERVING), ("a", (), SERVICE), ("b", (), {})
    state = state_of(
        world(slowdowns=[("a", "b", 1.1, 1.1)]), *jobs, ("a", (), SERVICE), ("b", (), {})
    )
    draft = Draft(state)
    draft.start(state.pending[3], (0,))
    kept = services_kept(state, draft.decision())
    assert [start.gpus for start in kept.starts] == [(0,)]
    assert kept.reserved == {}


def test_replicas_spread_over_nodes_first_and_then_over_gpus():
    state = state_of(world(nodes=2, gpus=2), *[("a", (), SERVICE)] * 4)
    starts = services_first(state).starts
    assert sorted(start.gpus for start in starts) == [(0,), (1,), (2,), (3,)]
    assert {start.gpus[0] // 2 for start in starts[:2]} == {0, 1}
