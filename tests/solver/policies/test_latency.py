"""The rule that holds every policy to the gSLAs of latency-critical jobs."""

import math

import pytest

from dovetail.instances.instance import Instance
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import State
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job, Sharer
from tests.executor.simulation.worlds import world

A, B = 0, 1


def state_of(*entries):
    where = world(slowdowns=[("a", "b", 1.1, 1.1)], max_jobs_per_gpu=3)
    data = where.to_data()
    if entries:
        data["slowdowns"] = [{"pair": ["a", "b"], **entry} for entry in entries]
    where = Instance.from_data(data)
    return State(where, SlowdownTable.of(where))


def kept(state, *sharers):
    return state.tails_kept(0, sharers)


@pytest.mark.parametrize(
    ("entry", "figure"),
    [
        ({"slowdown": [1.2, 1.9]}, 1.2),
        ({"slowdown": [1.2, 1.9], "upper": [1.4, 2.0]}, 1.4),
        ({"slowdown": [1.2, 1.9], "upper": [1.4, 2.0], "p99": [1.3, 2.0]}, 1.3),
    ],
)
def test_the_figure_is_p99_else_the_upper_bound_else_the_slowdown(entry, figure):
    state, batch = state_of(entry), Sharer(B, math.inf)
    assert kept(state, Sharer(A, figure), batch)
    assert kept(state, batch, Sharer(A, figure))
    assert not kept(state, Sharer(A, figure - 1e-6), batch)


def test_a_measured_slowdown_replaces_an_upper_bound_but_not_p99():
    upper = state_of({"slowdown": [1.2, 1.2], "upper": [1.6, 1.6]})
    tail = state_of({"slowdown": [1.2, 1.2], "p99": [1.6, 1.6]})
    for state in (upper, tail):
        assert not kept(state, Sharer(A, 1.5), Sharer(B, math.inf))
        state.seen[0, 0, A, B] = 1.3
    assert kept(upper, Sharer(A, 1.5), Sharer(B, math.inf))
    assert not kept(tail, Sharer(A, 1.5), Sharer(B, math.inf))


def test_a_sub_batch_stretches_the_tail():
    state, batch = state_of(), Sharer(B, math.inf)
    assert kept(state, Sharer(A, 1.5, stretch=1.3), batch)
    assert not kept(state, Sharer(A, 1.5, stretch=1.4), batch)
    assert kept(state, Sharer(A, 1.5), batch._replace(stretch=1.4))


def test_caps_and_pairs_of_which_nothing_is_known_are_refused():
    state, batch = state_of(), Sharer(B, math.inf)
    assert not kept(state, Sharer(A, 1.5, share=50), batch)
    assert not kept(state, Sharer(A, 1.5), Sharer(A, math.inf))


def test_a_job_with_a_limit_shares_with_one():
    state, batch = state_of(), Sharer(B, math.inf)
    assert kept(state, batch, batch, batch)
    assert not kept(state, Sharer(A, 1.5), batch, batch)


def test_a_draft_counts_what_it_has_started():
    state = state_of({"slowdown": [1.1, 1.1], "p99": [1.6, 1.6]})
    first, second = Job(0, "j0", A, 1, 10.0, 0.0, 1.5, latency=True), Job(1, "j1", B, 1, 10.0, 0.0)
    draft = Draft(state)
    draft.start(first, [0])
    assert not draft.has_room(0, second)
    assert draft.has_room(1, second)
    batch = Draft(state)
    first.latency = False
    batch.start(first, [0])
    assert batch.has_room(0, second)
