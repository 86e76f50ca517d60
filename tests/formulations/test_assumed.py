"""Slowdowns that an owner declares, against written-out arithmetic and plain enumeration."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement
from math import comb, inf, prod
from random import Random

import pytest

from dovetail.formulations.budget import UNLIMITED, Budget, OutOfTimeError, WorkClock
from dovetail.formulations.instance_slowdowns import InstanceSlowdowns
from dovetail.formulations.slowdowns import Sharing
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.rounds import solve
from tests.formulations.members import on


def round_of(workloads, jobs, slowdowns=(), memory_mib=10_000, gpus=1, most=4, **assumed):
    """Return a round; ``workloads`` has the memory of each, ``jobs`` the fields of each."""
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "declared",
            "cluster": {
                "max_jobs_per_gpu": most,
                "assumed": assumed,
                "nodes": [
                    {
                        "id": "n",
                        "gpu_count": gpus,
                        "gpu": {"model": "A", "memory_mib": memory_mib},
                    }
                ],
            },
            "workloads": {name: {"memory_mib": mib} for name, mib in workloads.items()},
            "jobs": [{"id": f"j{k}", **job} for k, job in enumerate(jobs)],
            "slowdowns": list(slowdowns),
        }
    )


def of(*names):
    return [{"workload": name} for name in names]


def placed(instance):
    """Return the slowdown of each placed job by the proven plan, which the checker passes."""
    result = solve(instance)
    report = check(instance, result.plan)
    assert (result.status, report.violations) == ("optimal", ())
    return {row.job: row.slowdown for row in result.plan.assignments}


def test_a_pair_without_an_entry_has_the_declared_slowdown():
    assert placed(round_of({"a": 1, "b": 1}, of("a", "b"), pair=1.1)) == {"j0": 1.1, "j1": 1.1}


def test_an_entry_comes_first_and_null_forbids():
    entries = [
        {"pair": ["a", "b"], "slowdown": [1.02, 1.03]},
        {"pair": ["a", "c"], "slowdown": None},
    ]
    instance = round_of({"a": 1, "b": 1, "c": 1}, of("a", "b", "c"), entries, most=2, pair=1.5)
    assert placed(instance) == {"j0": 1.02, "j1": 1.03}
    alone = instance.with_jobs(job for job in instance.jobs if job.workload != "b")
    assert len(placed(alone)) == 1


def test_the_slowdowns_of_a_set_are_products():
    entries = [{"pair": ["a", "b"], "slowdown": [1.2, 1.3]}]
    found = placed(round_of({"a": 1, "b": 1}, of("a", "b", "b"), entries, pair=1.1, sets="product"))
    assert found == pytest.approx({"j0": 1.2 * 1.2, "j1": 1.3 * 1.1, "j2": 1.3 * 1.1})


def test_without_a_rule_for_sets_only_pairs_share():
    assert len(placed(round_of({"a": 1}, of("a", "a", "a"), pair=1.0))) == 2


def test_any_number_shares_whose_memory_fits():
    found = placed(
        round_of({"a": 2000}, of(*"a" * 24), memory_mib=46_068, most=24, pair=1.0, sets="product")
    )
    assert found == dict.fromkeys([f"j{k}" for k in range(23)], 1.0)


def test_a_forbidden_set_forbids_larger_ones():
    entries = [{"set": ["a", "a", "b"], "slowdown": None}]
    jobs = of("a", "a", "b", "b", "b")
    found = placed(round_of({"a": 1, "b": 1}, jobs, entries, most=5, pair=1.0, sets="product"))
    assert len(found) == 4  # one a and three b


def test_bounds_are_products_of_bounds_and_hold_when_jobs_end():
    entries = [{"pair": ["a", "a"], "slowdown": [0.9, 0.9], "upper": [0.95, 0.95]}]
    rule = {"pair": 1.1, "sets": "product", "most": 3}

    def both(gsla):
        jobs = [{"workload": "a", "gsla": gsla}, *of("a", "b")]
        return placed(round_of({"a": 1, "b": 1}, jobs, entries, **rule))

    # Beside a and b the slowdown is 0.9 x 1.1, but when the other a has ended it is 1.1.
    assert both(1.1) == pytest.approx({"j0": 0.99, "j1": 0.99, "j2": 1.21})
    assert len(both(1.09)) < 3


def test_an_entry_of_a_set_does_not_hide_what_is_left_of_it():
    entries = [{"set": ["a"] * 4, "slowdown": [1.01] * 4}]

    def number(gsla):
        jobs = [{"workload": "a", "gsla": gsla}] * 4
        return len(placed(round_of({"a": 1}, jobs, entries, pair=1.1, sets="product")))

    assert (number(1.2), number(1.22)) == (2, 4)  # three that are left: 1.1 x 1.1


def test_the_plan_and_the_explanation_call_the_numbers_assumed():
    instance = round_of({"a": 4000}, of("a", "a", "a"), pair=1.1)
    plan = solve(instance).plan
    assert [row.source for row in plan.assignments] == ["assumed"] * 2
    assert not any("unknown" in note or "no known" in note for note in plan.notes)
    assert "(assumed)" in explain(instance, plan, "j0").reason


def test_measured_pairs_of_a_set_are_assumed_too():
    entries = [{"pair": ["a", "a"], "slowdown": [1.1, 1.1], "source": "measured"}]
    plan = solve(round_of({"a": 1}, of("a", "a", "a"), entries, sets="product")).plan
    assert [row.source for row in plan.assignments] == ["assumed"] * 3


def test_jobs_with_caps_need_entries():
    data = round_of({"a": 1}, of("a"), pair=1.1, sets="product").to_data()
    data["cluster"]["shares"] = [50]
    running = {"state": "running", "gpus": ["n-0"], "share": [50], "workload": "a", "id": "r"}
    assert placed(Instance.from_data({**data, "jobs": [running, *data["jobs"]]})) == {"r": 1.0}


def test_jobs_join_running_jobs_by_the_rule():
    running = [{"workload": "a", "state": "running", "gpus": ["n-0"]}] * 2
    rule = {"pair": 1.1, "sets": "product"}
    found = placed(round_of({"a": 1, "b": 1}, [*running, *of("b", "b")], **rule))
    assert found == pytest.approx(dict.fromkeys(["j0", "j1", "j2", "j3"], 1.1**3))


def test_energy_needs_power():
    data = round_of({"a": 1}, of("a", "a"), pair=1.1).to_data()
    data["workloads"]["a"]["power_w"] = 100
    with pytest.raises(InputError, match=r"^cluster\.assumed: objective energy needs the power"):
        solve(Instance.from_data(data), "energy")


@pytest.mark.parametrize("seed", range(20))
def test_the_sets_are_those_of_plain_enumeration(seed):
    draw = Random(seed)
    names = "abcde"[: draw.randint(2, 5)]
    memory = {name: draw.choice([500, 2000, 3500]) for name in names}
    gsla = {name: draw.choice([None, 1.3, 1.6]) for name in names}
    jobs = [
        {"workload": name, **({"gsla": gsla[name]} if gsla[name] else {})}
        for name in names
        for _ in range(draw.randint(1, 3))
    ]
    entries = [
        {"pair": list(both), "slowdown": draw.choice([None, [1.2, 1.2]])}
        for both in combinations_with_replacement(names, 2)
        if draw.random() < 0.4
    ]
    forbidden = sorted(draw.choices(names, k=3))
    entries.append({"set": forbidden, "slowdown": None})
    instance = round_of(memory, jobs, entries, most=5, pair=1.1, sets="product")
    known = InstanceSlowdowns(instance)
    found = {}
    for rows in known.joins_by_rule(on("A"), (), UNLIMITED):
        for k, members in enumerate(rows.workload.tolist()):
            key = "".join(sorted(known.workloads[w] for w in members))
            assert key not in found
            found[key] = rows.figures(k)
    given = {frozenset(e["pair"]): e["slowdown"] for e in entries if "pair" in e}
    count = {name: sum(job["workload"] == name for job in jobs) for name in names}

    def factor(one, other):
        figures = given.get(frozenset((one, other)), [1.1])
        return inf if figures is None else figures[0]

    def slowdowns(members):
        return [
            prod(factor(one, other) for j, other in enumerate(members) if j != i)
            for i, one in enumerate(members)
        ]

    expected = {
        "".join(members)
        for size in (3, 4, 5)
        for members in combinations_with_replacement(names, size)
        if all(members.count(name) <= count[name] for name in members)
        and sum(memory[name] for name in members) <= 10_000
        and all(forbidden != list(some) for some in combinations(members, 3))
        and all(
            slow <= (gsla[name] or 1e9) * (1 + 1e-9)
            for name, slow in zip(members, slowdowns(members), strict=True)
        )
    }
    assert set(found) == expected
    for key, figures in found.items():
        assert isinstance(figures, Sharing)
        assert sorted(figures.slowdown) == pytest.approx(sorted(slowdowns(key)))


def test_a_round_with_too_many_sets_is_refused_before_they_take_memory(monkeypatch):
    names = [f"w{k}" for k in range(60)]
    instance = round_of(dict.fromkeys(names, 1), of(*names), most=4, pair=1.0, sets="product")
    monkeypatch.setattr("dovetail.formulations.budget.room_bytes", lambda: 4e7)
    with pytest.raises(UnsupportedError, match=r"^the sets of . of 60 workloads that cluster\.ass"):
        solve(instance)


def test_growing_sets_hears_the_budget():
    names = [f"w{k}" for k in range(60)]
    known = InstanceSlowdowns(
        round_of(dict.fromkeys(names, 1), of(*names), pair=1.0, sets="product")
    )
    clock = WorkClock()
    with pytest.raises(OutOfTimeError):
        list(known.joins_by_rule(on("A"), (), Budget(0.05, clock)))
    sizes = [len(rows) for rows in known.joins_by_rule(on("A"), (), UNLIMITED)]
    assert sizes == [comb(60, 3), comb(60, 4)]


def test_without_time_there_is_a_plan_and_a_bound():
    names = [f"w{k}" for k in range(60)]
    instance = round_of(dict.fromkeys(names, 1), of(*names), gpus=3, pair=1.01, sets="product")
    result = solve(instance, time_limit=0.0)
    assert not check(instance, result.plan).violations
    assert result.bound is None or result.bound >= 12 / 1.01**3 - 1e-9
