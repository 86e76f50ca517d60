"""Beliefs about pairs and their sources, computed by hand."""

from __future__ import annotations

import math

import pytest

from dovetail.executor.jobs.events import Separated
from dovetail.executor.live.beliefs import ORIGINS, Beliefs, Source
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.metrics import Metrics
from dovetail.instances.slowdowns.isolated import BEHIND
from dovetail.predictors.fitted.repeats import repeats_of

UNCAPPED = (None, None)


def profile(workload, sm=None, dram=None, gpu_model="A100", **fields):
    metrics = None
    if sm is not None:
        pcie = None if dram is None else 0.0
        metrics = Metrics(sm_active=sm, dram_active=dram, pcie_rx_bytes_s=pcie)
    return SoloProfile(workload=workload, gpu_model=gpu_model, metrics=metrics, **fields)


def together(first, second, slowdown, share=None, gpu_model="A100"):
    return Measurement(
        workloads=(first, second), gpu_model=gpu_model, slowdown=slowdown, share=share
    )


def data(profiles=(), measurements=()):
    return DataSet(name="test", profiles=tuple(profiles), measurements=tuple(measurements))


TWO = (profile("a/a", 0.5, 0.2), profile("b/b", 0.9, 0.2))
# Kernels of unknown, equal length: b always has one, so a one for 0.5 + 0.94 * 0.5 of the time.
LAW = 0.9 + 0.9 * 0.94 * (0.5 + 0.94 * 0.5)
"""The slowdown of b with a by the law of MPS; a is not slowed."""


def table_of(beliefs, names=("a/a", "b/b"), models=("A100",), caps=(UNCAPPED,)):
    return beliefs.table(names, models, caps)


def test_unmeasured_pairs_are_predicted_from_solo_profiles():
    found = table_of(Beliefs(data(TWO))).belief("A100", UNCAPPED, "b/b", "a/a")
    assert found.slowdown == pytest.approx(LAW)
    assert found.upper > 10 * LAW
    assert found.source == "law of MPS, from solo profiles"
    assert (ORIGINS[found.kind], found.bounded) == ("estimate", True)


def test_measured_pairs_override_predictions_in_both_directions():
    beliefs = Beliefs(data(TWO, [together("a/a", "b/b", (1.2, 1.4))]))
    table = table_of(beliefs)
    mine, theirs = (
        table.belief("A100", UNCAPPED, *pair) for pair in (("a/a", "b/b"), ("b/b", "a/a"))
    )
    assert (mine.slowdown, theirs.slowdown) == (1.2, 1.4)
    assert mine.source == "measured once"
    assert table.prior.slowdown[0, 0, 1, 0] == pytest.approx(LAW)
    beside_itself = table.belief("A100", UNCAPPED, "a/a", "a/a")
    assert beside_itself.source == "law of MPS, from solo profiles"


def test_what_was_measured_under_mps_says_nothing_of_time_slices():
    turns = together("a/a", "b/b", (1.7, 1.8)).replace(mode="time_sliced")
    beliefs = Beliefs(data(TWO, [together("a/a", "b/b", (1.2, 1.4)), turns]))
    names, where = ("a/a", "b/b"), ("A100", UNCAPPED, "a/a", "b/b")
    by_turns = beliefs.table(names, ("A100",), (UNCAPPED,), sharing="time_sliced")
    assert by_turns.belief(*where).slowdown == 1.7
    assert table_of(beliefs).belief(*where).slowdown == 1.2
    broken = Separated(
        at_s=0.0, runs=("j0", "j1"), workloads=("a/a", "b/b"), shares=UNCAPPED,
        gpu_model="A100", gsla=3.0, slowdown=3.5, mode="time_sliced",
    )  # fmt: skip
    assert by_turns.after([broken]).belief(*where).slowdown == 3.5
    assert table_of(beliefs).after([broken]).belief(*where).slowdown == 1.2
    # Without measurements: only their SM activity is known, so both may hold the GPU always.
    estimate = Beliefs(data(TWO)).table(names, ("A100",), (UNCAPPED,), sharing="time_sliced")
    assert estimate.belief(*where).slowdown == 2.0


def test_measured_tail_latencies_are_believed_with_their_spread():
    one = together("a/a", "b/b", (1.2, 1.4)).replace(p99=(1.8, None))
    table = table_of(Beliefs(data(TWO, [one])))
    assert table.p99[0, 0, 0, 1] == repeats_of([1.8]).upper
    assert math.isnan(table.p99[0, 0, 1, 0])
    broken = Separated(
        at_s=0.0, runs=("j0", "j1"), workloads=("a/a", "b/b"), shares=UNCAPPED,
        gpu_model="A100", gsla=3.0, slowdown=3.5,
    )  # fmt: skip
    assert table.after([broken]).p99[0, 0, 0, 1] == 3.5


