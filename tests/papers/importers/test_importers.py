"""Importers of papers: hand-made files with known slowdowns, broken files, and published optima."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from dovetail.instances.errors import InputError
from dovetail.instances.importers.pairs import import_pairs
from dovetail.instances.instance import Instance
from dovetail.papers.importers.gavel import import_gavel
from dovetail.papers.importers.lucid import import_lucid
from tests.instances.test_importers import slowdowns_of

DATA = Path(__file__).parents[3].parent / "shared" / "data"
published = pytest.mark.skipif(
    not DATA.is_dir(), reason="needs ../shared/data: python benchmarks/fetch_data.py"
)

# --- gavel: "a" does 10 it/s alone, "b" 4; together 5 and 2; "b" with "b" does not run.

A, B, A2 = "('a', 1)", "('b', 1)", "('a', 2)"
DEVICE = {
    A: {"null": 10.0, A: [4.0, 6.0], B: [5.0, 2.0], A2: [0.0, 0.0]},
    B: {"null": 4.0, A: [2.0, 5.0], B: [0.0, 0.0]},
    A2: {"null": 16.0, A: [0.0, 0.0]},
}


def gavel_file(folder: Path, device: object = DEVICE) -> str:
    path = folder / "throughputs.json"
    path.write_text(json.dumps({"k80": device}))
    return str(path)


def trace_file(folder: Path, *rows: str) -> str:
    path = folder / "some.trace"
    path.write_text("".join(row + "\n" for row in rows))
    return str(path)


def test_gavel_turns_throughputs_into_slowdowns(tmp_path):
    instance = import_gavel(gavel_file(tmp_path), "k80", 3)
    # a with itself: mean of 4 and 6 it/s is 5 of 10, so 2.
    assert slowdowns_of(instance) == {
        ("a", "a"): pytest.approx((2, 2)),
        ("a", "b"): pytest.approx((2, 2)),
        ("b", "b"): None,
    }
    assert [job.id for job in instance.jobs] == ["a", "b"]
    assert [len(node.devices) for node in instance.cluster.nodes] == [3]
    assert {place.gpu.model for place in instance.places.values()} == {"k80"}
    assert instance.cluster.shares == ()


def test_gavel_both_orders_of_a_pair_are_averaged(tmp_path):
    device = {**DEVICE, B: {"null": 4.0, A: [3.0, 5.0], B: [0.0, 0.0]}}
    instance = import_gavel(gavel_file(tmp_path, device), "k80", 1)
    assert slowdowns_of(instance)["a", "b"] == pytest.approx((2, 4 / 2.5))


def test_gavel_pair_with_one_starved_side_did_not_run(tmp_path):
    device = {**DEVICE, B: {"null": 4.0, A: [0.0, 5.0]}}
    instance = import_gavel(gavel_file(tmp_path, device), "k80", 1)
    assert slowdowns_of(instance)["a", "b"] is None


def test_gavel_nodes_hold_eight_gpus_and_the_last_the_rest(tmp_path):
    instance = import_gavel(gavel_file(tmp_path), "k80", 19)
    assert [len(node.devices) for node in instance.cluster.nodes] == [8, 8, 3]


def test_gavel_trace_keeps_what_would_be_unfinished(tmp_path):
    rows = [
        "a\tcmd\t-n\t1\t1000\t0\t1",  # 100 s alone: done at 100
        "b\tcmd\t-n\t1\t1000\t50\t1",  # 250 s alone: 200 s left at 100
        "a\tcmd\t-n\t1\t1600\t90\t2",  # 100 s alone as a gang: 90 s left
        "a\tcmd\t-n\t1\t1000\t101\t1",  # not there yet
    ]
    trace = trace_file(tmp_path, *rows)
    instance = import_gavel(gavel_file(tmp_path), "k80", 4, trace=trace, at_s=100.0)
    jobs = [(job.id, job.workload, job.workers, job.remaining_s) for job in instance.jobs]
    assert jobs == [("job-2", "b", 1, 200.0), ("job-3", "a x2", 2, 90.0)]
    assert instance.name == "gavel-k80-some-100"
    assert not any("a x2" in pair for pair in slowdowns_of(instance))


def test_gavel_gangs_as_single_shares_like_one_gpu(tmp_path):
    rows = ["a\tcmd\t-n\t1\t1600\t0\t2", "b\tcmd\t-n\t1\t4000\t0\t7"]
    trace = trace_file(tmp_path, *rows)
    table = gavel_file(tmp_path)
    instance = import_gavel(table, "k80", 4, trace=trace, at_s=0.0, gangs_as_single=True)
    # The pace of 'b' on 7 GPUs was not measured; its one-GPU pace is 4 it/s.
    jobs = [(job.workload, job.workers, job.remaining_s) for job in instance.jobs]
    assert jobs == [("a", 2, 100.0), ("b", 7, 1000.0)]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ([], "k80: must be a mapping, got an empty list"),
        ({A: 3}, f"k80[{A}]: must be a mapping, got 3"),
        ({"a": {"null": 1}}, "k80[a]: must be null or a key like"),
        ({"('a', 0)": {"null": 1}}, "k80[('a', 0)]: must be null or a key like"),
        ({A: {}}, f"k80[{A}[null]]: must be a number, got null"),
        ({A: {"null": "fast"}}, f"k80[{A}[null]]: must be a number, got 'fast'"),
        ({A: {"null": -1}}, f"k80[{A}[null]]: must be a finite number >= 0, got -1"),
        ({A: {"null": float("nan")}}, "must be a finite number >= 0, got nan"),
        ({A: {"null": 1, A: [1]}}, f"k80[{A}[{A}]]: must be a list of two numbers"),
        ({A: {"null": 1, A: [1, True]}}, f"k80[{A}[{A}]]: must be a number, got true"),
        ({A: {"null": 1, "x": [1, 1]}}, "k80[x]: must be null or a key like"),
    ],
)
def test_gavel_says_where_the_table_is_broken(tmp_path, device, message):
    path = gavel_file(tmp_path, device)
    with pytest.raises(InputError) as error:
        import_gavel(path, "k80", 1)
    assert str(error.value).startswith(path)
    assert message in str(error.value)


def test_gavel_unknown_device_lists_the_known(tmp_path):
    with pytest.raises(InputError, match=r"device: must be one of k80, got 'tpu'"):
        import_gavel(gavel_file(tmp_path), "tpu", 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\tcmd\t-n\t1\t10\t0", "line 1: must have 7 fields, got 6"),
        ("c\tcmd\t-n\t1\t10\t0\t1", "line 1: job type: 'c' has no throughput on one GPU"),
        ("a\tcmd\t-n\t1\tten\t0\t1", "line 1: total steps: must be a number, got 'ten'"),
        ("a\tcmd\t-n\t1\t0\t0\t1", "line 1: total steps: must be > 0, got '0'"),
        ("a\tcmd\t-n\t1\t10\t-1\t1", "line 1: arrival s: must be a finite number >= 0"),
        ("a\tcmd\t-n\t1\t10\t0\t1.5", "line 1: GPUs: must be a whole number >= 1, got 1.5"),
        ("b\tcmd\t-n\t1\t10\t0\t2", "line 1: GPUs: no throughput of 'b' on 2 GPUs was measured"),
        ("\tcmd\t-n\t1\t10\t0\t2", "line 1: job type: must not be empty"),
    ],
)
def test_gavel_says_where_the_trace_is_broken(tmp_path, row, message):
    trace = trace_file(tmp_path, row)
    with pytest.raises(InputError) as error:
        import_gavel(gavel_file(tmp_path), "k80", 1, trace=trace, at_s=0.0)
    assert str(error.value).startswith(f"{trace}: {message}")


def test_gavel_trace_and_moment_go_together(tmp_path):
    with pytest.raises(InputError, match="trace and at_s go together"):
        import_gavel(gavel_file(tmp_path), "k80", 1, at_s=3.0)
    with pytest.raises(InputError, match="at_s: must be a finite number >= 0, got nan"):
        import_gavel(gavel_file(tmp_path), "k80", 1, trace="x", at_s=float("nan"))


@pytest.mark.parametrize("argument", ["gpus", "gpus_per_node"])
def test_gavel_refuses_no_gpus(tmp_path, argument):
    with pytest.raises(InputError, match=f"{argument}: must be between 1 and 100000, got 0"):
        import_gavel(gavel_file(tmp_path), "k80", **{"gpus": 1, argument: 0})


def test_gzip_is_read_transparently(tmp_path):
    plain = gavel_file(tmp_path)
    packed = tmp_path / "throughputs.json.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert import_gavel(str(packed), "k80", 2) == import_gavel(plain, "k80", 2)


def test_gavel_number_of_hundreds_of_digits_gives_one_line(tmp_path):
    path = gavel_file(tmp_path, {A: {"null": 10**400}})
    with pytest.raises(InputError, match="must be a finite number >= 0, got a huge number"):
        import_gavel(path, "k80", 1)


def test_gavel_file_that_is_no_json_gives_one_line(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b"{")
    with pytest.raises(InputError, match=r"t\.json: .*JSON"):
        import_gavel(str(path), "k80", 1)


# --- lucid: r and s measured with each other and themselves, t only with r and itself.

SOLO = """model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label
r,D,8,0,100.0,50.0,25.0,2000.0,0
s,D,8,1,10.0,100.0,75.5,3000.0,0
t,D,8,0,10.0,0.0,0.0,1000.0,0
"""
COLOCATED = """,model1,dataset1,gpu_num1,batchsize1,amp1,speed1,\
model2,dataset2,gpu_num2,batchsize2,amp2,speed2,gpu_util,gmem_util,gmem
0,r,D,1,8,0,0.8,r,D,1,8,0,0.2,0,0,0
1,s,D,1,8,1,1.25,r,D,1,8,0,0.5,0,0,0
2,s,D,1,8,1,0.5,s,D,1,8,1,0.5,0,0,0
3,t,D,1,8,0,1.0,t,D,1,8,0,1.0,0,0,0
4,t,D,1,8,0,1.0,r,D,1,8,0,0,0,0,0
"""


def lucid_folder(folder: Path, solo: str = SOLO, pairs: str = COLOCATED) -> str:
    (folder / "single_data.csv").write_text(solo)
    (folder / "colocate_info.csv.gz").write_bytes(gzip.compress(pairs.encode()))
    return str(folder)


def test_lucid_normalised_speeds_become_slowdowns(tmp_path):
    instance = import_lucid(lucid_folder(tmp_path), 2)
    assert slowdowns_of(instance) == {
        ("r D b8", "r D b8"): (2.0, 2.0),
        ("r D b8", "s D b8 amp"): (2.0, 0.8),  # faster than alone: kept
        ("s D b8 amp", "s D b8 amp"): (2.0, 2.0),
        ("t D b8", "t D b8"): (1.0, 1.0),
        ("r D b8", "t D b8"): None,
    }
    assert [job.workload for job in instance.jobs] == ["r D b8", "s D b8 amp"]
    workload = instance.workloads["s D b8 amp"]
    assert workload.memory_mib == 3000
    assert workload.throughput == {100: 10.0}
    assert workload.metrics is not None
    assert (workload.metrics.gpu_util, workload.metrics.mem_util) == (1.0, 0.755)


@pytest.mark.parametrize(
    ("solo", "pairs", "message"),
    [
        (SOLO.replace("gmem,", "memory,"), COLOCATED, "line 1: must have the columns"),
        (SOLO.replace("100.0,75.5", "100.5,75.5"), COLOCATED, "line 3: gpu_util: must be a perc"),
        (SOLO.replace("r,D,8,0", "r,D,8,2"), COLOCATED, "line 2: amp: must be 0 or 1, got '2'"),
        (SOLO.replace("100.0,50.0", "0,50.0"), COLOCATED, "line 2: speed: must be > 0, got '0'"),
        (SOLO, COLOCATED.replace("2,s,D,1", "2,s,D,2"), "line 4: gpu_num1: must be 1"),
        (SOLO, COLOCATED.replace("3,t", "3,u"), "line 5: model1: 'u D b8' has no row in single"),
        (SOLO, COLOCATED.replace("1.25", "-1"), "line 3: speed1: must be a finite number >= 0"),
    ],
)
def test_lucid_says_where_the_tables_are_broken(tmp_path, solo, pairs, message):
    folder = lucid_folder(tmp_path, solo, pairs)
    with pytest.raises(InputError) as error:
        import_lucid(folder, 1)
    assert message in str(error.value)


def test_lucid_absent_table_is_named(tmp_path):
    with pytest.raises(InputError, match=r"must have a file single_data.csv \(or"):
        import_lucid(str(tmp_path), 1)


# --- the published files: the optimum by a MILP that shares no code with ours


def best_throughput(instance: Instance) -> float:
    """Best sum of rates when one-GPU jobs pair up, run alone or wait (one 0/1 column each)."""
    at = {job.workload: k for k, job in enumerate(instance.jobs)}
    columns = [([k], 1.0) for k in at.values()]
    for (a, b), slowdown in slowdowns_of(instance).items():
        if slowdown is not None and a != b and {a, b} <= at.keys():
            columns.append(([at[a], at[b]], sum(1 / value for value in slowdown)))
    uses = np.zeros((len(at) + 1, len(columns)))
    uses[-1] = 1  # every column takes one GPU
    for column, (members, _) in enumerate(columns):
        uses[members, column] = 1
    most = np.append(np.ones(len(at)), len(instance.places))
    answer = milp(
        [-value for _, value in columns],
        constraints=LinearConstraint(uses, -np.inf, most),
        integrality=np.ones(len(columns)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    return -answer.fun


@published
@pytest.mark.parametrize(
    ("device", "optimum"), [("k80", 14.862034537), ("p100", 16.946680865), ("v100", 21.661713351)]
)
def test_gavel_published_tables_have_the_known_optimum(device, optimum):
    # The optimum is of the CSV, whose slowdowns have six decimals; the throughputs have all.
    rounded = import_pairs(str(DATA / "gavel/gavel_pairs.csv"), 13, device=device).instance
    exact = import_gavel(str(DATA / "gavel/simulation_throughputs.json.gz"), device, 13)
    assert len(rounded.jobs) == len(exact.jobs) == 26
    assert best_throughput(rounded) == pytest.approx(optimum, abs=5e-10)
    assert best_throughput(exact) == pytest.approx(optimum, abs=2e-6)


@published
@pytest.mark.parametrize(("gpus", "optimum"), [(26, 54.446), (20, 43.513)])
def test_lucid_published_table_has_the_known_optimum(gpus, optimum):
    instance = import_lucid(str(DATA / "lucid"), gpus)
    assert len(instance.jobs) == 52
    assert best_throughput(instance) == pytest.approx(optimum, abs=5e-10)


@published
def test_gavel_published_trace_needs_a_word_about_gangs():
    table = str(DATA / "gavel/simulation_throughputs.json.gz")
    trace = str(DATA / "gavel/traces/0e4a51.trace.gz")
    with pytest.raises(InputError, match="gangs_as_single takes that of one GPU"):
        import_gavel(table, "p100", 64, trace=trace, at_s=1e6)
    instance = import_gavel(table, "p100", 64, trace=trace, at_s=1e6, gangs_as_single=True)
    assert max(job.workers for job in instance.jobs) > 1
    assert all(job.arrival_s <= 1e6 for job in instance.jobs)
