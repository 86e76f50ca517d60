"""Filling an instance: entries added, entries kept, and entries that stay unknown."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import predictors
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.shares import share_code
from dovetail.predictors import AnalyticPredictor, KernelsPredictor, Prediction

HEAVY = {"sm_active": 0.9, "dram_active": 0.3, "pcie_rx_bytes_s": 0.0}
LIGHT = {"sm_active": 0.1, "dram_active": 0.05, "pcie_rx_bytes_s": 0.0}


def predict(problem, predictor="analytic", **options):
    return predictors.predict(problem, predictor, **options)


def missing(problem, predictor="analytic"):
    return predictors.missing(problem, predictor)


def in_doubt(filled, predictor="analytic"):
    return predictors.in_doubt(filled, predictor)


def assumed(problem, predictor="analytic"):
    return predictors.assumed(problem, predictor)


def instance(jobs="ab", slowdowns=(), **cluster):
    """Build an instance with a job for each letter; a is heavy, b light, c not profiled."""
    node = {"id": "n0", "gpu_count": 2, "gpu": {"model": "V100", "memory_mib": 16000}}
    return Instance.from_data(
        {
            "name": "fill",
            "cluster": {"nodes": [node], **cluster},
            "workloads": {
                "a": {"memory_mib": 1000, "metrics": HEAVY},
                "b": {"memory_mib": 1000, "metrics": LIGHT},
                "c": {"memory_mib": 1000, "metrics": {"dram_active": 0.5}},
            },
            "jobs": [{"id": f"j{k}", "workload": name} for k, name in enumerate(jobs)],
            "slowdowns": slowdowns,
        }
    )


def keys(filled):
    return {entry.key[1] for entry in filled.slowdowns}


def test_uncapped_pair_by_hand():
    # Portions (compute, dram): a = (0.6, 0.3), b = (0.05, 0.05).
    # Each waits 0.6 * 0.05 + 0.3 * 0.05 = 0.045.
    (entry,) = predict(instance()).slowdowns
    assert (entry.pair, entry.share, entry.gpu_model) == (("a", "b"), None, None)
    assert entry.slowdown == (1.045, 1.045)
    assert (entry.upper, entry.power_w) == (None, None)


def test_numbers_are_rounded_upward():
    # a with itself waits 0.6 * 0.6 + 0.3 * 0.3 = 0.45; at a third of the bus more, with
    # 5e9 / 15.7538e9 = 0.31738 squared = 0.100732: 1.550732 in all.
    bus = {**HEAVY, "pcie_rx_bytes_s": 5e9}
    data = instance("aa").to_data()
    data["workloads"]["a"]["metrics"] = bus
    (entry,) = predict(Instance.from_data(data)).slowdowns
    assert entry.slowdown == (1.5508, 1.5508)


def test_the_noise_of_floating_point_is_not_rounded_upward():
    # 1 + 0.6 * 0.6 + 0.3 * 0.3 comes out as 1.4500000000000002.
    (entry,) = predict(instance("aa")).slowdowns
    assert entry.slowdown == (1.45, 1.45)


def test_every_two_allowed_caps_that_sum_to_share_sum():
    filled = predict(instance(shares=[20, 30, 50, 80], share_sum=100))
    assert keys(filled) == {
        (("a", 20), ("b", 80)),
        (("a", 50), ("b", 50)),
        (("a", 80), ("b", 20)),
    }


def test_a_smaller_share_sum_is_kept_to():
    filled = predict(instance(shares=[20, 30, 50, 80], share_sum=50))
    assert keys(filled) == {(("a", 20), ("b", 30)), (("a", 30), ("b", 20))}


def test_caps_that_would_overlap_stay_unknown():
    filled = predict(instance(shares=[60], share_sum=120))
    assert keys(filled) == {(("a", 0), ("b", 0))}


def test_a_workload_meets_itself_only_where_two_jobs_run_it():
    filled = predict(instance("abb", shares=[40, 60]))
    assert {entry.pair for entry in filled.slowdowns} == {("a", "b"), ("b", "b")}
    itself = [entry.key[1] for entry in filled.slowdowns if entry.pair == ("b", "b")]
    assert itself == [(("b", 40), ("b", 60))]


def test_workloads_that_no_job_runs_are_left_out():
    assert predict(instance("a")).slowdowns == ()


@pytest.mark.parametrize("value", [[1.7, 1.6], None])
def test_known_entries_are_left_alone_also_when_mirrored(value):
    known = {"pair": ["b", "a"], "share": [60, 40], "slowdown": value}
    filled = predict(instance(slowdowns=[known], shares=[40, 60]))
    assert filled.slowdowns[0] == instance(slowdowns=[known]).slowdowns[0]
    assert [entry.shares for entry in filled.slowdowns] == [(60, 40), (60, 40)]
    assert filled.slowdowns[1].pair == ("a", "b")


def test_known_entries_are_found_whatever_the_order_of_the_workloads():
    data = instance(slowdowns=[{"pair": ["a", "b"], "slowdown": None}]).to_data()
    data["workloads"] = dict(reversed(data["workloads"].items()))
    problem = Instance.from_data(data)
    assert predict(problem) == problem


def test_an_entry_for_the_only_gpu_model_is_enough():
    known = {"pair": ["a", "b"], "slowdown": [1.5, 1.5], "gpu_model": "V100"}
    assert len(predict(instance(slowdowns=[known])).slowdowns) == 1


def test_an_entry_for_another_gpu_model_is_not():
    known = {"pair": ["a", "b"], "slowdown": None, "gpu_model": "K80"}
    filled = predict(instance(slowdowns=[known]))
    assert [entry.gpu_model for entry in filled.slowdowns] == ["K80", None]


def test_workloads_without_metrics_are_named_and_passed_over():
    problem = instance("abc")
    assert missing(problem) == {"c": ("sm_active or gpu_util",)}
    assert {entry.pair for entry in predict(problem).slowdowns} == {("a", "b")}


def test_only_workloads_of_jobs_are_missing():
    assert missing(instance("ab")) == {}


def test_an_instance_without_jobs_is_predicted_for_all_workloads():
    filled = predict(instance("", shares=[40, 60]))
    assert {entry.pair for entry in filled.slowdowns} == {("a", "a"), ("a", "b"), ("b", "b")}
    assert missing(instance("")) == {"c": ("sm_active or gpu_util",)}


def promising(*gslas, metrics=HEAVY, **cluster):
    """Return an instance of a job of a for each gSLA, and one of b without."""
    data = instance("a" * len(gslas) + "b", **cluster).to_data()
    data["workloads"]["b"]["metrics"] = metrics
    for job, gsla in zip(data["jobs"], gslas, strict=False):
        job.update({} if gsla is None else {"gsla": gsla})
    return Instance.from_data(data)


def test_an_estimate_says_that_it_is_one():
    (entry,) = predict(instance()).slowdowns
    assert (entry.source, entry.confidence) == ("estimate", None)
    (entry,) = predict(instance(), Cautious()).slowdowns
    assert (entry.source, entry.confidence) == ("model", None)


def test_no_gsla_rests_on_an_estimate_without_a_bound():
    assert len(predict(promising(None)).slowdowns) == 1
    for cluster in ({}, {"shares": [40, 60]}):
        filled = predict(promising(1.5, **cluster))
        assert filled.slowdowns == ()
        assert in_doubt(filled) == (("a", "b"),)
    # A bound may be wrong, but it is one.
    bounded = predict(promising(1.5), Cautious())
    assert len(bounded.slowdowns) == 1
    assert in_doubt(bounded, Cautious()) == ()


def test_a_pair_that_never_ran_runs_without_caps_only_if_its_bounds_say_so():
    capped = [(40, 60), (60, 40)]
    for problem in (instance(shares=[40, 60]), promising(1.5, shares=[40, 60])):
        # 1 / 1.1495 twice: together more than one after the other.
        found = predict(problem, Cautious())
        assert [entry.shares for entry in found.slowdowns] == [(None, None), *capped]
        # 1 / 2.09 twice: not.
        found = predict(problem, Cautious(2.0))
        assert [entry.shares for entry in found.slowdowns] == capped
        assert in_doubt(found, Cautious(2.0)) == ()
    assert [entry.shares for entry in predict(instance(shares=[40, 60])).slowdowns] == capped
    # Nothing else is open to them.
    assert len(predict(instance(), Cautious(2.0)).slowdowns) == 1


def test_a_pair_measured_under_caps_does_not_run_without_them_on_an_estimate():
    known = {"pair": ["b", "a"], "share": [50, 50], "slowdown": [1.7, 1.6]}
    assert len(predict(instance(slowdowns=[known])).slowdowns) == 1
    failed = {**known, "slowdown": None}
    assert len(predict(instance(slowdowns=[failed])).slowdowns) == 2


def test_a_pair_that_was_filled_in_before_a_gsla_came_is_not_kept():
    filled = predict(promising(None))
    assert len(filled.slowdowns) == 1
    assert predict(promising(1.5), previous=filled).slowdowns == ()


def test_assumptions_are_named():
    data = instance().to_data()
    data["workloads"]["a"]["metrics"] = {"gpu_util": 0.5}
    problem = Instance.from_data(data)
    words = "sm_active by gpu_util", "dram_active by sm_active", "pcie_rx_bytes_s by sm_active"
    assert assumed(problem) == {"a": words}
    assert assumed(problem, Cautious()) == {}


def test_an_unknown_predictor_is_refused_with_the_known_ones():
    message = "must be one of kernels, analytic, got 'oracle'"
    for asked in (predict, missing):
        with pytest.raises(UnsupportedError, match=message):
            asked(instance(), "oracle")


class Cautious:
    """The analytic model with a bound that is so many times its slowdown."""

    def __init__(self, factor=1.1):
        self.factor = factor

    def lacks(self, name, workload):
        return AnalyticPredictor().lacks(name, workload)

    def predict(self, workloads, pairs, shares, gpu_model=None, mode="mps"):
        slowdown = AnalyticPredictor().predict(workloads, pairs, shares).slowdown
        return Prediction(slowdown, self.factor * slowdown)


def test_upper_bounds_of_another_predictor_arrive():
    (entry,) = predict(instance(), Cautious()).slowdowns
    # 1.1 * 1.045 = 1.1495
    assert (entry.slowdown, entry.upper) == ((1.045, 1.045), (1.1495, 1.1495))


def test_filling_twice_changes_nothing():
    filled = predict(instance("aabb", shares=[10, 50, 90]))
    assert predict(filled) == filled


fractions = st.floats(0, 1)
metrics = st.fixed_dictionaries(
    {"sm_active": fractions, "dram_active": fractions, "pcie_rx_bytes_s": st.floats(0, 1e11)}
)


@given(
    st.lists(metrics, min_size=2, max_size=4),
    st.lists(st.integers(1, 100), max_size=5, unique=True),
    st.integers(1, 150),
)
def test_the_result_is_a_valid_instance_and_agrees_with_the_predictor(profiles, shares, total):
    data = instance(shares=shares, share_sum=total).to_data()
    names = [f"w{k}" for k in range(len(profiles))]
    data["workloads"] = {
        name: {"memory_mib": 1, "metrics": m} for name, m in zip(names, profiles, strict=True)
    }
    data["jobs"] = [{"id": f"{name}-{k}", "workload": name} for name in names for k in range(2)]
    filled = predict(Instance.from_data(data))
    assert Instance.from_data(filled.to_data()) == filled
    pairs = {entry.pair for entry in filled.slowdowns}
    assert pairs == set(itertools.combinations_with_replacement(names, 2))
    for entry in filled.slowdowns:
        pair = np.array([[names.index(name) for name in entry.pair]])
        split = np.array([[share_code(share) for share in entry.shares]])
        exact = AnalyticPredictor().predict(filled.workloads, pair, split).slowdown[0]
        assert (np.array(entry.slowdown) >= exact - 1e-7).all()
        assert (np.array(entry.slowdown) <= exact + 1.001e-4).all()


def test_where_jobs_take_turns_entries_are_of_that_mode():
    turns = instance("aab", sharing="time_sliced", max_jobs_per_gpu=3)
    filled = predict(turns, sets=True)
    assert {entry.mode for entry in filled.slowdowns} == {"time_sliced"}
    # Only their SM activity is known: each may hold the GPU all the time.
    assert {e.pair: e.slowdown for e in filled.slowdowns if e.pair} == {
        ("a", "a"): (2.0, 2.0),
        ("a", "b"): (2.0, 2.0),
    }
    (of_three,) = (entry for entry in filled.slowdowns if entry.set)
    assert of_three.slowdown == (3.0, 3.0, 3.0)
    assert assumed(turns) == {"a": ("gpu_util by 1",), "b": ("gpu_util by 1",)}
    # Entries of an earlier round under MPS are not carried over.
    assert predict(turns, sets=True, previous=predict(instance("aab"))) == filled


def test_the_law_of_mps_is_the_default_and_its_bounds_are_those_of_an_estimate():
    problem = promising(1.5, shares=[40, 60])
    filled = predictors.predict(problem)
    assert filled == predict(problem, KernelsPredictor())
    assert {entry.source for entry in filled.slowdowns} == {"estimate"}
    assert {entry.confidence for entry in filled.slowdowns} == {0.9}
    assert {entry.shares for entry in filled.slowdowns} == {(40, 60), (60, 40)}
    assert all(e.upper > e.slowdown for e in filled.slowdowns)
    assert predictors.in_doubt(filled) == ()


def test_the_confidence_of_the_law_can_be_chosen():
    bounds = [
        predictors.predict(instance(), confidence=confidence).slowdowns[0].upper
        for confidence in (0.8, 0.95)
    ]
    assert bounds[0] < bounds[1]
    with pytest.raises(UnsupportedError, match="no upper bounds, so it takes no confidence"):
        predict(instance(), confidence=0.9)


def test_what_the_law_assumes_is_named():
    words = predictors.assumed(instance())
    assert words["a"] == (
        "graphics_active by sm_active",
        "kernel_mean_s by 25 µs",
        "throughput at shares by a roofline",
    )


def test_sets_under_caps_are_predicted_with_what_is_left_of_them():
    problem = instance("aabb", shares=[30, 40], max_jobs_per_gpu=3)
    filled = predictors.predict(problem, sets=True)
    capped = {entry.key[1]: entry for entry in filled.slowdowns if entry.share}
    of_three = {members for members in capped if len(members) == 3}
    # 40 and twice 30, with two jobs of each workload at most.
    assert of_three == {
        tuple(sorted([(first, 30), (second, 30), (third, 40)]))
        for first, second in itertools.combinations_with_replacement("ab", 2)
        for third in "ab"
        if [first, second, third] not in (["a"] * 3, ["b"] * 3)
    }
    for members in of_three:
        for left in itertools.combinations(members, 2):
            assert left in capped
    key = (("a", 30), ("a", 40), ("b", 30))
    known = {name: filled.workloads[name] for name in "ab"}
    found = KernelsPredictor().predict(known, np.array([[0, 0, 1]]), np.array([[30, 40, 30]]))
    assert capped[key].slowdown == pytest.approx(found.slowdown[0], abs=1e-4)
    assert capped[key].upper == pytest.approx(found.upper[0], abs=1e-4)
    assert Instance.from_data(filled.to_data()) == filled


def test_three_jobs_share_a_gpu_under_caps_by_the_law():
    data = instance("bbb", shares=[30, 40], max_jobs_per_gpu=3).to_data()
    data["cluster"]["nodes"][0]["gpu_count"] = 1
    for job in data["jobs"]:
        job["gsla"] = 3.0
    filled = predictors.predict(Instance.from_data(data), sets=True)
    plan = dovetail.solve(filled).plan
    assert len(plan.assignments) == 3
    assert sorted(row.share[0] for row in plan.assignments) == [30, 30, 40]
    assert not dovetail.check(filled, plan).violations


def test_many_shares_and_many_jobs_on_a_gpu_are_bounded():
    problem = instance("ab" * 5, shares=list(range(1, 101)), max_jobs_per_gpu=10)
    filled = predictors.predict(problem, sets=True)
    assert {len(entry.workloads) for entry in filled.slowdowns} == set(range(2, 11))