@pytest.mark.parametrize("measured", [1.8, None])
def test_a_tail_that_broke_a_gsla_says_nothing_of_the_mean(measured):
    one = together("a/a", "b/b", (1.2, 1.4)).replace(p99=(measured, None))
    table = table_of(Beliefs(data(TWO, [one])))
    broken = Separated(
        at_s=0.0, runs=("j0", "j1"), workloads=("a/a", "b/b"), shares=UNCAPPED,
        gpu_model="A100", gsla=3.0, slowdown=3.5, tail=True,
    )  # fmt: skip
    after = table.after([broken])
    assert after.p99[0, 0, 0, 1] == 3.5
    assert after.slowdown[0, 0, 0, 1] == 1.2
    assert after.upper[0, 0, 0, 1] == table.upper[0, 0, 0, 1]
    assert after.belief("A100", UNCAPPED, "a/a", "b/b").source == "broke a gSLA"


def test_the_bound_of_one_measurement_is_its_assumed_spread():
    # 5 % of 1.2 is 0.06; a next one has sqrt(2) of that; t(5) at 0.9 is 1.4759.
    found = repeats_of([1.2])
    assert found.upper == pytest.approx(1.2 + 0.06 * math.sqrt(2) * 1.4759, abs=1e-4)


def test_repeats_that_agree_narrow_the_bound_and_others_widen_it():
    once, agreeing, scattered = (
        repeats_of(values).upper for values in ([1.2], [1.2] * 10, [1.0, 1.5] * 5)
    )
    assert agreeing < once < scattered


def test_repeats_are_averaged_as_speeds():
    # The mean of the speeds 1/1.0 and 1/2.0 is 3/4.
    assert repeats_of([1.0, 2.0]).mean == pytest.approx(4 / 3)


def test_jobs_that_failed_together_once_may_never_share():
    failed = [together("a/a", "b/b", None), together("a/a", "b/b", (1.1, 1.1))]
    table = table_of(Beliefs(data(TWO, failed)))
    found = table.belief("A100", UNCAPPED, "a/a", "b/b")
    assert math.isnan(found.slowdown)
    assert found.source == "failed to run together"


def test_measurements_hold_for_their_model_and_caps_only():
    beliefs = Beliefs(data(TWO, [together("a/a", "b/b", (1.2, 1.4), (50, 50))]))
    table = table_of(beliefs, models=("A100", "V100"), caps=(UNCAPPED, (50, 50)))
    assert table.belief("A100", (50, 50), "a/a", "b/b").source == "measured once"
    assert table.belief("A100", UNCAPPED, "a/a", "b/b").source != "measured once"
    assert table.belief("V100", (50, 50), "a/a", "b/b") is None


def test_nothing_is_believed_of_what_has_no_metrics():
    table = table_of(Beliefs(data([TWO[0], profile("b/b")])))
    assert table.belief("A100", UNCAPPED, "a/a", "b/b") is None
    assert table.source[0, 0, 0, 1] == Source.NONE


def test_utilisation_substitutes_unreadable_metrics_and_is_marked():
    # Two that keep all cores busy take turns; one with a half-busy one waits half the time.
    busy, half = (
        SoloProfile(workload=name, gpu_model="cpu-1-core", metrics=Metrics(cpu_util=part))
        for name, part in (("a/a", 1.0), ("b/b", 0.5))
    )
    table = table_of(Beliefs(data([busy, half])), models=("cpu-1-core",))
    found = [table.belief("cpu-1-core", UNCAPPED, "a/a", name) for name in ("a/a", "b/b")]
    assert [belief.slowdown for belief in found] == [2.0, 1.5]
    assert found[0].source == "analytic, from utilisation alone"


def test_memory_is_what_the_next_run_stays_within():
    marks = [profile("a/a", 0.5, 0.2, memory_mib=mib) for mib in (1000.0, 1000.0, 1100.0)]
    assert Beliefs(data(marks)).workload("a/a", ("A100",)).memory_mib > 1100
    assert Beliefs(data(TWO)).workload("a/a", ("A100",)).memory_mib == 0


def test_the_speed_on_a_model_is_its_throughput_over_that_on_the_first():
    marks = [
        profile("a/a", 0.5, 0.2, "A100", throughput=10.0),
        profile("a/a", 0.5, 0.2, "V100", throughput=4.0),
    ]
    found = Beliefs(data(marks)).workload("a/a", ("A100", "V100"))
    assert found.speed == {"A100": 1.0, "V100": 0.4}
    assert Beliefs(data(marks)).workload("b/b", ("A100",)) is None


