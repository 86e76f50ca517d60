"""Three and more on a GPU, and the price of energy, under Dovetail's own policy."""

import dataclasses
from collections import Counter
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from dovetail.executor.simulation import Options
from dovetail.instances._record import IDLE
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.sets import set_slowdown
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace
from dovetail.solver.policies import beliefs, policy_named
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.state import State
from tests.executor.simulation.worlds import finishes, run, trace, world
from tests.formulations.members import coded, find, on

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
    return BelievedSlowdowns(State(where, SlowdownTable.of(where)))


def _joins(book, held):
    return book.joins(on("V100"), coded(book, held))


def _figures(book):
    return [each.figures(k) for each in _joins(book, ()) for k in range(len(each))]


def _members(template):
    return {tuple(NAMES[k] for k in row) for row in template.workload.tolist()}


def test_sets_are_those_whose_pairs_may_share():
    known = {frozenset((a, b)) for a, b, _, _ in PAIRS}
    for held in ((), ("b",), ("c", "a")):
        templates = _joins(_book(max_jobs_per_gpu=4), tuple((n, None) for n in held))
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
            assert _members(template) == wanted
            twins = template.twins(len(held)).tolist()
            for row, twin in zip(template.workload.tolist(), twins, strict=True):
                alike = [x == y for x, y in pairwise(row[len(held) :])]
                assert twin == [False] * len(held) + [False, *alike]


def test_a_set_is_as_slow_as_its_pairs_predict():
    book = _book(max_jobs_per_gpu=3)
    pairs = [[1.0, 1.1, 1.15], [1.2, 1.0, 1.2], [1.05, 1.1, 1.0]]
    found = find(book, "V100", [("a", None), ("b", None), ("c", None)])
    assert found.slowdown == pytest.approx(set_slowdown(pairs))
    assert found in _figures(book)
    assert find(book, "V100", [("a", None), ("b", None), ("d", None)]) is None
    assert find(book, "V100", [("a", 30), ("b", 30), ("c", 30)]) is None
    assert find(_book(max_jobs_per_gpu=2), "V100", [(name, None) for name in "abc"]) is None


COSTLY, CHEAP = {25: (5.0, 2.2), 50: (8.0, 1.5)}, {25: (10.0, 1.1), 50: (10.0, 1.1)}
"""The rate alone and the slowdown in a pair at each cap."""


def _capped_book(most=4, sets=False, at=COSTLY):
    """Return estimates at 50/50, 25/50 and 25/25 for all pairs of three workloads."""
    caps = [(50, 50), (25, 50), (50, 25), (25, 25)]
    data = world(gpus=1, workloads=NAMES[:3], max_jobs_per_gpu=most, shares=[25, 50]).to_data()
    for name in NAMES[:3]:
        data["workloads"][name]["throughput"] = {"100": 10.0, "50": at[50][0], "25": at[25][0]}
    data["slowdowns"] = [
        {"pair": [a, b], "share": [x, y], "slowdown": [at[x][1], at[y][1]]}
        for a, b in combinations_with_replacement(NAMES[:3], 2)
        for x, y in caps
        if a != b or x <= y
    ]
    where = Instance.from_data(data)
    return BelievedSlowdowns(State(where, SlowdownTable.of(where), capped_sets=sets))


def test_sets_under_caps_fill_the_gpu_and_count_what_a_cap_costs_once():
    book = _capped_book()
    splits = {
        size: {
            tuple(row)
            for t in _joins(book, ())
            for row in t.share.tolist()
            if len(row) == size and all(row)
        }
        for size in (3, 4)
    }
    assert splits == {3: {(25, 25, 50)}, 4: {(25, 25, 25, 25)}}
    # At 25 % a job takes twice as long alone, at 50 % 1.25 times.
    found = find(book, "V100", [("a", 25), ("b", 25), ("c", 50)])
    ratios = [[1.0, 1.1, 1.1], [1.1, 1.0, 1.1], [1.2, 1.2, 1.0]]
    expected = [
        cost * one for cost, one in zip((2.0, 2.0, 1.25), set_slowdown(ratios), strict=True)
    ]
    assert found.slowdown == pytest.approx(expected)
    assert found in _figures(book)
    # c at 50 % has room for two more at 25 %, and for no three at once that were never estimated.
    joining = _joins(book, (("c", 50),))
    assert [tuple(map(int, t.share[0])) for t in joining if t.share.shape[1] > 2] == [(50, 25, 25)]
    assert find(book, "V100", [("a", 25), ("b", 30), ("c", 30)]) is None


