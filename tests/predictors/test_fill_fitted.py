"""Filling an instance by a fitted predictor: GPU models, bounds, mixed caps, sets, rounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.sets import set_slowdown
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.predictors import missing, predict, unsupported
from dovetail.predictors.fitted.trained import TrainedPredictor
from tests.predictors.fitted import Margin, Spy, fit, linear, member, simple

SM = {"a": 0.5, "b": 0.2, "c": 0.1, "d": 0.4}


def instance(jobs="ab", slowdowns=(), models=("V100",), workers=None, sm=SM, **cluster):
    """Build an instance with a job for each letter."""
    nodes = [
        {"id": f"n{k}", "gpu_count": 4, "gpu": {"model": model, "memory_mib": 16000}}
        for k, model in enumerate(models)
    ]
    return Instance.from_data(
        {
            "name": "fill",
            "cluster": {"nodes": nodes, **cluster},
            "workloads": {
                name: {"memory_mib": 1000, "metrics": {"sm_active": activity}}
                for name, activity in sm.items()
            },
            "jobs": [
                {"id": f"j{k}", "workload": name, "workers": (workers or {}).get(k, 1)}
                for k, name in enumerate(jobs)
            ],
            "slowdowns": slowdowns,
        }
    )


def anywhere(bound=None, **more):
    """Return ``simple`` for caps of every kind."""
    splits = [(0, 0), (1, 99), (50, 50), (0, 1), (0, 100)]
    return simple(bound, splits=splits, **more)


def test_entries_name_the_gpu_model_and_have_bounds_by_hand():
    # a: 1 + 0.1 * 0.5 + 0.2 = 1.25; b: 1 + 0.02 + 0.5 = 1.52; both were measured: + 0.1 * 0.9.
    (entry,) = predict(instance(), simple(Margin())).slowdowns
    assert (entry.pair, entry.gpu_model, entry.power_w) == (("a", "b"), "V100", None)
    assert (entry.slowdown, entry.upper) == ((1.25, 1.52), (1.34, 1.61))


def test_a_chosen_confidence():
    (entry,) = predict(instance(), simple(Margin()), confidence=0.5).slowdowns
    assert entry.upper == (1.3, 1.57)


def test_bounds_are_those_of_the_largest_gang():
    # j2 runs a on 4 GPUs: 1.25 + 4 * 0.09 = 1.61.
    filled = predict(instance("aba", workers={2: 4}), simple(Margin()))
    of_pair = {entry.pair: entry.upper for entry in filled.slowdowns}
    assert of_pair["a", "b"] == (1.61, 1.61)


def test_a_bound_that_cannot_be_given_lets_no_gsla_pass():
    class Nothing(Margin):
        def upper(self, slowdown, standing, confidence, workers=1, error=None):
            return slowdown + float("inf")

    (entry,) = predict(instance(), simple(Nothing())).slowdowns
    assert entry.upper == (1e15, 1e15)


class OfKnown(Margin):
    """Bounds for known workloads up to 0.95, for others none."""

    def largest_confidence(self, standing, workers=1):
        return 0.0 if standing else 0.95

    def upper(self, slowdown, standing, confidence, workers=1, error=None):
        most = np.where(standing, 0.0, 0.95)
        return np.where(confidence <= most, slowdown + self.step, np.nan)


def test_pairs_without_a_bound_get_no_entry():
    # a and b were measured, c was not.
    filled = predict(instance("abc"), simple(OfKnown()))
    assert [entry.pair for entry in filled.slowdowns] == [("a", "b")]
    assert unsupported(instance("abc"), simple(OfKnown())) == {
        "co-runner of a new family (1 worker)": 0.0,
        "new family (1 worker)": 0.0,
    }
    assert unsupported(instance("ab"), simple(OfKnown())) == {}
    assert unsupported(instance("ab")) == {}


def test_a_confidence_that_supports_no_pair_is_refused():
    rule = r"^confidence: must be at most 0\.95, .* got 0\.96$"
    with pytest.raises(InputError, match=rule):
        predict(instance("abc"), simple(OfKnown()), confidence=0.96)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(itertools.combinations_with_replacement("abc", 2))),
            st.booleans(),
            st.sampled_from([None, (50, 50)]),
            st.sampled_from([None, "V100"]),
            st.sampled_from([None, (1.9, 1.9)]),
        ),
        unique_by=lambda drawn: (drawn[0], drawn[2]),
    ),
    st.booleans(),
)
def test_what_was_measured_is_never_replaced(drawn, analytic):
    measured = [
        {"pair": pair[::-1] if turned else pair, "share": share, "gpu_model": gpu, "slowdown": both}
        for pair, turned, share, gpu, both in drawn
    ]
    predictor = "analytic" if analytic else anywhere(Margin())
    jobs = {"jobs": "aabbcc", "models": ("V100", "K80") if analytic else ("V100",)}
    shares = {"shares": [50], "max_jobs_per_gpu": 3}
    before = predict(instance(**jobs, **shares), predictor, sets=True)
    known = instance(**jobs, slowdowns=measured, **shares)
    after = predict(known, predictor, sets=True, previous=before)
    assert after.slowdowns[: len(drawn)] == known.slowdowns
    table = SlowdownTable.of(after)
    for entry in known.slowdowns:
        a, b = (table.place[name] for name in entry.pair)
        caps = table.caps.index(entry.share or (None, None))
        cell = table.slowdown[table.models.index("V100"), caps, a, b]
        assert np.isnan(cell) if entry.slowdown is None else cell == 1.9


def test_power_is_filled_in():
    power = member(linear((10, 20), base=100.0), "sm_active")
    (entry,) = predict(instance(), simple(power=power)).slowdowns
    assert entry.power_w == 110.5


def test_one_entry_for_each_gpu_model_of_the_cluster():
    slow = fit(member(linear((0, 0), base=3.0), "sm_active"))
    both = TrainedPredictor({**simple().fits, "K80": slow, "P100": slow})
    filled = predict(instance(models=("K80", "V100")), both)
    assert {(e.gpu_model, e.slowdown) for e in filled.slowdowns} == {
        ("K80", (3.0, 3.0)),
        ("V100", (1.25, 1.52)),
    }
    known = {"pair": ["b", "a"], "slowdown": None, "gpu_model": "K80"}
    filled = predict(instance(models=("K80", "V100"), slowdowns=[known]), both)
    assert [e.gpu_model for e in filled.slowdowns] == ["K80", "V100"]
    known = {"pair": ["a", "b"], "slowdown": [2.0, 2.0]}
    assert len(predict(instance(models=("K80", "V100"), slowdowns=[known]), both).slowdowns) == 1


def test_a_gpu_model_that_it_was_not_fitted_for():
    problem = instance(models=("V100", "A100"))
    with pytest.raises(InputError, match=r"^cluster.nodes: .* fitted for V100 and not for A100$"):
        predict(problem, simple())
    filled = predict(problem, simple().standing_in({"A100": "V100"}))
    assert [e.gpu_model for e in filled.slowdowns] == ["V100", "A100"]


def test_mixed_adds_pairs_with_one_cap():
    problem = instance("abb", shares=[30, 70])
    plain = {(e.pair, e.share) for e in predict(problem, anywhere(Margin())).slowdowns}
    mixed = {(e.pair, e.share) for e in predict(problem, anywhere(Margin()), mixed=True).slowdowns}
    pair, itself = ("a", "b"), ("b", "b")
    assert plain == {(pair, None), (pair, (30, 70)), (pair, (70, 30)), (itself, None),
                     (itself, (30, 70))}  # fmt: skip
    assert mixed - plain == {
        *((pair, share) for share in [(None, 30), (30, None), (None, 70), (70, None)]),
        *((itself, share) for share in [(None, 30), (None, 70)]),
    }


def test_mixed_says_nothing_where_the_predictor_does_not():
    problem = instance(shares=[30, 70])
    assert predict(problem, simple(), mixed=True) == predict(problem, simple())


def of_sets(filled):
    return {entry.set: entry for entry in filled.slowdowns if entry.set}


def test_sets_are_made_from_pairs():
    filled = predict(instance("abc", max_jobs_per_gpu=3), simple(Margin()), sets=True)
    (entry,) = of_sets(filled).values()
    pairs = {e.pair: e for e in filled.slowdowns if e.pair}
    for values in ("slowdown", "upper"):
        table = [[1.0] * 3 for _ in range(3)]
        for (i, x), (j, y) in itertools.combinations(enumerate("abc"), 2):
            table[i][j], table[j][i] = getattr(pairs[x, y], values)
        assert getattr(entry, values) == pytest.approx(set_slowdown(table), abs=1.1e-4)
    assert (entry.set, entry.gpu_model) == (("a", "b", "c"), "V100")


def test_sets_that_jobs_can_make():
    filled = predict(instance("aabc", max_jobs_per_gpu=4), simple(), sets=True)
    assert set(of_sets(filled)) == {
        ("a", "a", "b"), ("a", "a", "c"), ("a", "b", "c"), ("a", "a", "b", "c"),
    }  # fmt: skip
    assert not of_sets(predict(instance("aabc", max_jobs_per_gpu=4), simple()))
    assert not of_sets(predict(instance("aabc"), simple(), sets=True))


def test_measured_pairs_count_in_sets_and_known_sets_stay():
    never = {"pair": ["a", "b"], "slowdown": None}
    cluster = {"max_jobs_per_gpu": 3}
    filled = predict(instance("abcd", [never], **cluster), simple(), sets=True)
    assert set(of_sets(filled)) == {("a", "c", "d"), ("b", "c", "d")}
    # Neither c nor d slows another job, so a and b slow each other as measured.
    free = [{"pair": [x, y], "slowdown": [1.0, 1.0]} for x, y in ("ac", "bc")]
    measured = {"pair": ["b", "a"], "slowdown": [1.7, 1.3], "upper": [1.9, 1.4]}
    filled = predict(instance("abc", [measured, *free], **cluster), simple(), sets=True)
    assert of_sets(filled)["a", "b", "c"].slowdown == (1.3, 1.7, 1.0)
    assert of_sets(filled)["a", "b", "c"].upper == (1.4, 1.9, 1.0)
    assert of_sets(filled)["a", "b", "c"].p99 is None
    late = {**measured, "p99": [4.0, 3.0]}
    filled = predict(instance("abc", [late, *free], **cluster), simple(), sets=True)
    assert filled.slowdowns[0].p99 == (4.0, 3.0)
    assert of_sets(filled)["a", "b", "c"].p99 == (3.0, 4.0, 1.0)
    known = {"set": ["c", "b", "a"], "slowdown": None}
    filled = predict(instance("abc", [known], **cluster), simple(), sets=True)
    assert set(of_sets(filled)) == {("c", "b", "a")}


def test_sets_of_any_predictor():
    problem = Instance.from_data(
        {
            **instance("aaa", max_jobs_per_gpu=3).to_data(),
            "workloads": {
                "a": {
                    "memory_mib": 1,
                    "metrics": {"sm_active": 0.5, "dram_active": 0.0, "pcie_rx_bytes_s": 0.0},
                },
            },
        }
    )
    entry = of_sets(predict(problem, "analytic", sets=True))["a", "a", "a"]
    assert (entry.upper, entry.gpu_model) == (None, None)
    assert len(set(entry.slowdown)) == 1


def test_too_many_entries_are_refused(monkeypatch):
    monkeypatch.setattr("dovetail.predictors.fill.MOST_ENTRIES", 6)
    assert len(predict(instance("abcd"), simple()).slowdowns) == 6
    with pytest.raises(InputError, match="slowdowns: must need at most 6 predicted entries"):
        predict(instance("aabcd"), simple())
    with pytest.raises(InputError, match="at most 6"):
        predict(instance("abcd" * 9, max_jobs_per_gpu=9), simple(), sets=True)


def test_sets_of_pairs_that_are_unknown_take_no_time():
    sm = {f"w{k}": None for k in range(200)}
    problem = instance(list(sm), sm=sm, max_jobs_per_gpu=9)
    assert predict(problem, simple(), sets=True) == problem


def test_a_confidence_without_bounds_is_refused():
    with pytest.raises(UnsupportedError, match="no upper bounds"):
        predict(instance(), "analytic", confidence=0.9)


def test_missing_names_what_no_fit_can_do_without():
    problem = instance("abc", sm={**SM, "c": None})
    assert missing(problem, simple()) == {"c": ("sm_active",)}
    assert len(predict(problem, simple()).slowdowns) == 1


def spied():
    spy = Spy(linear((0.1, 1.0)))
    one = simple(Margin())
    fits = {"V100": replace(one.fits["V100"], member=member(spy, "sm_active"))}
    return spy, TrainedPredictor(fits)


def test_the_next_round_asks_for_new_workloads_only():
    spy, predictor = spied()
    first = predict(instance("abc"), predictor)
    assert spy.rows == 2 * 3
    spy.rows = 0
    later = instance("acd")
    assert predict(later, predictor, previous=first) == predict(later, spied()[1])
    # (a, c) is known already; (a, d) and (c, d) are new.
    assert spy.rows == 2 * 2
    spy.rows = 0
    gang = instance("ac", workers={0: 2})
    assert predict(gang, predictor, previous=first) == predict(gang, spied()[1])
    assert spy.rows == 2


letters = st.lists(st.sampled_from("abcd"), max_size=6)


@settings(max_examples=60)
@given(letters, letters, st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1)), st.booleans())
def test_a_round_after_any_other_equals_a_fresh_one(before, after, changes, mixed):
    options = {"mixed": mixed, "sets": True}
    shape = {"shares": [30, 70], "max_jobs_per_gpu": 3}
    predictor = anywhere(Margin())
    first = predict(instance(before, **shape), predictor, **options)
    later = instance(after, sm={**SM, **changes}, **shape)
    fresh = predict(later, predictor, **options)
    assert predict(later, predictor, previous=first, **options) == fresh
    assert predict(fresh, predictor, **options) == fresh
