"""The rule that holds every policy to the gSLAs of latency-critical jobs."""

import math

import pytest

from dovetail.instances._record import IDLE
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies import State
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.state import Job, Sharer
from tests.executor.simulation.worlds import world

A, B, C = 0, 1, 2


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
        state.see((0, 0, A, B), 1.3)
    assert kept(upper, Sharer(A, 1.5), Sharer(B, math.inf))
    assert not kept(tail, Sharer(A, 1.5), Sharer(B, math.inf))


def test_a_sub_batch_stretches_the_tail():
    state, batch = state_of(), Sharer(B, math.inf)
    assert kept(state, Sharer(A, 1.5, slowdown_factor=1.3), batch)
    assert not kept(state, Sharer(A, 1.5, slowdown_factor=1.4), batch)
    assert kept(state, Sharer(A, 1.5), batch._replace(slowdown_factor=1.4))


def test_caps_and_pairs_of_which_nothing_is_known_are_refused():
    state, batch = state_of(), Sharer(B, math.inf)
    assert not kept(state, Sharer(A, 1.5, share=50), batch)
    assert not kept(state, Sharer(A, 1.5), Sharer(A, math.inf))


def test_the_limit_holds_alone_at_the_cap_once_the_co_runner_has_ended():
    data = world(slowdowns=[("a", "b", 1.1, 1.1)], shares=(50,)).to_data()
    data["slowdowns"] = [{"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1]}]
    data["workloads"]["a"]["throughput"] = {"100": 5.0, "50": 4.0}
    where = Instance.from_data(data)
    state, batch = State(where, SlowdownTable.of(where)), Sharer(B, math.inf, share=50)
    assert kept(state, Sharer(A, 1.25, share=50), batch)
    assert not kept(state, Sharer(A, 1.24, share=50), batch)
    assert kept(state, Sharer(B, 1.1, share=50), Sharer(A, math.inf, share=50))


def test_without_caps_a_job_with_a_limit_shares_with_one_where_no_entry_names_the_set():
    state, batch = state_of(), Sharer(B, math.inf)
    assert kept(state, batch, batch, batch)
    assert not kept(state, Sharer(A, 1.5), batch, batch)


def with_sets(*entries):
    data = world(max_jobs_per_gpu=4, shares=["idle"], workloads=("a", "b", "c")).to_data()
    for name in "bc":
        data["workloads"][name]["isolation"] = "blocks"
    data["slowdowns"] = list(entries)
    where = Instance.from_data(data)
    return State(where, SlowdownTable.of(where))


def test_an_entry_of_the_set_says_what_its_tails_are():
    of_set = {"set": ["a", "b", "b"], "slowdown": [1.2, 2.0, 2.0]}
    batch = Sharer(B, math.inf)
    for fields, figure in (({}, 1.2), ({"upper": [1.3, 2, 2]}, 1.3), ({"p99": [1.4, 2, 2]}, 1.4)):
        state = with_sets(of_set | fields)
        assert kept(state, batch, Sharer(A, figure), batch)
        assert not kept(state, Sharer(A, figure - 1e-6), batch, batch)
        assert not kept(state, Sharer(A, figure, slowdown_factor=1.01), batch, batch)
    assert not kept(with_sets(of_set | {"slowdown": None}), Sharer(A, 9.0), batch, batch)


def test_behind_a_job_its_tail_is_the_largest_of_its_pairs():
    pairs = [
        {"pair": ["a", name], "share": [None, "idle"], "slowdown": [1.1, 2.0], "p99": [tail, 2.0]}
        for name, tail in (("b", 1.2), ("c", 1.3))
    ]
    state = with_sets(*pairs)
    b, c = (Sharer(k, math.inf, IDLE) for k in (1, 2))
    assert kept(state, Sharer(A, 1.3), b, c)
    assert kept(state, b, c, b, Sharer(A, 1.3))
    assert kept(state, Sharer(A, 1.2), b, b)
    assert not kept(state, Sharer(A, 1.2), b, c)
    assert not kept(state, Sharer(A, 9.0), b, Sharer(C, math.inf))
    assert not kept(with_sets(pairs[0]), Sharer(A, 9.0), b, c)


def test_a_draft_counts_what_it_has_started():
    state = state_of({"slowdown": [1.1, 1.1], "p99": [1.6, 1.6]})
    first, second = (
        Job(0, "j0", A, 1, 10.0, 0.0, gsla=1.5, latency=True),
        Job(1, "j1", B, 1, 10.0, 0.0),
    )
    draft = Draft(state)
    draft.start(first, [0])
    assert not draft.has_room(0, second)
    assert draft.has_room(1, second)
    batch = Draft(state)
    first.latency = False
    batch.start(first, [0])
    assert batch.has_room(0, second)
