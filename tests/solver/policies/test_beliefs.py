"""Bounds of Dovetail's policy from beliefs that include measurements."""

import math
from itertools import combinations_with_replacement
from random import Random

import numpy as np
import pytest

from dovetail.formulations.instance_slowdowns import InstanceSlowdowns
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.shares import NO_CAP
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.registry import policy_named
from dovetail.solver.policies.state import Job, Sharer, State
from tests.executor.simulation.worlds import world
from tests.formulations.members import find
from tests.formulations.test_assumed import of, round_of

NAMES = ("a", "b", *(f"w{k}" for k in range(5)))


def _state(measured):
    """Return a state that believes 1.2 of all pairs, but 1.4 of those measured."""
    pairs = [(x, y, 1.2, 1.2) for k, x in enumerate(NAMES) for y in NAMES[k:]]
    where = world(gpus=1, slowdowns=pairs, workloads=NAMES)
    prior = SlowdownTable.of(where)
    state = State(where, prior)
    for x, y in measured:
        state.see((0, 0, x, y), 1.4, 1.5)
    return State(where, state.believed)


def _bound(state, newcomer, other):
    (model,) = state.machines.models
    found = find(BelievedSlowdowns(state), model, [(newcomer, None), (other, None)])
    return [round(found.slowdown[0], 9), round(found.upper[0], 9)]


def test_a_measured_pair_keeps_its_own_bound_and_the_next_one_is_taken_to_need_half_more():
    assert _bound(_state([]), "w0", "w1") == [1.2, 1.3]
    state = _state([(0, 1)])
    assert _bound(state, "a", "b") == [1.4, 1.5]
    # It needed twice its excess, and the next one 1.5 times: the quantile lies between.
    assert _bound(state, "w0", "w1") == [1.2, pytest.approx(1 + 0.2 * (1.5 + 0.9 * 0.5))]


def test_the_margin_follows_from_the_prediction_at_the_start():
    # Ten measurements at twice the predicted excess: the margin is 2. Held against the
    # beliefs that have them in it, they would say 1.
    measured = [(x, y) for x in range(2, 7) for y in range(2, 7) if x < y]
    assert len(measured) == 10
    assert _bound(_state(measured), "a", "b") == [1.2, 1.4]


@pytest.mark.parametrize("seen", [{}, {(0, 1, 0, 1): 1.05}])
def test_bounds_hold_alone_at_a_cap_once_the_co_runner_has_ended(seen):
    """Alone at half the SMs a is slowed 1.25 times, believed or measured with b only 1.1 times."""
    data = world(gpus=1, slowdowns=[("a", "b", 1.1, 1.1)], shares=(50,)).to_data()
    data["slowdowns"] = [{"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.1, 1.1]}]
    data["workloads"]["a"]["throughput"] = {"100": 5.0, "50": 4.0}
    where = Instance.from_data(data)
    state = State(where, SlowdownTable.of(where))
    for cell, slowdown in seen.items():
        state.see(cell, slowdown)
    (model,) = state.machines.models
    found = find(BelievedSlowdowns(state), model, [("a", 50), ("b", 50)])
    assert found.bounds([False, False])[0] == found.bounds([True, True])[0] == 1.25
    joined, joining = BelievedSlowdowns(state).least_bounds(state.machines.kinds[0], 50)
    assert joined[0, 1] == joining[1, 0] == 1.25


def test_bounds_of_a_given_set_are_at_least_those_of_the_pairs_that_are_left():
    """When c has ended, a and b slow each other more than in the set that has all three."""
    data = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.3)], workloads=("a", "b", "c")).to_data()
    data["cluster"]["max_jobs_per_gpu"] = 3
    data["slowdowns"][0] |= {"upper": [1.9, 2.0], "p99": [2.1, 2.2]}
    data["slowdowns"].append({"set": ["a", "b", "c"], "slowdown": [1.4, 1.5, 1.5]})
    where = Instance.from_data(data)
    state, members = State(where, SlowdownTable.of(where)), [(name, None) for name in "abc"]
    (model,) = state.machines.models
    book = BelievedSlowdowns(state)
    given, pair = find(book, model, members), find(book, model, members[:2])
    assert given.bounds([False] * 3) == (*pair.bounds([False] * 2), 1.5)
    assert given.bounds([True] * 3) == find(InstanceSlowdowns(where), model, members).bounds(
        [True] * 3
    )
    assert given.bounds([True] * 3) == (2.1, 2.2, 1.5)
    (known,) = (
        each for each in book.joins(state.machines.kinds[0], ()) if each.workload.shape[1] == 3
    )
    assert known.figures(0) == given
    sharers = [Sharer(number, limit=2.15) for number in range(3)]
    assert not state.tails_kept(0, sharers)
    assert state.tails_kept(0, [one._replace(limit=2.2) for one in sharers])


CAPS = [(10, 90), (20, 80), (30, 70), (40, 60), (50, 50)]


