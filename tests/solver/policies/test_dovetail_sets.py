"""Three and more on a GPU, and the price of energy, under Dovetail's own policy."""

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from dovetail.instances.sets import set_slowdown
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import beliefs, policy_named
from dovetail.solver.policies.beliefs import BeliefBook
from dovetail.solver.policies.state import State
from tests.executor.simulation.worlds import finishes, run, trace, world

NAMES = ("a", "b", "c", "d")
PAIRS = [
    ("a", "a", 1.3, 1.3),
    ("a", "b", 1.1, 1.2),
    ("a", "c", 1.15, 1.05),
    ("b", "c", 1.2, 1.1),
    ("c", "d", 1.1, 1.1),
]


def _book(**cluster):
    where = world(gpus=1, slowdowns=PAIRS, workloads=NAMES, **cluster)
    return BeliefBook(State(where, SlowdownTable.of(where)))


def _members(template, held):
    return {(*held, *(NAMES[k] for k in free)) for free in template.free.tolist()}


def test_sets_are_those_whose_pairs_may_share():
    known = {frozenset((a, b)) for a, b, _, _ in PAIRS}
    for held in ((), ("b",), ("c", "a")):
        templates = _book(max_jobs_per_gpu=4).templates("V100", tuple((n, None) for n in held))
        by_size = {template.share.shape[1]: template for template in templates}
        assert sorted(by_size) == [size for size in (2, 3, 4) if size > len(held)]
        for size, template in by_size.items():
            wanted = {
                (*held, *free)
                for free in combinations_with_replacement(NAMES, size - len(held))
                if all(
                    frozenset((x, y)) in known
                    for k, x in enumerate((*held, *free))
                    for y in (*held, *free)[k + 1 :]
                )
            }
            assert _members(template, held) == wanted
            for free, twin in zip(template.free.tolist(), template.twin.tolist(), strict=True):
                alike = [x == y for x, y in pairwise(free)]
                assert twin == [False] * len(held) + [False, *alike]


def test_a_set_is_as_slow_as_its_pairs_predict():
    book = _book(max_jobs_per_gpu=3)
    pairs = [[1.0, 1.1, 1.15], [1.2, 1.0, 1.2], [1.05, 1.1, 1.0]]
    found = book.find("V100", [("a", None), ("b", None), ("c", None)])
    assert found.slowdown == pytest.approx(set_slowdown(pairs))
    assert found in book.known("V100")
    assert book.find("V100", [("a", None), ("b", None), ("d", None)]) is None
    assert book.find("V100", [("a", 30), ("b", 30), ("c", 30)]) is None
    assert _book(max_jobs_per_gpu=2).find("V100", [(name, None) for name in "abc"]) is None


def test_where_there_are_too_many_sets_there_are_smaller_ones(monkeypatch):
    monkeypatch.setattr(beliefs, "_MOST_SETS", 3)
    sizes = [t.share.shape[1] for t in _book(max_jobs_per_gpu=4).templates("V100", ())]
    assert sizes == [2]
    held = (("a", None), ("b", None))
    sizes = [t.share.shape[1] for t in _book(max_jobs_per_gpu=4).templates("V100", held)]
    assert sizes == [3, 4]


@pytest.mark.parametrize(("most", "starts"), [(2, [0, 1, 1051]), (3, [0, 1, 2])])
def test_a_third_joins_two_that_run(most, starts):
    slowdowns = [(a, b, 1.05, 1.05) for a, b in ("ab", "ac", "bc")]
    where = world(gpus=1, slowdowns=slowdowns, workloads=NAMES[:3], max_jobs_per_gpu=most)
    jobs = trace((0, 1, 1000, "a"), (1, 1, 1000, "b"), (2, 1, 10, "c"))
    history = run(jobs, where, policy_named("dovetail"))
    found = [round(outcome.first_start_s) for outcome in history.outcomes]
    assert found[:2] == starts[:2]
    assert found[2] == pytest.approx(starts[2], abs=1)


@pytest.mark.parametrize(("gsla", "joins"), [(1.6, True), (1.3, False)])
def test_gslas_are_held_against_the_whole_set(gsla, joins):
    # With one of the others c is slowed to 1.15, with both to 1.36: pairs at their bounds, whose
    # excess is stretched by the margin, allow 1.6.
    slowdowns = [(a, b, 1.15, 1.15) for a, b in ("ab", "ac", "bc")]
    assert 1.3 < float(set_slowdown(np.full((3, 3), 1.15))[0]) < 1.4
    where = world(gpus=1, slowdowns=slowdowns, workloads=NAMES[:3], max_jobs_per_gpu=3)
    jobs = trace((0, 1, 1000, "a"), (1, 1, 1000, "b"), (2, 1, 10, "c", gsla))
    history = run(jobs, where, policy_named("dovetail"))
    assert (history.outcomes[2].first_start_s == 2) is joins


@pytest.mark.parametrize(("arrival", "late", "kwh"), [(0, 3600, 0.175), (1800, 1800, 0.0875)])
def test_energy_has_a_price(arrival, late, kwh):
    # Each takes an hour and 200 W alone. Both together take 150 W, at two thirds of the pace: they
    # end `late` seconds later in all, and save `kwh`.
    instance = world(gpus=2, slowdowns=[("a", "b", 1.5, 1.5)])
    for power_w, together in ((200.0, 150.0), (None, 150.0), (200.0, None)):
        workloads = {n: w.replace(power_w=power_w) for n, w in instance.workloads.items()}
        entries = [entry.replace(power_w=together) for entry in instance.slowdowns]
        where = instance.replace(workloads=workloads, slowdowns=entries)
        jobs = trace((0, 1, 3600, "a"), (arrival, 1, 3600, "b"))
        for part, saved in ((0.99, False), (1.01, power_w is not None and together is not None)):
            policy = policy_named(f"dovetail:energy_price={part * late / kwh}")
            history = run(jobs, where, policy)
            assert (history.outcomes[1].shared_s > 0) is saved
            ends = [5400, 5400] if arrival == 0 else [4500, 6300]
            assert finishes(history) == (ends if saved else [3600, arrival + 3600])
