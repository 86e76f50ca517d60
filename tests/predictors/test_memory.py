"""Memory from marks: the bound by hand, and measured pairs."""

import csv
from pathlib import Path

import pytest

from dovetail.instances.datasets import DataSet, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.predictors.memory import next_mark, with_memory

LUCID = Path(__file__).parents[3] / "shared" / "data" / "lucid"


def runs(*marks, **more):
    return [SoloProfile(workload="a", gpu_model="V100", memory_mib=m, **more) for m in marks]


def test_one_mark_by_hand():
    # freedom 5, s = 100, scale = 100 * sqrt(2) = 141.42; t(5) at 0.95 is 2.01505: + 284.97.
    found = next_mark(runs(1000.0))
    assert found.freedom == 5
    assert found.upper(0.95) == pytest.approx(1284.97, abs=0.01)


def test_two_marks_by_hand():
    # m = 1050; squares = 5 * 105^2 + 2 * 50^2 = 60125; freedom 6; s = 100.104;
    # scale = s * sqrt(1.5) = 122.602; t(6) at 0.95 is 1.94318: 1050 + 238.24.
    found = next_mark(runs(1000.0, 1100.0))
    assert found.scale_mib == pytest.approx(122.602, abs=1e-3)
    assert found.upper(0.95) == pytest.approx(1288.24, abs=0.01)


def test_many_equal_marks_need_less_margin():
    margins = [next_mark(runs(*[1000.0] * n)).upper(0.95) for n in (1, 2, 5, 50)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < 1060


def test_the_bound_is_never_below_what_was_seen():
    assert next_mark(runs(*[1000.0] * 99, 3000.0)).upper(0.6) == 3000.0


def test_runs_without_a_mark_are_passed_over():
    blank = SoloProfile(workload="a", gpu_model="V100")
    assert next_mark([blank, *runs(1000.0)]) == next_mark(runs(1000.0))
    with pytest.raises(InputError, match="profiles: must have a profile with memory_mib"):
        next_mark([blank])


@pytest.mark.parametrize("confidence", [0.0, 1.0, float("nan")])
def test_a_confidence_out_of_range_is_refused(confidence):
    with pytest.raises(InputError, match="confidence: must be > 0 and < 1"):
        next_mark(runs(1000.0)).upper(confidence)


def instance():
    node = {"id": "n0", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}}
    return Instance.from_data(
        {
            "name": "memory",
            "cluster": {"nodes": [node]},
            "workloads": {"a": {"memory_mib": 1, "power_w": 200}, "b": {"memory_mib": 700}},
            "jobs": [{"id": "j", "workload": "a"}],
        }
    )


def test_marks_become_the_memory_of_workloads():
    other = SoloProfile(workload="a", gpu_model="A100", memory_mib=9000.0)
    data = DataSet(name="d", profiles=(*runs(1000.0), other))
    filled = with_memory(instance(), data, "V100")
    # 1284.97, see above, in whole MiB.
    assert filled.workloads["a"].memory_mib == 1285
    assert filled.workloads["a"].power_w == 200
    assert filled.workloads["b"].memory_mib == 700
    assert filled.jobs == instance().jobs
    assert with_memory(instance(), data, "K80") == instance()


def test_runs_of_other_batch_sizes_are_other_workloads_and_caps_are_not():
    # Batch 64 at 1000 alone gives 1285, as if batch 8 had not been run; the runs at 1000 without
    # and at 1100 with a cap give 1288.24 together, see above.
    data = DataSet(name="d", profiles=(*runs(1000.0, batch_size=64), *runs(500.0, batch_size=8)))
    assert with_memory(instance(), data, "V100").workloads["a"].memory_mib == 1285
    capped = DataSet(name="d", profiles=(*runs(1000.0), *runs(1100.0, share=50)))
    assert with_memory(instance(), capped, "V100").workloads["a"].memory_mib == 1289


@pytest.mark.skipif(
    not LUCID.is_dir(), reason=f"no data at {LUCID}: python benchmarks/fetch_data.py"
)
def test_bounds_hold_for_pairs_measured_together():
    key = ("model", "dataset", "batchsize", "amp")
    with open(LUCID / "single_data.csv", newline="") as file:
        alone = {tuple(r[k] for k in key): runs(float(r["gmem"])) for r in csv.DictReader(file)}
    with open(LUCID / "colocate_info.csv", newline="") as file:
        pairs = [
            (*(alone[tuple(r[f"{k}{side}"] for k in key)] for side in "12"), float(r["gmem"]))
            for r in csv.DictReader(file)
        ]
    for confidence in (0.8, 0.9, 0.95, 0.99):
        bounds = [
            next_mark(a).upper(confidence) + next_mark(b).upper(confidence) for a, b, _ in pairs
        ]
        held = sum(gmem <= bound for (*_, gmem), bound in zip(pairs, bounds, strict=True))
        assert held / len(pairs) > confidence
