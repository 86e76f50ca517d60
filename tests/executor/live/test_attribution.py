"""The parts of shared devices that jobs answer for, against written-out arithmetic."""

from __future__ import annotations

import pytest

from dovetail.executor.live.observation.attribution import (
    LONGEST_S,
    Accounts,
    DeviceSharer,
    attributed,
)
from dovetail.executor.pools.pool import Usage


def resident(job, speed, alone_w=None, measured=True):
    return DeviceSharer(f"{job}.1", job, speed, measured, alone_w)


def parts(residents, power_w, idle_w=0.0):
    found = attributed(residents, power_w, idle_w)
    return [one.time for one in found], [one.power_w for one in found]


def test_a_job_alone_answers_for_the_whole_device():
    (part,) = attributed([resident("j1", None)], 300.0, 70.0)
    assert (part.time, part.power_w) == (1.0, 300.0)
    assert (part.time_source, part.power_source) == ("measured", "measured")


def test_time_is_split_by_speed_and_dynamic_power_by_work():
    # Slowdowns 1.25 and 2: speeds 0.8 and 0.5, times 8/13 and 5/13. Dynamic power alone 200 and
    # 100 W: 160 and 50 W of work at these speeds. Of 300 W, 60 are idle: 30 each, and 240 are
    # split 160 : 50.
    both = [resident("j1", 0.8, 260.0), resident("j2", 0.5, 160.0)]
    times, powers = parts(both, 300.0, 60.0)
    assert times == pytest.approx([8 / 13, 5 / 13])
    assert powers == pytest.approx([30 + 240 * 160 / 210, 30 + 240 * 50 / 210])
    assert sum(powers) == pytest.approx(300.0)
    assert {one.power_source for one in attributed(both, 300.0, 60.0)} == {"modelled"}


def test_a_predicted_speed_makes_the_times_modelled():
    both = [resident("j1", 0.8), resident("j2", 0.5, measured=False)]
    assert {one.time_source for one in attributed(both, None, 0.0)} == {"modelled"}


def test_what_is_unknown_is_split_equally_and_says_so():
    both = [resident("j1", 0.8, 260.0), resident("j2", None, None)]
    times, powers = parts(both, 300.0, 60.0)
    assert (times, powers) == ([0.5, 0.5], [150.0, 150.0])
    found = attributed(both, 300.0, 60.0)
    assert {(one.time_source, one.power_source) for one in found} == {("equal", "equal")}


def test_a_paused_job_answers_for_idle_power_only():
    times, powers = parts([resident("j1", 1.0, 260.0), resident("j2", 0.0, 200.0)], 250.0, 50.0)
    assert times == [1.0, 0.0]
    assert powers == pytest.approx([225.0, 25.0])


def test_a_device_below_its_idle_power_is_split_equally():
    _, powers = parts([resident("j1", 1.0, 260.0), resident("j2", 0.5, 200.0)], 40.0, 60.0)
    assert powers == pytest.approx([20.0, 20.0])


def test_unknown_power_leaves_time():
    times, powers = parts([resident("j1", 0.5), resident("j2", 0.5)], None)
    assert (times, powers) == ([0.5, 0.5], [None, None])


def reading(at_s, energy_j):
    return {"g": Usage(at_s, energy_j=energy_j)}


def test_energy_adds_up_to_the_counter_of_the_device():
    accounts = Accounts()
    first, second = resident("j1", 0.8, 260.0), resident("j2", 0.5, 160.0)
    readings = [reading(0, 100.0), reading(1, 400.0), reading(3, 900.0), reading(4, 1000.0)]
    accounts.charge({}, readings[0])
    accounts.settle({"g": [first]}, {})
    accounts.charge(readings[0], readings[1])  # 300 J, all of the first
    accounts.settle({"g": [first, second]}, {})
    accounts.charge(readings[1], readings[2])  # 250 W for 2 s: 500 J, 208 : 80 of dynamic power
    accounts.settle({"g": [first, second]}, {})
    assert accounts.of_run["j1.1"].energy_j == pytest.approx(300 + 500 * 208 / 288)
    assert accounts.of_run["j2.1"].energy_j == pytest.approx(500 * 80 / 288)
    assert accounts.of_run["j1.1"].device_s == pytest.approx(1 + 2 * 8 / 13)
    accounts.charge(readings[2], readings[3])
    total = sum(one.energy_j for one in accounts.of_run.values())
    assert total == pytest.approx(900.0)


def test_idle_power_is_the_least_that_was_seen_without_jobs():
    accounts = Accounts()
    both = {"g": [resident("j1", 1.0, 100.0), resident("j2", 1.0, 300.0)]}
    accounts.settle({}, {})
    accounts.charge(reading(0, 0.0), reading(1, 80.0))
    accounts.charge(reading(1, 80.0), reading(2, 140.0))
    accounts.charge(reading(2, 140.0), reading(3, 220.0))
    accounts.settle(both, {"g": 260.0})
    # 60 W are idle: 30 each; 200 W are split 40 : 240.
    powers = [one.power_w for one in accounts.parts["g"]]
    assert powers == pytest.approx([30 + 200 * 40 / 280, 30 + 200 * 240 / 280])


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (reading(0, 0.0), reading(LONGEST_S + 1, 900.0)),
        (reading(5, 0.0), reading(5, 900.0)),
        ({}, reading(1, 900.0)),
    ],
    ids=["too long", "the same reading", "the first reading"],
)
def test_time_of_which_nothing_is_known_is_charged_to_nobody(before, now):
    accounts = Accounts()
    accounts.settle({"g": [resident("j1", 1.0)]}, {})
    accounts.charge(before, now)
    assert accounts.of_run == {}


def test_a_counter_that_went_back_charges_time_only():
    accounts = Accounts()
    accounts.settle({"g": [resident("j1", 1.0)]}, {})
    accounts.charge(reading(0, 500.0), reading(1, 3.0))
    assert accounts.of_run["j1.1"] == (None, 1.0)


def test_runs_that_have_left_are_forgotten():
    accounts = Accounts()
    accounts.settle({"g": [resident("j1", 1.0)]}, {})
    accounts.charge(reading(0, 0.0), reading(1, 9.0))
    accounts.settle({"g": [resident("j2", 1.0)]}, {})
    assert accounts.of_run == {}
    assert [one.job for one in accounts.parts["g"]] == ["j2"]