def test_three_jobs_under_caps_start_together():
    jobs = trace(*((0, 1, 1000, name) for name in NAMES[:3]))
    for at, starts in ((CHEAP, [0, 0, 0]), (COSTLY, [0, 0, 1500])):
        where = _capped_book(most=3, at=at)._state.instance
        history = run(jobs, where, policy_named("dovetail"))
        assert [round(one.first_start_s) for one in history.outcomes] == starts
        if at is CHEAP:
            assert sorted(stay.shares[0] for stay in history.stays) == [25, 25, 50]


def test_where_caps_are_needed_no_set_forms_without():
    free, bound = (_capped_book(sets=sets) for sets in (False, True))
    assert find(bound, "V100", [(name, None) for name in "abc"]) is None
    assert find(bound, "V100", [("a", 25), ("b", 25), ("c", 50)])
    rows = [t for t in _joins(bound, ()) if t.share.shape[1] > 2]
    assert all(t.share.all() for t in rows)
    assert len(rows) == len([t for t in _joins(free, ()) if t.share.shape[1] > 2])


def test_where_there_are_too_many_sets_there_are_smaller_ones(monkeypatch):
    monkeypatch.setattr(beliefs, "_MOST_SETS", 3)
    sizes = [t.share.shape[1] for t in _joins(_book(max_jobs_per_gpu=4), ())]
    assert sizes == [2]
    held = (("a", None), ("b", None))
    sizes = [t.share.shape[1] for t in _joins(_book(max_jobs_per_gpu=4), held)]
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


def _behind_world(most=4, **slowdowns):
    """Return one GPU with a service ``a``, and workloads that may run in its idle time."""
    data = world(
        gpus=1, workloads=NAMES[:3], max_jobs_per_gpu=most, shares=["idle"], start_capped=False
    ).to_data()
    for name in "bc":
        data["workloads"][name]["isolation"] = "blocks"
    data["slowdowns"] = [
        {"pair": ["a", name], "share": [None, "idle"], "slowdown": [1.05, s], "p99": [tail, s]}
        for name, (s, tail) in slowdowns.items()
    ]
    return Instance.from_data(data)


def _with_service(jobs):
    first, *others = jobs.jobs
    service = dataclasses.replace(first, priority="latency", gsla=1.1)
    return Trace.of("service", [service, *others])


def test_sets_behind_a_job_are_those_whose_pairs_may_share():
    where = _behind_world(b=(1.5, 1.08), c=(2.0, 1.02))
    book = BelievedSlowdowns(State(where, SlowdownTable.of(where)))
    for held in ((), (("a", None),), (("a", None), ("c", IDLE)), (("c", IDLE), ("a", None))):
        found = {}
        for template in _joins(book, held):
            for row, share, slowdown, tail in zip(
                template.workload.tolist(),
                template.share.tolist(),
                template.slowdown.tolist(),
                template.tail.tolist(),
                strict=True,
            ):
                names = [NAMES[k] for k in row]
                found[tuple(sorted(names))] = names, share, slowdown, tail
        held_names = [name for name, _ in held]
        wanted = [
            ("a", *behind)
            for size in (1, 2, 3)
            for behind in combinations_with_replacement("bc", size)
            if not Counter(held_names) - Counter(("a", *behind)) and size + 1 > len(held)
        ]
        assert sorted(found) == sorted(wanted)
        for names, share, slowdown, tail in found.values():
            alone = {"b": 1.5, "c": 2.0}
            behind = len(names) - 1
            assert share == [0 if name == "a" else 101 for name in names]
            assert slowdown == [1.05 if name == "a" else behind * alone[name] for name in names]
            assert tail[names.index("a")] == (1.08 if "b" in names else 1.02)
            members = list(zip(names, (None if s == 0 else IDLE for s in share), strict=True))
            assert find(book, "V100", members).slowdown == tuple(slowdown)


def test_several_run_behind_a_service_until_they_end():
    where = _behind_world(b=(1.5, 1.08), c=(2.0, 1.02))
    jobs = trace((0, 1, 100_000, "a"), (1, 1, 1000, "b"), (2, 1, 2000, "b"), (3, 1, 100, "c"))
    history = run(_with_service(jobs), where, policy_named("dovetail"))
    starts = [outcome.first_start_s for outcome in history.outcomes]
    assert starts == [0, 1, 2, 3]
    # With both others each of three is slowed three times as much.
    assert history.outcomes[3].finish_s == pytest.approx(3 + 100 * 6.0)
    assert history.outcomes[0].worst_slowdown == 1.05


def test_those_behind_go_on_after_the_service_has_ended():
    where = _behind_world(b=(1.5, 1.08))
    jobs = trace((0, 1, 100, "a"), (1, 1, 1000, "b"), (2, 1, 1000, "b"))
    history = run(_with_service(jobs), where, policy_named("dovetail"))
    # They take turns then: of 2,000 s of work less what was done before.
    assert history.outcomes[0].finish_s == pytest.approx(105, abs=0.1)
    assert history.outcomes[2].finish_s == pytest.approx(105 + 2000 - 105 / 1.5, abs=3)


