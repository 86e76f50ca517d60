"""Measurement records: which ones count, what instances get from them, and their identity."""

from __future__ import annotations

import pytest
from hypothesis import given

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.metrics import Metrics
from tests.instances.datasets.odd import data_sets

GPU = "V100"


def profile(workload="a", **given):
    return SoloProfile.from_data({"workload": workload, "gpu_model": GPU, **given})


def together(*workloads, **given):
    return Measurement.from_data({"workloads": workloads, "gpu_model": GPU, **given})


def data(*profiles, measurements=()):
    return DataSet(name="d", profiles=profiles, measurements=measurements)


# --- the newest profile


@pytest.mark.parametrize(
    ("dates", "newest"),
    [
        ((None, None), 1),  # undated: the one recorded last
        (("2026-01-02", "2026-01-01"), 0),
        (("2026-01-01", "2026-01-01"), 1),
        (("2026-01-01", None), 0),  # undated is older than dated
        ((None, "2026-01-01"), 1),
        # 11:30 in UTC+2 is 09:30 in UTC, before 10:00.
        (("2026-01-01T10:00:00+00:00", "2026-01-01T11:30:00+02:00"), 0),
    ],
)
def test_the_newest_profile_counts(dates, newest):
    found = data(*(profile(date=date, power_w=100.0 + k) for k, date in enumerate(dates)))
    assert found.workloads(GPU)["a"].power_w == 100 + newest
    assert len(found.profiles) == 2  # nothing is thrown away


@pytest.mark.parametrize(
    "other",
    [{"share": 50}, {"workers": 2}, {"batch_size": 8}, {"gpu_model": "K80"}, {"workload": "b"}],
)
def test_a_profile_replaces_none_of_another_run(other):
    assert len(data(profile(), profile(**other)).newest) == 2


@pytest.mark.parametrize("date", ["yesterday", "2026-13-01", "21.11.2026", "2026-01-01\n10:00"])
def test_a_date_is_iso_8601(date):
    with pytest.raises(InputError, match="date: must be"):
        profile(date=date)


# --- workloads of an instance


def test_workloads_take_caps_from_their_profiles():
    found = data(
        profile(metrics={"sm_active": 0.9}, throughput=10.0, memory_mib=3000.0, power_w=200.0),
        profile(share=50, metrics={"sm_active": 0.5}, throughput=8.0, memory_mib=3500.0),
        profile("b", gpu_model="K80"),
    )
    assert list(found.workloads(GPU)) == ["a"]
    workload = found.workloads(GPU)["a"]
    assert workload.memory_mib == 3500  # the largest mark
    assert workload.throughput == {100: 10.0, 50: 8.0}
    assert workload.metrics == Metrics(sm_active=0.9)
    assert workload.metrics_by_share == {50: Metrics(sm_active=0.5)}
    assert workload.power_w == 200


def test_workloads_take_one_worker_and_then_the_largest_batch():
    found = data(
        profile(workers=2, batch_size=64, throughput=1.0),
        profile(batch_size=16, throughput=2.0),
        profile(batch_size=32, throughput=3.0),
    )
    assert found.workloads(GPU)["a"].throughput == {100: 3.0}


def test_families_are_given_or_the_workload_itself():
    found = data(
        profile("a8", family="a"), profile("b"), measurements=(together("c", "a8", slowdown=None),)
    )
    assert found.families == {"a8": "a", "b": "b", "c": "c"}


def test_gpu_models_in_order_of_appearance():
    found = data(
        profile(gpu_model="B"), measurements=(together("a", "b", gpu_model="A", slowdown=None),)
    )
    assert found.gpu_models == ("B", "A")


# --- measurements


def test_no_cap_on_any_is_no_share():
    assert together("a", "b", share=None, slowdown=(1.0, 1.0)).share is None
    assert together("a", "b", share=(None, 50), slowdown=(1.0, 1.0)).shares == (None, 50)
    assert profile(metrics={}) == profile()


def test_a_workload_with_itself_may_be_slowed_unequally():
    assert together("a", "a", slowdown=(1.2, 1.8)).slowdown == (1.2, 1.8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slowdown": [1.0]}, "slowdown: must have 2 items, got 1"),
        ({"slowdown": [1.0, 1.0], "share": [50]}, "share: must have 2 items, got 1"),
        ({"slowdown": [1.0, 0.0]}, "slowdown[1]: must be >= 0.001, got 0.0"),
        ({}, "slowdown: this field is required"),
        (
            {"slowdown": None, "colour": 1},
            "colour: unknown field, known are: workloads, gpu_model, share, slowdown, "
            "at_least, p99, power_w, driver, library, source, date, mode",
        ),
        (
            {"slowdown": [1.0, 9.0], "at_least": [1.0, 9.0]},
            "at_least: must be absent if the slowdown was measured",
        ),
        ({"slowdown": [1.0, 1.0], "p99": [1.5]}, "p99: must have 2 items, got 1"),
        ({"slowdown": [1.0, 1.0], "p99": [None, 0.0]}, "p99[1]: must be >= 0.001, got 0.0"),
        (
            {"slowdown": None, "p99": [1.5, None]},
            "p99: must be absent if they failed to run together",
        ),
        (
            {"slowdown": [1.0, 1.0], "mode": "slices"},
            "mode: must be 'mps' or 'time_sliced', got 'slices'",
        ),
        (
            {"slowdown": [1.0, 1.0], "mode": "time_sliced", "share": [None, 50]},
            "share[1]: mode time_sliced has no caps, got 50",
        ),
    ],
)
def test_broken_measurements_are_reported(given, message):
    with pytest.raises(InputError) as error:
        together("a", "b", **given)
    assert str(error.value) == message


