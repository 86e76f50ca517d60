from math import sqrt

import pytest

from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.noise import noise
from tests.measuring.made import pace, result


def repeats(seats, *times, **fields):
    """Return repeats of a setting, a second apart; ``times`` are those of the workers."""
    return [
        result(seats, each, repeat=at, date=f"2026-11-22T10:00:0{at}+00:00", **fields)
        for at, each in enumerate(times)
    ]


def test_nothing_repeated_gives_no_noise():
    assert noise([]) is None
    assert noise([*repeats(["conv"], [0.02]), *repeats(["lstm"], [0.01])]) is None


def test_the_scatter_of_one_setting_by_hand():
    # 9, 10 and 11 ms: standard deviation of the sample 1 ms, mean 10 ms.
    found = noise(repeats(["conv"], [0.009], [0.010], [0.011])).worst
    assert (found.setting, found.workload, found.repeats) == ("conv", "conv", 3)
    assert found.deviation == pytest.approx(0.1)
    assert found.within == pytest.approx(0.01)


def test_each_worker_of_a_pair_scatters_by_itself():
    seats = [WorkerSeat("conv", "mps", 50), WorkerSeat("lstm", "mps", 50)]
    found = noise(repeats(seats, [0.01, 0.02], [0.01, 0.04]))
    assert (found.worst.setting, found.worst.workload) == ("conv@50 + lstm@50", "lstm")
    # 20 and 40 ms: deviation 20 / sqrt(2), mean 30; the other does not scatter.
    assert found.worst.deviation == pytest.approx(20 / sqrt(2) / 30)
    assert found.typical == pytest.approx(20 / sqrt(2) / 30 / 2)


def test_the_noise_floor_by_hand():
    found = noise([
        *repeats(["conv"], [0.009], [0.010], [0.011]),  # deviation 0.1, two degrees of freedom
        *repeats(["lstm"], [0.02], [0.02]),  # deviation 0, one
    ])  # fmt: skip
    assert found.settings == 2
    assert found.typical == pytest.approx(0.05)
    assert found.pooled == pytest.approx(sqrt(2 * 0.1**2 / 3))
    assert found.worst.workload == "conv"
    assert found.within == pytest.approx(0.01)
    # conv: 11 / 9; lstm: 1; geometric mean of both.
    assert found.drift == pytest.approx(sqrt(11 / 9) - 1)


def test_modes_and_caps_are_settings_of_their_own_but_stages_are_not():
    one = result(["conv"], [0.01])
    assert noise([one, result([WorkerSeat("conv", "mps", 50)], [0.02])]) is None
    assert noise([one, result([WorkerSeat("conv", "time-sliced")], [0.02])]) is None
    assert noise([one, result(["conv"], [0.01], stage=3)]).settings == 1


def test_unsound_windows_do_not_count():
    disturbed = result(["conv"], [0.05], repeat=1, disturbed_by=[7])
    failed = result(["conv"], repeat=2, status="failed")
    assert noise([result(["conv"], [0.01]), disturbed, failed]) is None


def test_drift_is_from_the_first_in_time_whatever_was_tried_again():
    early, late = repeats(["conv"], [0.010], [0.012])
    assert noise([late, early]).drift == pytest.approx(0.2)


def test_windows_errors_are_pooled_as_squares():
    one = result(["conv"], paces=[pace(0.01, 0.03)])
    other = result(["conv"], paces=[pace(0.01, 0.01)], repeat=1)
    assert noise([one, other]).within == pytest.approx(sqrt((0.03**2 + 0.01**2) / 2))