def test_isolated_pairs_are_estimated_from_published_means_until_they_are_measured():
    busy = Metrics(gpu_util=0.5, sm_active=0.5, dram_active=0.2, pcie_rx_bytes_s=0.0)
    both = [SoloProfile(workload=name, gpu_model="A100", metrics=busy) for name in ("a/a", "b/b")]
    caps = (UNCAPPED, BEHIND, BEHIND[::-1])
    table = table_of(Beliefs(data(both)), caps=caps)
    ahead = table.belief("A100", BEHIND, "a/a", "b/b")
    behind = table.belief("A100", BEHIND[::-1], "b/b", "a/a")
    # 1.25 / (1 - 0.5) of what waits for the other.
    assert (ahead.slowdown, behind.slowdown) == (1.072, 2.5)
    assert "published means" in ahead.source
    cell = table.cell("A100", BEHIND, "a/a", "b/b")
    assert table.p99[cell] == 1.072
    one = together("a/a", "b/b", (1.02, 3.0), share=BEHIND).replace(p99=(1.3, None))
    table = table_of(Beliefs(data(both, [one])), caps=caps)
    ahead = table.belief("A100", BEHIND, "a/a", "b/b")
    assert (ahead.slowdown, ahead.source) == (1.02, "measured once")
    assert table.belief("A100", BEHIND[::-1], "b/b", "a/a").slowdown == 3.0
    assert table.p99[cell] == repeats_of([1.3]).upper
    assert table.prior.slowdown[cell] == 1.072


def test_measured_isolated_pairs_correct_and_bound_the_estimate_of_others():
    busy = Metrics(gpu_util=0.5, sm_active=0.5, dram_active=0.2, pcie_rx_bytes_s=0.0)
    names = ("a/a", "b/b", "c/c", "d/d", "e/e")
    alone = [SoloProfile(workload=name, gpu_model="A100", metrics=busy) for name in names]
    seen = [
        together("a/a", name, slowdown, share=BEHIND).replace(p99=(tail, None))
        for name, slowdown, tail in (
            ("b/b", (1.2, 4.0), 1.3),
            ("c/c", (1.2, 5.0), 1.3),
            ("d/d", (1.2, 6.25), 1.3),
        )
    ]
    caps = (UNCAPPED, BEHIND, BEHIND[::-1])
    table = Beliefs(data(alone, seen)).table(names, ["A100"], caps)
    # Those behind ran 2.0 times as slowly as expected in the mean; the first always the same.
    behind = table.belief("A100", BEHIND[::-1], "e/e", "a/a")
    assert behind.slowdown == pytest.approx(2 * 2.5)
    assert behind.upper > 1.5 * behind.slowdown
    ahead = table.belief("A100", BEHIND, "a/a", "e/e")
    assert ahead.slowdown == pytest.approx(1.2)
    # Equal ones leave the spread of repeats.
    assert 1.2 * 1.05 < ahead.upper < 1.2 * 1.15
    tail = table.p99[table.cell("A100", BEHIND, "a/a", "e/e")]
    assert tail == pytest.approx(1.3 / 1.2 * ahead.upper)


def test_a_workload_that_leaves_no_idle_time_has_no_isolated_pair():
    full = SoloProfile(workload="a/a", gpu_model="A100", metrics=Metrics(gpu_util=1.0))
    table = table_of(Beliefs(data([full, TWO[1]])), caps=(UNCAPPED, BEHIND, BEHIND[::-1]))
    assert table.belief("A100", BEHIND, "a/a", "b/b") is None


def test_runs_that_were_left_at_idle_say_nothing_of_a_pair():
    # Two best-effort runs, after the run in whose idle time they ran has ended.
    left = [together("a/a", "b/b", slowdown, ("idle", "idle")) for slowdown in ((1.2, 1.4), None)]
    known = together("a/a", "b/b", (1.02, 3.0), BEHIND)
    beliefs = Beliefs(data(TWO, [*left, known]))
    table = table_of(beliefs, caps=(UNCAPPED, BEHIND, BEHIND[::-1]))
    assert table.belief("A100", UNCAPPED, "b/b", "a/a").slowdown == pytest.approx(LAW)
    assert table.belief("A100", BEHIND, "a/a", "b/b").source == "measured once"


def test_the_bound_of_the_largest_slowdown_is_the_largest_number():
    beliefs = Beliefs(data(TWO, [together("a/a", "b/b", (1e15, 1.0))]))
    found = table_of(beliefs).belief("A100", UNCAPPED, "a/a", "b/b")
    assert (found.slowdown, found.upper) == (1e15, 1e15)