@pytest.mark.parametrize(("tail", "starts"), [(1.1, [0, 1, 2]), (1.11, [0, 1, None])])
def test_none_joins_behind_a_service_that_would_be_over_its_gsla(tail, starts):
    where = _behind_world(b=(1.5, 1.08), c=(2.0, tail))
    jobs = trace((0, 1, 10_000, "a"), (1, 1, 1000, "b"), (2, 1, 10, "c"))
    history = run(_with_service(jobs), where, policy_named("dovetail"))
    found = [outcome.first_start_s for outcome in history.outcomes]
    assert [start if start < 3 else None for start in found] == starts


def test_an_entry_of_a_set_counts_for_beliefs_and_for_the_truth():
    where = world(gpus=1, workloads=NAMES[:3], max_jobs_per_gpu=3)
    data = where.to_data() | {
        "slowdowns": [
            {"pair": ["a", "b"], "slowdown": [1.1, 1.1]},
            {"set": ["a", "b", "c"], "slowdown": [1.2, 1.3, 1.4]},
        ]
    }
    jobs = trace((0, 1, 1000, "a"), (1, 1, 1000, "b"), (2, 1, 10, "c"))
    history = run(jobs, Instance.from_data(data), policy_named("dovetail"))
    assert history.outcomes[2].first_start_s == 2
    assert history.outcomes[2].finish_s == pytest.approx(2 + 10 * 1.4)
    # One that says that they may not share is heard, too.
    pairs = [{"pair": [a, b], "slowdown": [1.1, 1.1]} for a, b in ("ab", "ac", "bc")]
    data["slowdowns"] = [*pairs, {"set": ["a", "b", "c"], "slowdown": None}]
    history = run(jobs, Instance.from_data(data), policy_named("dovetail"))
    assert history.outcomes[2].first_start_s > 1000
    assert all(stay.ending == "finished" for stay in history.stays)


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


def _declaring(draw):
    """Return a world of declared slowdowns with entries of some pairs, splits and sets."""
    names, entries, never = ("a", "b", "c", "d"), [], []
    for size, often in ((2, 0.5), (3, 0.2), (4, 0.1)):
        for members in combinations_with_replacement(names, size):
            # Jobs come one after the other: a set is of use only if its parts may share.
            forms = not any(part <= Counter(members) for part in never)
            if draw.random() > often or not forms:
                continue
            of_name = dict(zip(names, draw.uniform(0.95, 1.5, 4).round(3).tolist(), strict=True))
            slowdown = [of_name[name] for name in members]
            figures = {"slowdown": None if draw.random() < 0.15 else slowdown}
            never += [] if figures["slowdown"] else [Counter(members)]
            if figures["slowdown"] and draw.random() < 0.5:
                figures["p99"] = [value * 1.1 for value in slowdown]
            entries.append({"pair" if size == 2 else "set": list(members), **figures})
            if size == 2 and len({*members}) == 2 and draw.random() < 0.5:
                entries.append({"pair": list(members), "share": [40, 60], "slowdown": slowdown})
    rule = {"pair": float(draw.choice([1.1, 1.3])), "sets": "product"}
    rules = {"max_jobs_per_gpu": 4, "shares": [40, 60], "assumed": rule}
    where = world(nodes=2, gpus=2, workloads=names, memory_mib=4000.0, **rules)
    return Instance.from_data({**where.to_data(), "slowdowns": entries})


@pytest.mark.parametrize("seed", range(8))
def test_the_checker_passes_what_starts_by_a_declared_rule(seed):
    # The pool lets the checker judge each decision, which works the declared sets out itself.
    draw = np.random.default_rng(seed)
    jobs = [
        (
            float(draw.uniform(0, 300)),
            int(draw.choice([1, 1, 2])),
            float(draw.uniform(20, 300)),
            str(draw.choice(["a", "b", "c", "d"])),
            float(draw.uniform(1.1, 3.0)) if draw.random() < 0.7 else None,
        )
        for _ in range(40)
    ]
    made = trace(*sorted(jobs, key=lambda job: job[0]))
    made = Trace.of(
        "mixed",
        [
            dataclasses.replace(job, priority="latency" if draw.random() < 0.2 else "batch")
            for job in made.jobs
        ],
    )
    where = _declaring(draw)
    history = run(made, where, policy_named("dovetail:gpu_price=1"), Options(observe_s=10.0))
    together = Counter(
        sum(1 for other in history.stays if gpu in other.gpus and _meet(stay, other))
        for stay in history.stays
        for gpu in stay.gpus
    )
    assert max(together) > 2


def _meet(stay, other):
    """Return whether a stay begins while another lasts, itself included."""
    return other.start_s <= stay.start_s < other.end_s
