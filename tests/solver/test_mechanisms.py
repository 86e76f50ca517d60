"""Clusters with GPUs under MPS beside time-sliced ones: plans, checks, reasons and commands."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.importers.pairs import with_pairs
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES
from dovetail.instances.plan import Assignment, Plan
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.planning.starting import ranks, shell_lines
from dovetail.predictors.fill import predict
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.rounds import solve
from tests.oracle import optimum
from tests.solver.contract import FAR, GANGS, assert_proven
from tests.strategies import Shape, random_instance

MPS, TIME_SLICED = "mps", "time_sliced"
ENTRIES = [
    {"pair": ["a", "b"], "slowdown": [1.25, 1.6]},
    {"pair": ["a", "b"], "slowdown": [2.0, 1.6], "mode": TIME_SLICED},
]


def two_ways(jobs, slowdowns=None, gpus=(None, TIME_SLICED), **rules):
    """Return a round on GPUs of one model, shared in these ways; None for the cluster's.

    By default it has those of ``ENTRIES`` that hold on a GPU.
    """
    modes = {way or rules.get("sharing", MPS) for way in gpus}
    known = [entry for entry in ENTRIES if entry.get("mode", MPS) in modes]
    devices = [
        {"id": f"g{k}", "model": "A", "memory_mib": 100, **({"sharing": way} if way else {})}
        for k, way in enumerate(gpus)
    ]
    data = {
        "name": "two ways",
        "cluster": {"nodes": [{"id": "n", "gpus": devices}], **rules},
        "workloads": {name: {"memory_mib": 1} for name in "abc"},
        "jobs": [{"id": f"j{k}", **job} for k, job in enumerate(jobs)],
        "slowdowns": known if slowdowns is None else list(slowdowns),
    }
    return Instance.from_data(data)


def job(workload, **fields):
    return {"workload": workload, **fields}


def running(workload, gpu, **fields):
    return job(workload, state="running", gpus=[gpu], **fields)


def value(instance, objective="throughput"):
    result = solve(instance, objective)
    assert result.status == "optimal"
    return result.plan.objective.value


def test_each_gpu_has_the_slowdowns_of_its_mechanism():
    result = solve(two_ways([job("a"), job("b"), job("a"), job("b")]))
    slowdowns = sorted((row.gpus, row.slowdown) for row in result.plan.assignments)
    assert slowdowns == [(("g0",), 1.25), (("g0",), 1.6), (("g1",), 1.6), (("g1",), 2.0)]
    assert result.plan.objective.value == pytest.approx(1 / 1.25 + 1 / 1.6 + 1 / 2.0 + 1 / 1.6)


def test_the_cluster_says_it_of_all_other_gpus():
    jobs = [job("a"), job("b")]
    assert value(two_ways(jobs, gpus=[None])) == pytest.approx(1 / 1.25 + 1 / 1.6)
    turns = two_ways(jobs, gpus=[None], sharing=TIME_SLICED)
    assert value(turns) == pytest.approx(1 / 2.0 + 1 / 1.6)
    one_mps = two_ways(jobs, gpus=[MPS], sharing=TIME_SLICED)
    assert value(one_mps) == pytest.approx(1 / 1.25 + 1 / 1.6)


def test_the_fewest_gpus_are_those_that_are_shared_well():
    """Only under MPS does a keep its gSLA, so one GPU is enough if it is under MPS."""
    jobs = [job("a", gsla=1.5), job("b")]
    assert value(two_ways(jobs), "fewest") == 1
    assert value(two_ways(jobs, gpus=[TIME_SLICED] * 2), "fewest") == 2


def test_a_job_shares_by_its_mechanism_only_and_runs_alone_anywhere():
    jobs = [job("a", sharing=TIME_SLICED), job("b")]
    assert value(two_ways(jobs, gpus=[MPS])) == 1.0
    assert value(two_ways(jobs, gpus=[TIME_SLICED])) == pytest.approx(1 / 2.0 + 1 / 1.6)
    assert value(two_ways([job("a", sharing=TIME_SLICED)], gpus=[MPS])) == 1.0


def test_nothing_joins_a_job_that_shares_in_another_way():
    alone = running("a", "g0", sharing=TIME_SLICED)
    result = solve(two_ways([alone, job("b")], gpus=[MPS]))
    (waits,) = result.plan.waiting
    assert waits.reason == (
        "sharing: j0 shares a GPU only by time slicing, and g0 is shared by MPS"
    )
    plan = Plan(assignments=(put("j0", "g0", start=False), put("j1", "g0")))
    report = check(two_ways([alone, job("b")], gpus=[MPS]), plan)
    assert [str(each) for each in report.violations] == [
        "GPU g0: sharing: j0 shares GPUs by time_sliced only, and this one is shared by mps"
    ]


def put(name, gpu, share=None, start=True):
    return Assignment(job=name, gpus=(gpu,), share=(share,), start=start)


def test_the_reason_names_the_mechanism_that_a_job_needs():
    instance = two_ways([running("a", "g0"), job("b", sharing=MPS)], gpus=[TIME_SLICED])
    result = solve(instance)
    (waits,) = result.plan.waiting
    assert waits.reason == (
        "sharing: it needs a GPU shared by MPS or one to itself, and g0 is shared by time slicing"
    )
    texts = [remedy.text for remedy in explain(instance, result.plan, "j1").remedies]
    assert any("once j0 has ended" in text for text in texts)
    assert any("1 more A" in text for text in texts)


def test_caps_are_given_under_mps_only():
    entries = [*ENTRIES, {"pair": ["a", "b"], "share": [40, 60], "slowdown": [1.1, 1.1]}]
    instance = two_ways([job("a"), job("b")] * 2, entries, shares=[40, 60])
    shares = {row.gpus[0]: row.share for row in solve(instance).plan.assignments}
    assert shares["g0"] in ((40,), (60,))
    assert shares["g1"] is None or shares["g1"] == (None,)
    plan = Plan(assignments=(put("j0", "g1", 40), put("j1", "g1", 60)))
    broken = {each.rule for each in check(instance, plan).violations}
    assert {"share", "entry"} <= broken


def test_a_job_starts_capped_under_mps_only():
    data = two_ways([job("a")], shares=[50], start_capped=True).to_data()
    data["workloads"]["a"]["throughput"] = {"100": 1.0, "50": 1.25}
    instance = Instance.from_data(data)
    assert value(instance) == pytest.approx(1.25)
    (row,) = solve(instance).plan.assignments
    assert (row.gpus, row.share) == (("g0",), (50,))
    turns = two_ways([job("a")], gpus=[TIME_SLICED]).to_data()
    turns["cluster"] |= {"start_capped": True}
    assert value(Instance.from_data(turns)) == 1.0


def test_a_gang_may_span_both_mechanisms():
    assert value(two_ways([job("a", workers=2)])) == 1.0
    both = two_ways([job("a", workers=2, sharing=MPS), job("b")])
    result = solve(both, "slowdown")
    assert {row.job: row.gpus for row in result.plan.assignments}["j1"] == ("g0",)


def test_a_running_job_on_a_shared_gpu_fits_its_mechanism():
    with pytest.raises(InputError) as found:
        two_ways([running("a", "g1", sharing=MPS), running("b", "g1")])
    assert str(found.value) == (
        "jobs[1].gpus[0]: must hold 'j0' alone, which shares a GPU only if it is mps, "
        "got 'g1' with more jobs, time_sliced"
    )
    with pytest.raises(InputError, match="must hold 'j1' alone"):
        two_ways([running("b", "g1"), running("a", "g1", sharing=MPS)])
    two_ways([running("a", "g0", sharing=MPS), running("b", "g0"), running("c", "g1")])


def test_an_entry_is_of_a_mechanism_of_the_cluster_and_listed_once_for_each():
    with pytest.raises(InputError, match=r"slowdowns\[1\]\.mode: must be the cluster's sharing"):
        two_ways([job("a")], ENTRIES, gpus=[None])
    with pytest.raises(InputError, match=r"slowdowns\[2\]: .* already in slowdowns\[1\]"):
        two_ways([job("a")], [*ENTRIES, ENTRIES[1]])
    with pytest.raises(InputError, match=r"cluster\.shares\[0\]: sharing time_sliced has no caps"):
        two_ways([], [], gpus=[TIME_SLICED], sharing=TIME_SLICED, shares=[50])


def test_an_instance_built_call_by_call_has_both_mechanisms():
    made = Instance.build("two ways")
    made.add_node("n0", 1, "A", 100)
    made.add_workload("a", 1)
    made.add_workload("b", 1)
    with pytest.raises(InputError, match=r"slowdowns\[0\]\.mode: must be the cluster's sharing"):
        made.add_slowdown(["a", "b"], [2.0, 1.6], mode=TIME_SLICED)
    made.add_node("n1", 1, "A", 100, sharing=TIME_SLICED)
    made.add_slowdown(["a", "b"], [1.25, 1.6])
    made.add_slowdown(["a", "b"], [2.0, 1.6], mode=TIME_SLICED)
    made.add_slowdowns(["a"], ["a"], [[1.5, 1.5]], mode=TIME_SLICED)
    with pytest.raises(InputError, match="already given"):
        made.add_slowdowns(["b"], ["a"], [[1.5, 1.5]], mode=TIME_SLICED)
    with pytest.raises(InputError, match="time_sliced has no caps"):
        made.add_slowdowns(
            ["a", "b"], ["b", "b"], [[1.5, 1.5]] * 2, share=[[0, 0], [50, 50]], mode=TIME_SLICED
        )
    for k, workload in enumerate("abab"):
        made.add_job(f"j{k}", workload)
    assert value(made.instance()) == pytest.approx(1 / 1.25 + 1 / 1.6 + 1 / 2.0 + 1 / 1.6)
    assert Instance.from_data(made.instance().to_data()) == made.instance()


def test_commands_name_the_gpus_without_mps():
    instance = two_ways([job("a"), job("b"), job("a"), job("b")])
    plan = solve(instance).plan
    text = "\n".join(shell_lines(instance, (), ranks(instance, plan)))
    assert "no MPS daemon may run on g1." in text
    turns = two_ways([job("a")], [], gpus=[TIME_SLICED])
    plan = solve(turns).plan
    text = "\n".join(shell_lines(turns, (), ranks(turns, plan)))
    assert "no MPS daemon may run on the nodes." in text


def test_predictions_are_of_each_mechanism():
    metrics = {"gpu_util": 0.4, "sm_active": 0.3, "mem_util": 0.2}
    data = two_ways([job("a"), job("b", sharing=MPS), job("c")], ENTRIES[:1]).to_data()
    for workload in data["workloads"].values():
        workload["metrics"] = metrics
    data["cluster"]["uncapped"] = True
    filled = predict(Instance.from_data(data), "analytic")
    modes = {(frozenset(entry.pair), entry.mode) for entry in filled.slowdowns}
    # b may share under MPS only.
    assert modes == {
        (frozenset("ab"), MPS),
        (frozenset("bc"), MPS),
        (frozenset("ac"), MPS),
        (frozenset("ac"), TIME_SLICED),
    }
    assert filled.slowdowns[0] == Instance.from_data(data).slowdowns[0]


def test_policies_and_simulations_refuse_such_a_cluster():
    with pytest.raises(InputError) as found:
        SlowdownTable.of(two_ways([]))
    assert str(found.value) == (
        "cluster.nodes[0].gpus[1].sharing: must be the cluster's sharing in simulations and "
        "policies, mps, got time_sliced"
    )


SHAPES = (
    Shape(jobs=4, gpus=3, mechanisms=True),
    Shape(jobs=5, gpus=3, gangs=False, mechanisms=True, assumed=True, power=False),
    Shape(jobs=4, gpus=3, hosts=True, mechanisms=True, models=False),
    replace(GANGS, shares=True, running=True, mechanisms=True),
)


@pytest.mark.parametrize("seed", range(60))
def test_rounds_are_planned_exactly(seed):
    draw = Random(f"mechanisms {seed}")
    shape = SHAPES[seed % len(SHAPES)]
    instance = random_instance(draw, shape)
    objective = draw.choice([o for o in OBJECTIVES if shape.power or o != "energy"])
    best = optimum(instance, objective)
    for solver in ("auto", "matching", "cpsat", "highs"):
        try:
            result = solve(instance, objective, solver, time_limit=FAR)
        except UnsupportedError:
            continue
        assert_proven(result, instance, objective, best.value, best.placed_weight)


def test_the_gpus_of_a_node_are_built_with_a_mechanism_each():
    made = Instance.build("two ways")
    with pytest.raises(InputError, match=r"nodes\[0\]\.sharing: must have 3 items, got 2"):
        made.add_node("n", 3, "A", 100, sharing=[MPS, None])
    with pytest.raises(InputError, match=r"nodes\[0\]\.gpus\[1\]\.sharing: must be 'mps' or"):
        made.add_node("n", 2, "A", 100, sharing=[MPS, "mig"])
    made.add_node("n", 2, "A", 100, sharing=[None, TIME_SLICED])
    made.add_node("m", ["x"], "A", 100, sharing=TIME_SLICED)
    ways = {gpu: place.gpu.sharing for gpu, place in made.instance().places.items()}
    assert ways == {"n-0": None, "n-1": TIME_SLICED, "x": TIME_SLICED}


def test_measured_pairs_of_both_mechanisms_are_added(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text(
        "workload_1,workload_2,slowdown_1,slowdown_2,gpu_model,mode\n"
        "a,c,1.2,1.3,A,mps\n"
        "a,c,1.7,1.8,A,time_sliced\n"
    )
    both = with_pairs(two_ways([]), table)
    added = [(entry.mode, entry.slowdown) for entry in both.instance.slowdowns[2:]]
    assert added == [(MPS, (1.2, 1.3)), (TIME_SLICED, (1.7, 1.8))]
    one = with_pairs(two_ways([], gpus=[None]), table)
    assert [entry.mode for entry in one.instance.slowdowns] == [MPS, MPS]
    assert "1 of mode time_sliced are left out" in one.notes
