"""Filters of traces, by hand."""

from __future__ import annotations

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.traces import FILTERS, Trace, TraceJob, filters
from tests.instances.traces.made import ids, trace

#       arrival, workers, duration
FIVE = trace((10, 1, 100), (20, 2, 50), (30, 4, 10), (100, 1, 500), (110, 8, 5))


def test_window_takes_its_beginning_and_not_its_end():
    assert ids(filters.window(FIVE, 20, 100)) == "bc"
    assert filters.window(FIVE, 20, 100).jobs[0].arrival_s == 20


def test_busiest_is_the_largest_load():
    # GPU seconds: 100, 100, 40, 500, 40. Two in a row: 200 in 10 s = 20, 140 in 10 s = 14,
    # 540 in 70 s = 7.7, 540 in 10 s = 54.
    assert ids(filters.busiest(FIVE, 2)) == "de"
    # Three in a row: 240 in 20 s = 12, 640 in 80 s = 8, 580 in 80 s = 7.25.
    assert ids(filters.busiest(FIVE, 3)) == "abc"
    assert ids(filters.busiest(FIVE, 5)) == "abcde"


def test_busiest_of_arrivals_at_once_is_the_larger_demand_then_the_earlier():
    at_once = trace((0, 1, 9), (0, 1, 1), (5, 1, 8), (5, 1, 7), (9, 1, 7), (9, 1, 8))
    assert ids(filters.busiest(at_once, 2)) == "cd"
    assert ids(filters.busiest(FIVE, 1)) == "d"


def test_busiest_period_has_the_most_arrivals():
    assert ids(filters.busiest_period(FIVE, 20)) == "ab"  # 10 and 20 of 10..30, 30 is out
    assert ids(filters.busiest_period(FIVE, 20.5)) == "abc"
    assert ids(filters.busiest_period(FIVE, 1000)) == "abcde"
    assert filters.busiest_period(Trace("none", ()), 5).jobs == ()


def test_a_sample_is_drawn_by_seed_and_in_order():
    many = trace(*[(k, 1, 1) for k in range(8)])
    samples = [ids(filters.sample(many, 3, seed)) for seed in range(20)]
    assert samples == [ids(filters.sample(many, 3, seed)) for seed in range(20)]
    assert all(len(set(each)) == 3 and list(each) == sorted(each) for each in samples)
    assert set("".join(samples)) == set("abcdefgh")
    assert ids(filters.sample(many, 8, 0)) == "abcdefgh"


def test_load_divides_the_gaps():
    assert [job.arrival_s for job in filters.faster(FIVE, 2).jobs] == [10, 15, 20, 55, 60]
    assert [job.arrival_s for job in filters.faster(FIVE, 0.5).jobs] == [10, 30, 50, 190, 210]


def test_from_zero_shifts():
    assert [job.arrival_s for job in filters.from_zero(FIVE).jobs] == [0, 10, 20, 90, 100]
    assert filters.from_zero(Trace("none", ())).jobs == ()


def test_large_gangs_are_left_out_or_cut():
    assert ids(filters.largest(FIVE, 2)) == "abd"
    assert [job.workers for job in filters.clipped(FIVE, 2).jobs] == [1, 2, 2, 1, 2]


def test_tenants():
    ann, bob = (TraceJob(name, 0.0, 1, 1.0, tenant=name) for name in ("ann", "bob"))
    no_user = TraceJob("c", 1.0, 1, 1.0)
    both = Trace("both", (ann, bob, no_user))
    assert filters.tenants(both, ["bob"]).jobs == (bob,)
    with pytest.raises(InputError, match=r"^tenants: must be one of ann, bob, got 'eve'$"):
        filters.tenants(both, ["ann", "eve"])


def test_durations_are_scaled_or_cut():
    assert [job.duration_s for job in filters.with_durations(FIVE, 0.1).jobs] == pytest.approx(
        [10, 5, 1, 50, 0.5]
    )
    assert [job.duration_s for job in filters.at_most(FIVE, 60).jobs] == [60, 50, 10, 60, 5]


def test_filters_keep_name_and_notes():
    noted = Trace(FIVE.name, FIVE.jobs, ("something",))
    left = filters.window(noted, 0, 50)
    assert (left.name, left.notes) == ("made", ("something",))


SAME = {
    "window:20:100": filters.window(FIVE, 20, 100),
    "busiest:2": filters.busiest(FIVE, 2),
    "busiest_period:20": filters.busiest_period(FIVE, 20),
    "sample:3": filters.sample(FIVE, 3, 7),
    "faster:2": filters.faster(FIVE, 2),
    "from_zero": filters.from_zero(FIVE),
    "largest:2": filters.largest(FIVE, 2),
    "clipped:2": filters.clipped(FIVE, 2),
    "durations:0.5": filters.with_durations(FIVE, 0.5),
    "at_most:60": filters.at_most(FIVE, 60),
}


@pytest.mark.parametrize("text", SAME)
def test_filters_as_texts(text):
    assert filters.filtered(FIVE, [text], seed=7) == SAME[text]


def test_tenants_as_text_and_every_filter_tried():
    owned = trace((0, 1, 1), (1, 1, 1), tenant="vc:1")
    assert filters.filtered(owned, ["tenants:vc:1"]) == owned
    assert {text.partition(":")[0] for text in SAME} | {"tenants"} == set(FILTERS)


def test_filters_are_taken_in_order():
    assert ids(filters.filtered(FIVE, ["from_zero", "window:0:20"])) == "ab"
    assert ids(filters.filtered(FIVE, ["window:0:20", "from_zero"])) == "a"
    assert filters.filtered(FIVE, []) is FIVE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window:5:5", "window: must be 0 <= from < to, got 5 and 5"),
        ("busiest:6", "made: busiest: must be between 1 and the 5 jobs of the trace, got 6"),
        ("busiest:1.5", "busiest: must be a whole number, got 1.5"),
        ("sample:0", "made: sample: must be between 1 and the 5 jobs of the trace, got 0"),
        ("busiest_period:0", "busiest_period: must be a finite number > 0, got 0"),
        ("faster:0", "factor of arrivals: must be a finite number > 0, got 0"),
        ("faster:inf", "factor of arrivals: must be a finite number > 0, got inf"),
        ("largest:0", "largest gang: must be a finite number > 0, got 0"),
        ("largest:nan", "largest gang: must be a whole number, got nan"),
        ("clipped:inf", "largest gang: must be a whole number, got inf"),
        ("durations:-1", "duration factor: must be a finite number > 0, got -1"),
        ("at_most:nan", "longest duration: must be a finite number > 0, got nan"),
        ("faster:fast", "filter: faster takes 1 number, got 'faster:fast'"),
        ("window:5", "filter: window takes 2 numbers, got 'window:5'"),
        ("from_zero:1", "filter: from_zero takes no numbers, got 'from_zero:1'"),
        (
            "newest:5",
            "filter: must be one of window, busiest, busiest_period, sample, faster, from_zero, "
            "largest, clipped, durations, at_most, tenants, got 'newest:5'",
        ),
    ],
)
def test_a_broken_filter_is_reported(text, message):
    with pytest.raises(InputError) as error:
        filters.filtered(FIVE, [text])
    assert str(error.value) == message


def test_a_negative_seed_is_reported():
    with pytest.raises(InputError, match=r"^seed: must be >= 0, got -1$"):
        filters.sample(FIVE, 1, -1)
