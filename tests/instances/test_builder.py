"""Instances made call by call: equal to those that are read, and wrong calls raise at once."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.library import load, names
from dovetail.solver.rounds import solve


def rebuilt(instance: Instance) -> Instance:
    """Return an instance whose nodes have GPUs of one model each, made by the calls."""
    data = instance.to_data()
    rules = {key: value for key, value in data["cluster"].items() if key != "nodes"}
    made = Instance.build(instance.name, **rules)
    for node in instance.cluster.nodes:
        (kind,) = {
            (g.model, g.memory_mib, g.sms, g.max_jobs, g.cost_per_hour) for g in node.devices
        }
        model, memory_mib, sms, max_jobs, cost = kind
        gpus = node.gpu_count or [gpu.id for gpu in node.devices]
        host = node.host and node.host.to_data()
        more = {"sms": sms, "max_jobs": max_jobs, "cost_per_hour": cost}
        more |= {"rack": node.rack, "host": host}
        made.add_node(node.id, gpus, model, memory_mib, **more)
    for name, workload in data["workloads"].items():
        made.add_workload(name, **workload)
    for job in data["jobs"]:
        made.add_job(**job)
    for entry in data.get("slowdowns", []):
        who = entry.pop("pair", None) or entry.pop("set")
        made.add_slowdown(who, **entry)
    return made.instance()


@pytest.mark.parametrize("name", names())
def test_every_shipped_instance_can_be_built(name):
    instance = load(name)
    assert rebuilt(instance) == instance


@pytest.fixture
def lab():
    """Two GPUs and three workloads."""
    made = Instance.build("lab", shares=[30, 50, 70])
    made.add_node("n", 2, "A100", 40000)
    for name in "abc":
        made.add_workload(name, 1000)
    return made


def columns(made, **changes):
    """Add two pairs by columns, with some of the columns changed."""
    usual = {"first": ["a", "b"], "second": ["b", "c"], "slowdown": [[1.1, 1.2], [1.3, 1.4]]}
    made.add_slowdowns(**{**usual, **changes})


@pytest.mark.parametrize("positions", [False, True])
def test_columns_are_the_entries_of_their_rows(lab, positions):
    rng = np.random.default_rng(3)
    first, second = np.array(["a", "a", "b", "c"]), np.array(["a", "b", "c", "b"])
    slowdown = 1 + rng.random((4, 2))
    slowdown[0] = slowdown[0, 0]
    upper, p99, power_w = slowdown + 0.1, slowdown * 2, rng.random(4) * 300
    share = np.array([[50, 50], [30, 70], [0, 0], [70, 0]])
    more = {"gpu_model": "A100", "source": "model", "confidence": 0.9}
    data = lab.instance().to_data()
    data["slowdowns"] = [
        {
            "pair": [str(first[k]), str(second[k])],
            "slowdown": slowdown[k].tolist(),
            **({"share": [cap or None for cap in share[k].tolist()]} if share[k].any() else {}),
            "upper": upper[k].tolist(),
            "p99": p99[k].tolist(),
            "power_w": float(power_w[k]),
            **more,
        }
        for k in range(4)
    ]
    if positions:
        first, second = ([list("abc").index(name) for name in names] for names in (first, second))
    columns = {"share": share, "upper": upper, "p99": p99, "power_w": power_w}
    lab.add_slowdowns(first, second, slowdown, **columns, **more)
    built, read = lab.instance(), Instance.from_data(data)
    assert built == read
    assert built.to_data() == read.to_data() == data
    assert [hash(entry) for entry in built.slowdowns] == [hash(e) for e in read.slowdowns]
    assert built.replace(name="again").slowdowns == read.slowdowns


def test_it_is_solved_as_it_is_and_more_can_be_added(lab):
    lab.add_job("x", "a")
    lab.add_job("y", "b", state="running", gpus=["n-0"])
    before = lab.instance()
    columns(lab, share=(30, 70))
    lab.add_slowdown(["a", "b"], None)
    lab.add_slowdown(["a", "b", "c"], np.array([2.0, 2, 3]))
    lab.add_job("z", "c", workers=np.int64(1), gsla=np.float32(1.5))
    assert repr(lab) == "<InstanceBuilder 'lab': 3 jobs, 2 GPUs, 4 slowdowns>"
    assert len(before.jobs) == 2
    assert before.slowdowns == ()
    made = lab.instance()
    assert Instance.from_data(made.to_data()) == made
    result = dovetail.solve(lab, objective="slowdown", seed=1)
    assert result.status == "optimal"
    assert check(made, result.plan).valid
    assert solve(made, "slowdown", seed=1).plan.assignments == result.plan.assignments


WRONG = [
    (lambda m: m.add_node("n", 1, "T4", 1), "nodes[1].id: node ids must differ, got 'n' twice"),
    (lambda m: m.add_node("m", 0, "T4", 1), "nodes[1].gpu_count: must be >= 1, got 0"),
    (lambda m: m.add_node("m", ["n-1"], "T4", 1), "GPU ids must differ, got 'n-1' twice"),
    (lambda m: m.add_node("m", ["g", "g"], "T4", 1), "GPU ids must differ, got 'g' twice"),
    (lambda m: m.add_node("m", 1, "A100", 1, max_jobs=1), "must be the same on all GPUs of model"),
    (
        lambda m: m.add_node("m", 1, "T4", 1, cost_per_hour=0.5),
        "nodes[1].gpu.cost_per_hour: must be given for all GPU models or for none: "
        "model 'A100' has null, 'T4' 0.5",
    ),
    (
        lambda m: m.add_node("m", 1, "T4", 1, cost_per_hour=0),
        "nodes[1].gpu.cost_per_hour: must be > 0, got 0",
    ),
    (lambda m: m.add_workload("a", 1), "workloads.a: workload names must differ"),
    (lambda m: m.add_workload("", 1), "workloads.name: must not be empty"),
    (lambda m: m.add_workload("d", -1), "workloads.d.memory_mib: must be >= 0, got -1"),
    (lambda m: m.add_workload("d", 1, memory=1), "unknown field, did you mean memory_mib?"),
    (
        lambda m: m.add_job("j", "d"),
        "jobs[0].workload: must be one of workloads (a, b, c), got 'd'",
    ),
    (lambda m: m.add_job("j", "a", gsla=0.5), "jobs[0].gsla: must be >= 1, got 0.5"),
    (lambda m: m.add_job("j", "a", gpus=["n-0"]), "only a running job has this field"),
    (lambda m: m.add_job("j", "a", state="running", gpus=["x"]), "must be a GPU of the cluster"),
    (
        lambda m: m.add_slowdown(["a", "d"], [1, 1]),
        "slowdowns[0].pair[1]: must be one of workloads",
    ),
    (lambda m: m.add_slowdown(["a", "b"], [1, 0]), "slowdowns[0].slowdown[1]: must be >= 0.001"),
    (lambda m: m.add_slowdown(["a", "b"], [1]), "must have 2 items, got 1"),
    (
        lambda m: columns(m, first=["a", "d"]),
        "first[1]: must be one of workloads (a, b, c), got 'd'",
    ),
    (lambda m: columns(m, second=[1, 3]), "second[1]: must be a position from 0 to 2, got 3"),
    (lambda m: columns(m, second=[1, -1]), "second[1]: must be a position from 0 to 2, got -1"),
    (lambda m: columns(m, second=["b"]), "second: must have as many workloads as first, 2"),
    (lambda m: columns(m, first=[["a"], ["b", "c"]]), "first: must be a list of workloads"),
    (lambda m: columns(m, slowdown=[1.1, 1.2]), "slowdown: must have shape (2, 2), got (2,)"),
    (lambda m: columns(m, slowdown="x"), "slowdown: must be numbers"),
    (
        lambda m: columns(m, slowdown=[[1.1, 1.2], [1.3, np.nan]]),
        "slowdown[1, 1]: must be a finite",
    ),
    (lambda m: columns(m, slowdown=[[1.1, 1.2], [0, 1.3]]), "slowdown[1, 0]: must be >= 0.001"),
    (lambda m: columns(m, slowdown=[[110, 120], [130, 140]]), "as percentages are"),
    (lambda m: columns(m, slowdown=[[0.5, 0.6], [0.7, 0.8]]), "as speeds are"),
    (lambda m: columns(m, second=["b", "b"]), "pairs[1].slowdown[1]: must equal slowdown[0] (1.3)"),
    (lambda m: columns(m, upper=[[2, 2], [2, 1.3]]), "pairs[1].upper[1]: must be >= slowdown[1]"),
    (lambda m: columns(m, share=[[0, 0], [0, 101]]), "pairs[1].share[1]: must be <= 100, got 101"),
    (lambda m: columns(m, share=[0.3, 0.7]), "share: must be whole numbers, 0 for no limit"),
    (lambda m: columns(m, share=[30]), "share: must have shape (2,) or (2, 2), got (1,)"),
    (lambda m: columns(m, power_w=[1, 0]), "power_w[1]: must be > 0, got 0.0"),
    (lambda m: columns(m, confidence=0.9), "confidence: must be absent without upper"),
    (
        lambda m: columns(m, source="guess"),
        "source: must be 'measured', 'model', 'estimate' or 'assumed'",
    ),
    (lambda m: columns(m, first="ab", second="bc"), "first: must be a list of workloads"),
    (
        lambda m: columns(m, first=["a", "b"], second=["b", "a"]),
        "pairs[1]: (b, a) at these shares and model was already given",
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_raises_where_it_stands_and_adds_nothing(lab, call, message):
    before = lab.instance()
    with pytest.raises(InputError) as caught:
        call(lab)
    assert message in str(caught.value)
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(caught.tb)[1:])
    assert lab.instance() == before
    assert repr(lab) == "<InstanceBuilder 'lab': 0 jobs, 2 GPUs, 0 slowdowns>"
    lab.add_node("m", ["g"], "T4", 1)  # nothing of it is remembered either
    lab.add_workload("d", 1)
    lab.add_job("j", "a", state="running", gpus=["n-0"])
    columns(lab)


@pytest.mark.parametrize("again", [["a", "b"], ["b", "a"]])
def test_a_pair_is_added_once_however(lab, again):
    columns(lab)
    columns(lab, share=(30, 70))
    columns(lab, gpu_model="A100")
    with pytest.raises(InputError, match="already given"):
        lab.add_slowdown(again, [1.1, 1.2])
    with pytest.raises(InputError, match=r"pairs\[0\]: .* already given"):
        columns(lab, first=[again[0]], second=[again[1]], slowdown=[[1.1, 1.2]])
    lab.add_slowdown(["a", "b", "c"], [1, 1, 1])
    with pytest.raises(InputError, match="already given"):
        lab.add_slowdown(["c", "a", "b"], [1, 1, 1])
    assert Instance.from_data(lab.instance().to_data()) == lab.instance()


def test_gangs_and_rules_are_those_of_a_file():
    with pytest.raises(InputError, match=r"cluster\.shares\[0\]: must be >= 1, got 0"):
        Instance.build("x", shares=[0])
    with pytest.raises(InputError, match="name: must not be empty"):
        Instance.build("")
    made = Instance.build("x", max_jobs_per_gpu=1)
    made.add_node("n", 1, "A100", 40000)
    made.add_node("m", 1, "T4", 16000)
    made.add_workload("a", 1000)
    with pytest.raises(InputError, match="GPUs must be of one model"):
        made.add_job("j", "a", workers=2, state="running", gpus=["n-0", "m-0"])
    made.add_job("j", "a", state="running", gpus=["n-0"])
    with pytest.raises(InputError, match="may hold at most 1 jobs"):
        made.add_job("k", "a", state="running", gpus=["n-0"])


def test_columns_cost_less_than_a_dictionary():
    """In processes of their own, whose peaks of memory are theirs: 124,750 pairs."""
    program = [sys.executable, Path(__file__).parents[2] / "benchmarks" / "building.py", "500"]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    columns, dictionaries = (line.split() for line in ran.stdout.splitlines())
    assert float(columns[1]) < 0.8 * float(dictionaries[1])
    assert float(columns[3]) < 0.8 * float(dictionaries[3])


def test_a_call_costs_the_same_however_much_is_there():
    """Work is counted by the calls of Python's functions: no time of a busy machine."""

    def calls(made, names):
        count = 0

        def counted(frame, event, argument):
            nonlocal count
            count += event == "call"

        sys.setprofile(counted)
        try:
            for name in names:
                made.add_workload(name, 1)
                made.add_job(name, name)
                made.add_node(name, 1, "A100", 1)
                made.add_slowdown([name, name], [1.1, 1.1])
                made.add_slowdowns([name], [name], [[1.1, 1.1]], share=(50, 50))
        finally:
            sys.setprofile(None)
        return count

    made = Instance.build("x")
    early = calls(made, [f"early {k}" for k in range(20)])
    calls(made, [f"middle {k}" for k in range(1000)])
    late = calls(made, [f"late {k}" for k in range(20)])
    assert late <= 1.1 * early


def test_entries_have_the_mode_of_the_cluster():
    sliced = Instance.build("turns", sharing="time_sliced")
    sliced.add_workload("a", 1000.0)
    sliced.add_workload("b", 1000.0)
    sliced.add_slowdown(["a", "a"], [2.0, 2.0])
    sliced.add_slowdowns(["a"], ["b"], [[1.9, 1.8]])
    made = sliced.instance()
    assert [entry.mode for entry in made.slowdowns] == ["time_sliced"] * 2
    assert Instance.from_data(made.to_data()) == made
    with pytest.raises(InputError, match=r"^slowdowns\[2\]\.share\[0\]: mode time_sliced has no"):
        sliced.add_slowdown(["b", "b"], [1.5, 1.5], share=[50, 50])
    with pytest.raises(InputError, match=r"^slowdowns\[2\]\.mode: must be the cluster's sharing"):
        sliced.add_slowdown(["b", "b"], [1.5, 1.5], mode="mps")