def _splits(believed, seen, uncapped=3.0):
    """Return a pool of one GPU where a and b wait, and were measured together at some splits."""
    shares = sorted({share for caps in CAPS for share in caps})
    data = world(gpus=1, slowdowns=[("a", "b", uncapped, uncapped)], shares=shares).to_data()
    data["slowdowns"] += [
        {"pair": ["a", "b"], "share": list(caps), "slowdown": list(figures)}
        for caps, figures in believed.items()
    ]
    where = Instance.from_data(data)
    table = SlowdownTable.of(where)
    state = State(where, table)
    for (x, y), (mine, theirs) in seen.items():
        state.see((0, table.caps_place[x, y], 0, 1), mine)
        state.see((0, table.caps_place[y, x], 1, 0), theirs)
    for number, workload in enumerate((0, 1)):
        job = Job(number, f"j{number}", workload, 1, 1000.0, 0.0)
        state.pending[number] = job
    return state


def _chosen(state):
    return tuple(start.shares and start.shares[0] for start in _decided(state))


def _decided(state):
    starts = policy_named("dovetail").decide(state).starts
    return sorted(starts, key=lambda start: start.job.number)


@pytest.mark.parametrize(
    ("predicted", "split"),
    [
        (1.2, (30, 70)),  # 8 % better than what was measured
        (1.27, (50, 50)),  # 2 %: less than the margin
    ],
)
def test_a_pair_that_was_measured_at_a_split_tries_a_better_one_by_a_margin(predicted, split):
    believed = {(50, 50): (1.3, 1.3), (30, 70): (predicted, predicted)}
    assert _chosen(_splits(believed, {(50, 50): (1.3, 1.3)})) == split


def test_what_was_measured_corrects_the_predictions_at_other_caps():
    # a was slowed 1.5 times, not 1.2: its slowdown and its bound are that much larger elsewhere.
    state = _splits({(50, 50): (1.2, 1.1), (30, 70): (1.2, 1.1)}, {(50, 50): (1.5, 1.1)})
    found = find(BelievedSlowdowns(state), "V100", [("a", 30), ("b", 70)])
    assert found.slowdown == pytest.approx((1.5 * 1.05, 1.1 * 1.05))
    # Its predicted excess, half more, is 0.3: an error of 1.25 widens that.
    assert found.upper[0] >= 1.3 * 1.25
    # Without caps it is another matter, of which pairs with caps tell nothing.
    uncapped = find(BelievedSlowdowns(state), "V100", [("a", None), ("b", None)])
    assert uncapped.slowdown == pytest.approx((3.0 * 1.05, 3.0 * 1.05))


def test_a_pair_is_not_tried_at_ever_more_splits():
    believed = dict.fromkeys(CAPS, (1.3, 1.3)) | {(10, 90): (1.1, 1.1)}
    three = dict.fromkeys(CAPS[2:], (1.3, 1.3))
    assert _chosen(_splits(believed, three)) == (10, 90)
    assert _chosen(_splits(believed, dict.fromkeys(CAPS[1:], (1.3, 1.3)))) != (10, 90)
    # All that was measured is remembered, and the best of it is used.
    four = three | {(20, 80): (1.2, 1.2)}
    assert _chosen(_splits(believed, four)) == (20, 80)


def _declared(draw):
    """Return a round with a declared rule, and entries of some pairs and sets at random."""
    entries = []
    for size, often in ((2, 0.6), (3, 0.3), (4, 0.2)):
        for names in combinations_with_replacement("abc", size):
            if draw.random() > often:
                continue
            of_name = {name: round(draw.uniform(0.9, 2.0), 3) for name in names}
            slowdown = [of_name[name] for name in names]
            upper = [value * 1.2 for value in slowdown]
            figures = {"slowdown": slowdown, "upper": upper} if draw.random() < 0.5 else {}
            none = size < 4 and draw.random() < 0.2
            figures = {"slowdown": None} if none else figures or {"slowdown": slowdown}
            entries.append({"pair" if size == 2 else "set": list(names), **figures})
    rule = {"pair": draw.choice([1.25, None]), "sets": "product"}
    jobs = of(*"abc" * 5)
    return round_of(dict.fromkeys("abc", 1), jobs, entries, most=5, **rule)


@pytest.mark.parametrize("seed", range(20))
def test_declared_sets_are_those_of_a_plan(seed):
    instance = _declared(Random(seed))
    state = State(instance, SlowdownTable.of(instance))
    table = state.predicted
    for cell in map(tuple, np.argwhere(~np.isnan(table.slowdown)).tolist()):
        state.see(cell, table.slowdown[cell], table.upper[cell])  # without a margin
    book, plan = BelievedSlowdowns(state), InstanceSlowdowns(instance)
    (kind,) = state.machines.kinds
    offered = {
        tuple(sorted(row))
        for found in book.joins(kind, ())
        for row in found.workload.tolist()
        if not found.share.any()
    }
    for size in range(2, 6):
        for workloads in combinations_with_replacement(range(3), size):
            members = tuple((workload, NO_CAP) for workload in workloads)
            expected, found = plan.find(kind, members), book.find(kind, members)
            assert (expected is None, workloads in offered) == (found is None, found is not None)
            if expected is None or found is None:
                continue
            assert found.slowdown == pytest.approx(expected.slowdown)
            assert found.upper == pytest.approx(expected.upper)
            assert found.tail == pytest.approx(expected.tail)
            for k, tail in enumerate(expected.tail):
                for limit in (tail * 0.999, tail * 1.001):
                    limits = [limit if j == k else math.inf for j in range(size)]
                    sharers = list(map(Sharer, workloads, limits))
                    assert state.tails_kept(0, sharers) == (limit > tail)
