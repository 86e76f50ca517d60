"""Castor's equations 1 to 3, fitted from profiles by batch size."""

import csv
from pathlib import Path

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.predictors.iteration_time import fit_batch, with_sub_batches

MISO = Path(__file__).resolve().parents[3] / "shared" / "data" / "miso"


def profile(batch, seconds, workers=1, memory_mib=None, **changes):
    known = {"workload": "w", "gpu_model": "g"} | changes
    return SoloProfile(
        batch_size=batch, throughput=1 / seconds, workers=workers, memory_mib=memory_mib, **known
    )


def truth(batch, comm_s=0.0, overlap=1.0):
    compute = 0.01 + 0.002 * batch
    return float((compute**overlap + comm_s**overlap) ** (1 / overlap))


def test_line_by_hand():
    # 0.03 s at 10 and 0.05 s at 20: 0.01 + 0.002 b. 300 MiB and 500 MiB: 100 + 20 b.
    fit = fit_batch([profile(10, 0.03, memory_mib=300.0), profile(20, 0.05, memory_mib=500.0)])
    assert fit.batch.size == 20
    assert fit.batch.min == 10
    assert fit.batch.step_s.fixed == pytest.approx(0.01)
    assert fit.batch.step_s.per_sample == pytest.approx(0.002)
    assert (fit.batch.comm_s, fit.batch.overlap) == (0.0, 1.0)
    assert fit.batch.fixed_mib == pytest.approx(100)
    assert fit.batch.mib_per_sample == pytest.approx(20)
    assert fit.time_error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("overlap", [1.0, 1.7, 3.0])
def test_finds_communication_and_overlap(overlap):
    batches = (4, 8, 16, 32, 64)
    alone = [profile(b, truth(b), memory_mib=10.0) for b in batches]
    gangs = [profile(b, truth(b, 0.05, overlap), workers=4) for b in batches]
    fit = fit_batch([*alone, *gangs])
    assert fit.batch.comm_s == pytest.approx(0.05, rel=0.01)
    assert fit.batch.overlap == pytest.approx(overlap, rel=0.02)
    assert np.abs(fit.time_error).max() < 1e-3


def test_one_batch_size_of_a_gang_gives_no_overlap():
    alone = [profile(b, truth(b), memory_mib=10.0) for b in (8, 16)]
    fit = fit_batch([*alone, profile(16, truth(16) + 0.05, workers=2)])
    assert fit.batch.overlap == 1.0
    assert fit.batch.comm_s == pytest.approx(0.05)


def test_no_part_is_negative():
    # 0.01 s at 10 and 0.05 s at 20 would be a line through -0.03 s.
    fit = fit_batch([profile(10, 0.01, memory_mib=9.0), profile(20, 0.05, memory_mib=1.0)])
    assert fit.batch.step_s.fixed == 0.0
    assert fit.batch.step_s.per_sample > 0
    # Memory that falls with the batch: a level line at the largest mark.
    assert fit.batch.fixed_mib == pytest.approx(9.0)
    assert fit.batch.mib_per_sample == pytest.approx(0.0)


def test_memory_at_one_batch_size_is_level():
    fit = fit_batch([profile(8, 0.1, memory_mib=900.0), profile(16, 0.2)])
    assert (fit.batch.fixed_mib, fit.batch.mib_per_sample) == (900.0, 0.0)


def test_no_mark_is_underestimated():
    draw = np.random.default_rng(0)
    for _ in range(50):
        marks = draw.uniform(1, 40_000, 5)
        found = [profile(2**k, 0.1 + k, memory_mib=float(m)) for k, m in enumerate(marks)]
        fit = fit_batch(found)
        for one in found:
            batch = fit.batch
            assert batch.fixed_mib + batch.mib_per_sample * one.batch_size >= one.memory_mib
        assert fit.memory_error_mib.min() >= 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": "v"}, r"profiles\[1\].workload: must be as in the first profile, 'w'"),
        ({"gpu_model": "h"}, r"profiles\[1\].gpu_model: must be as in the first profile, 'g'"),
        ({"share": 50}, r"profiles\[1\].share: must be of the whole GPU, got 50"),
        ({"batch_size": None}, r"profiles\[1\].batch_size: this field is required"),
        ({"batch_size": 8}, "profiles: must have two timed batch sizes of one worker"),
        ({"throughput": None}, "profiles: must have two timed batch sizes of one worker"),
        ({"workers": 2}, "profiles: must have two timed batch sizes of one worker"),
    ],
)
def test_broken_profiles(changes, message):
    second = profile(16, 0.2).replace(**changes)
    with pytest.raises(InputError, match=message):
        fit_batch([profile(8, 0.1, memory_mib=1.0), second])


def test_memory_is_needed():
    with pytest.raises(InputError, match="profiles: must have a mark of memory"):
        fit_batch([profile(8, 0.1), profile(16, 0.2)])
    with pytest.raises(InputError, match="profiles: must have two timed batch sizes"):
        fit_batch([])


@pytest.mark.skipif(
    not MISO.is_dir(), reason="needs ../shared/data/miso: python benchmarks/fetch_data.py"
)
def test_measured_iteration_times():
    """Iteration times of MISO on a whole A100: off by 1.6 % on average and 6.2 % at most."""
    memory, times = {}, {}
    for row in rows_of("solo_features.csv"):
        memory[row["model"], row["batch"]] = float(row["memory_mb"])
    for row in rows_of("mig_iter_time.csv"):
        if row["mig_g"] == "7":
            times.setdefault(row["model"], {})[row["batch"]] = float(row["iter_s_median"])
    errors = []
    for model, by_batch in times.items():
        found = [
            profile(int(b), seconds, memory_mib=memory.get((model, b)), workload=model)
            for b, seconds in by_batch.items()
        ]
        errors.append(np.abs(fit_batch(found).time_error))
    assert len(errors) == 8
    assert np.concatenate(errors).mean() < 0.02
    assert np.concatenate(errors).max() < 0.07


def rows_of(name):
    with (MISO / name).open(newline="") as file:
        yield from csv.DictReader(file)


def test_workloads_that_were_timed_at_two_batch_sizes_may_start_smaller():
    timed = [profile(10, 0.03, memory_mib=300.0), profile(20, 0.05, memory_mib=500.0)]
    once = profile(16, 0.1, memory_mib=100.0, workload="once")
    unmarked = [profile(b, 0.1 * b, workload="unmarked") for b in (1, 2)]
    capped = [profile(5, 0.5, share=50)]
    data = DataSet(name="d", profiles=(*timed, once, *unmarked, *capped))
    made = with_sub_batches(data.instance("g", 1, memory_mib=1000.0), data, "g")
    assert made.workloads["w"].batch == fit_batch(timed).batch
    assert made.workloads["w"].batch.allows(10)
    assert made.workloads["once"].batch is None
    assert made.workloads["unmarked"].batch is None