# --- both of two, and what identifies them


def test_merged_keeps_all_in_order():
    first = data(profile("a"), measurements=(together("a", "b", slowdown=None),))
    second = DataSet(name="other", profiles=(profile("a"), profile("b")))
    both = first.merged(second)
    assert both.name == "d"
    assert [p.workload for p in both.profiles] == ["a", "a", "b"]
    assert both.measurements == first.measurements


def test_fingerprint_is_of_the_records_in_their_order():
    a, b = profile("a"), profile("b")
    assert data(a, b).fingerprint == DataSet(name="other", profiles=(a, b)).fingerprint
    pair = together("a", "b", slowdown=(1.0, 1.5))
    others = [data(b, a), data(a), data(a, b, b), data(a, b, measurements=(pair,))]
    assert len({data(a, b).fingerprint, *(other.fingerprint for other in others)}) == 5
    assert len(data().fingerprint) == 64


@given(data_sets)
def test_fingerprint_does_not_depend_on_how_a_record_was_made(found):
    again = DataSet.from_data(found.to_data())
    assert (again, again.fingerprint) == (found, found.fingerprint)


# --- an instance


def test_instance_averages_what_was_measured_several_times():
    pairs = (
        together("a", "b", slowdown=(2.0, 1.0), power_w=200.0),
        together("b", "a", slowdown=(2.0, 3.0), power_w=300.0),
        together("a", "a", slowdown=(1.0, 3.0)),
        together("a", "b", share=(40, 60), slowdown=(1.5, 1.25)),
        together("b", "b", slowdown=None),
        together("b", "b", slowdown=(1.0, 1.0)),
        together("b", "a", "a", slowdown=(2.0, 1.0, 3.0)),
    )
    made = data(profile("a", throughput=5.0), measurements=pairs).instance(GPU, 3)
    assert [(e.workloads, e.share, e.slowdown, e.power_w) for e in made.slowdowns] == [
        # a: speeds 1/2 and 1/3, mean 5/12; b: 1 and 1/2, mean 3/4.
        (("a", "b"), None, pytest.approx((12 / 5, 4 / 3)), 250),
        # speeds 1 and 1/3, mean 2/3
        (("a", "a"), None, pytest.approx((1.5, 1.5)), None),
        (("a", "b"), (40, 60), (1.5, 1.25), None),
        (("b", "b"), None, None, None),  # failed once
        (("a", "a", "b"), None, pytest.approx((1.5, 1.5, 2)), None),
    ]
    assert made.cluster.shares == (40, 60)
    assert made.cluster.max_jobs_per_gpu == 3
    assert [job.workload for job in made.jobs] == ["a", "b"]
    assert made.workloads["a"].throughput == {100: 5.0}
    assert {entry.gpu_model for entry in made.slowdowns} == {GPU}
    assert len(made.places) == 3


def test_instance_averages_p99_and_fills_it_in_with_a_partner_that_has_one():
    pairs = (
        together("a", "b", slowdown=(1.5, 2.0), p99=(3.0, None)),
        together("b", "a", slowdown=(2.0, 1.5), p99=(None, 4.0)),
        together("a", "a", slowdown=(1.0, 1.0), p99=(1.0, 3.0)),
        together("b", "b", slowdown=(1.0, 1.0), p99=(None, None)),
    )
    made = data(measurements=pairs).instance(GPU, 1)
    # b has no latency: what its gSLA is checked against stays its slowdown.
    assert [entry.p99 for entry in made.slowdowns] == [(3.5, 2.0), (2.0, 2.0), None]


def test_instance_needs_the_memory_of_gpus_where_workloads_have_theirs():
    found = data(profile(memory_mib=3000.0))
    with pytest.raises(InputError) as error:
        found.instance(GPU, 1)
    rule = "memory_mib: must be given (MiB of a GPU), as the memory of workloads is known"
    assert str(error.value) == f"{rule}: a needs 3000"
    made = found.instance(GPU, 1, memory_mib=16160.0)
    assert [place.gpu.memory_mib for place in made.places.values()] == [16160]
    with pytest.raises(InputError, match="memory_mib: must be > 0, got 0"):
        found.instance(GPU, 1, memory_mib=0.0)


def test_instance_of_an_unknown_gpu_model_names_the_known():
    with pytest.raises(InputError, match="gpu_model: must be one of V100, got 'TPU'"):
        data(profile()).instance("TPU", 1)
    with pytest.raises(InputError, match="gpu_model: must be in the data, got 'V100'"):
        data().instance("V100", 1)
