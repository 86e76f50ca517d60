"""The value of a placed job under each objective, by hand, and theorem 1."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import sensitivities, shortens_mean_completion
from dovetail.instances.errors import InputError
from tests.data import small

JOB = {"id": "j", "weight": 3.0, "workers": 2, "remaining_s": 60.0}


def gain(objective, slowdown=1.5):
    instance = small([JOB])
    workload = instance.workloads["a"].replace(speed={"V100": 0.5}, power_w=200.0)
    instance = instance.replace(workloads={**instance.workloads, "a": workload})
    values = job_values(Round.of(instance), objective)
    return values.gain(np.array([0]), np.array([slowdown]), "V100")[0]


def test_throughput():
    assert gain("throughput") == pytest.approx(3 * 0.5 / 1.5)


def test_slowdown_has_nothing_to_do_with_speed():
    assert gain("slowdown") == pytest.approx(-3 * 1.5)


def test_sensitivity_of_a_job_without_others_is_1():
    assert gain("sensitivity") == pytest.approx(-3 * 1.5)


def test_jct():
    assert gain("jct") == pytest.approx(3 * 0.5 / (1.5 * 60))


def test_energy_counts_every_worker():
    assert gain("energy") == pytest.approx(3 * 2 * 0.5 / 1.5)


def test_an_objective_names_the_field_it_misses():
    with pytest.raises(InputError, match="remaining_s"):
        job_values(Round.of(small([{"id": "j"}])), "jct")
    with pytest.raises(InputError, match="power_w"):
        job_values(Round.of(small([{"id": "j"}])), "energy")


def sensitivity_of_first(jobs, slowdowns, **cluster):
    named = [{"id": f"j{k}", "workload": name} for k, name in enumerate(jobs)]
    return sensitivities(Round.of(small(named, slowdowns, shares=[50], **cluster)))[0]


AB = {"pair": ["a", "b"], "slowdown": [1.2, 1.9]}
AC = {"pair": ["c", "a"], "slowdown": [1.7, 1.6]}
AA = {"pair": ["a", "a"], "slowdown": [1.4, 1.4]}


def test_sensitivity_is_the_deviation_of_the_lowest_over_the_other_jobs():
    # With b 1.2, with c 1.6: mean 1.4, deviation 0.2.
    assert sensitivity_of_first("abc", [AB, AC]) == pytest.approx(0.2)
    # A second b counts again: 1.2, 1.2, 1.6 has mean 4/3 and variance (2 (2/15)^2 + (4/15)^2)/3.
    assert sensitivity_of_first("abbc", [AB, AC]) == pytest.approx((24 / 225 / 3) ** 0.5)


def test_sensitivity_counts_other_jobs_of_the_same_workload_but_not_itself():
    # a itself has no one at 1.4; with a second a: 1.4, 1.2, 1.6, deviation sqrt(0.08 / 3).
    assert sensitivity_of_first("abc", [AA, AB, AC]) == pytest.approx(0.2)
    assert sensitivity_of_first("aabc", [AA, AB, AC]) == pytest.approx((0.08 / 3) ** 0.5)


def test_sensitivity_takes_the_lowest_over_all_shares():
    # With b at 50/50 only 1.0: 1.0 and 1.6, deviation 0.3.
    capped = {"pair": ["a", "b"], "share": [50, 50], "slowdown": [1.0, 3.0]}
    assert sensitivity_of_first("abc", [AB, capped, AC]) == pytest.approx(0.3)


def test_sensitivity_is_1_where_fewer_than_two_are_known_and_at_least_a_hundredth():
    assert sensitivity_of_first("abc", [AB]) == 1
    assert sensitivity_of_first("abc", [AB, {**AC, "slowdown": None}]) == 1
    assert sensitivity_of_first("abc", [AB, {**AC, "slowdown": [1.7, 1.2]}]) == 0.01


def test_sensitivity_knows_nothing_of_models_that_the_cluster_lacks():
    elsewhere = {"pair": ["a", "c"], "slowdown": [1.6, 1.7], "gpu_model": "K80"}
    assert sensitivity_of_first("abc", [AB, elsewhere]) == 1


def test_sensitivity_knows_the_pairs_of_a_model_that_takes_one_job_at_a_time():
    one = {"gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000, "max_jobs": 1}}
    assert sensitivity_of_first("abc", [AB, AC], nodes=[{"id": "n", **one}]) == pytest.approx(0.2)


def shortens(slowdown, remaining, running=(False, False), alone=(1.0, 1.0)):
    found = shortens_mean_completion(
        np.array([slowdown]), np.array([alone]), np.array([remaining]), np.array([running])
    )
    return bool(found[0])


def test_theorem_1_where_the_second_ends_first():
    # a A = 1.5 x 100 = 150 >= b B = 1.2 x 40 = 48: B ends at 48, A at 48 + 100 - 48/1.5 = 116;
    # mean 82. One after the other, the shorter first: 40 and 140, mean 90.
    assert shortens((1.5, 1.2), (100.0, 40.0))
    # At 1.5 and 2.2: B ends at 88, A at 88 + 100 - 88/1.5 = 129.3; mean 108.7 > 90.
    assert not shortens((1.5, 2.2), (100.0, 40.0))


def test_theorem_1_where_the_first_ends_first():
    assert shortens((1.2, 1.5), (40.0, 100.0))
    assert not shortens((2.2, 1.5), (40.0, 100.0))


def test_theorem_1_lets_the_running_job_go_first():
    # Of 100 s running and 40 s pending: 100 and 140, mean 120 > 108.7, so sharing is better now;
    # the other way round it stays 40 and 140.
    assert shortens((1.5, 2.2), (100.0, 40.0), running=(True, False))
    assert not shortens((1.5, 2.2), (100.0, 40.0), running=(False, True))


def test_theorem_1_asks_for_earlier_not_for_as_early():
    # Both 10 s at 1.5: both end at 15; one after the other 10 and 20, mean 15.
    assert not shortens((1.5, 1.5), (10.0, 10.0))
    assert shortens((1.49, 1.49), (10.0, 10.0))


def test_theorem_1_keeps_a_sub_batch_to_the_end_of_its_job():
    # Of 100 s running and 1000 s joining at half batch, factor 1.24: the first ends at 105, the
    # second at 105 + 1.24 x (1000 - 105 / (1.05 x 1.24)) = 1245; mean 675 > (100 + 1100) / 2.
    assert not shortens(
        (1.05, 1.05 * 1.24), (100.0, 1000.0), running=(True, False), alone=(1.0, 1.24)
    )
    # At 1.07: 105 + 1.07 x (1000 - 105 / (1.05 x 1.07)) = 1075; mean 590.
    assert shortens((1.05, 1.05 * 1.07), (100.0, 1000.0), running=(True, False), alone=(1.0, 1.07))


def test_theorem_1_reckons_a_running_job_at_its_sub_batch_in_both_cases():
    # Shared, 120 s running at factor 1.5 end at 1.2 x 1.5 x 120 = 216, 200 s joining then have
    # 200 - 216 / 1.2 = 20 left: 236; mean 226. One after the other: 180 and 380; mean 280.
    assert shortens((1.8, 1.2), (120.0, 200.0), running=(True, False), alone=(1.5, 1.0))
    # Pending, it would wait and run at full batch: 120 and 320; mean 220.
    assert not shortens((1.8, 1.2), (120.0, 200.0), alone=(1.5, 1.0))
