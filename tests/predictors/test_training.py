"""From a data set to a predictor and back to new data; all of it on synthetic workloads."""

import functools
import sys
from dataclasses import replace

import numpy as np
import pytest

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import DovetailError, InputError, UnsupportedError
from dovetail.instances.plugins import OWN, Plugin
from dovetail.predictors.estimators.registry import AUTO, MODELS, GpuModelOption, model_names, spec
from dovetail.predictors.fill import predict
from dovetail.predictors.fitted.folds import random_folds
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.online import Online
from dovetail.predictors.fitted.standing import NEW, NEW_CO_RUNNER, OF_NEW_FAMILIES, STANDINGS
from dovetail.predictors.fitted.training import fit, prepared, tried, update
from tests.predictors.fitted import linear, member
from tests.predictors.synthetic import GPU, synthetic

FAST = ("constant", "analytic", "hierarchical")


@pytest.fixture(scope="module")
def data():
    return synthetic(families=4)


@pytest.fixture(scope="module")
def fitted(data):
    """Return how to fit a model to the data, once for all tests."""
    return functools.cache(lambda model: fit(data, model))


def answers(predictor, data):
    """Return what the model itself says of all pairs, measured or not."""
    fits = {name: replace(fitted, evidence=None) for name, fitted in predictor.fits.items()}
    predictor = replace(predictor, fits=fits)
    workloads = data.workloads(GPU)
    pairs = np.array([[a, b] for a in range(len(workloads)) for b in range(len(workloads))])
    return predictor.predict(workloads, pairs, np.zeros_like(pairs), GPU)


@pytest.mark.parametrize("model", FAST)
def test_every_model_goes_from_measurements_to_a_file_and_back(model, data, fitted, tmp_path):
    predictor = fitted(model)
    found = answers(predictor, data)
    mirrored = found.slowdown.reshape(8, 8, 2)
    assert np.isfinite(found.slowdown).all()
    assert (found.upper >= found.slowdown).all()
    assert np.array_equal(mirrored[..., 0], mirrored[..., 1].T)
    save_model(predictor, tmp_path / "m.model")
    again = answers(load_model(tmp_path / "m.model"), data)
    assert np.array_equal(again.slowdown, found.slowdown)
    assert np.array_equal(again.upper, found.upper)


@pytest.fixture(scope="module")
def steps():
    return []


@pytest.fixture(scope="module")
def default(data, steps):
    return fit(data, progress=lambda *step: steps.append(step))


def test_the_default_is_better_than_what_is_not_fitted(fitted, default):
    errors = {model: fitted(model).about.held_out for model in ("constant", "analytic")}
    for setting, found in default.about.held_out.items():
        assert found["mae"] < min(other[setting]["mae"] for other in errors.values())


def test_the_default_answers_for_workloads_it_has_never_met(data, default, tmp_path):
    known = data.workloads(GPU)
    new = {"new": known["f0 b0"].replace(throughput={100: 77.0}), "f1 b0": known["f1 b0"]}
    assert default.lacks("new", new["new"]) == ()
    save_model(default, tmp_path / "m.model")
    for predictor in (default, load_model(tmp_path / "m.model")):
        found = predictor.predict(new, np.array([[0, 1]]), np.zeros((1, 2), dtype=np.int64), GPU)
        assert np.isfinite(found.slowdown).all()
        assert (found.upper > found.slowdown).all()


def test_progress_is_reported(default, steps):
    assert steps == [(f"hierarchical for {GPU}", 0, 1)]


def test_testing_needs_two_folds(data):
    what = prepared(data, "constant")
    assert len(tried(what, list(random_folds(what.rows))[:1], 0).held.row) == 0


def test_gpu_models_are_fitted_apart(data):
    other = [m.replace(gpu_model="other", slowdown=(3.0, 3.0)) for m in data.measurements]
    profiles = [p.replace(gpu_model="other") for p in data.profiles]
    both = DataSet(
        name="both",
        profiles=(*data.profiles, *profiles),
        measurements=(*data.measurements, *other),
    )
    predictor = fit(both, "constant")
    assert predictor.gpu_models == (GPU, "other")
    assert fit(both, "constant", ["other"]).gpu_models == ("other",)
    workloads = both.workloads("other")
    found = predictor.predict(workloads, np.array([[0, 1]]), np.zeros((1, 2), int), "other")
    assert found.slowdown.tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize(("confidence", "families"), [(0.95, 4), (0.99, 24)])
def test_a_confidence_that_cannot_be_honoured_is_refused(confidence, families):
    # Worst possible misses of a new family: 0.25 / 3 with two known ones; 0.25 / 5 with four.
    with pytest.raises(InputError) as caught:
        fit(synthetic(2, 2), "constant", confidence=confidence)
    assert str(caught.value) == (
        "confidence: must be above 0 and at most 0.9166 (what 2 families of workloads can "
        f"support: known workloads, 1 worker), got {confidence:g}; pairs of {families} families "
        f"would be needed on {GPU}"
    )


def test_as_many_families_as_were_said_to_be_needed_are_enough():
    few = synthetic(4, 1)
    assert np.isfinite(answers(fit(few, "constant", confidence=0.95), few).upper).any()


class TestUpdate:
    def test_the_default_and_bounds_take_new_measurements_in(self, data):
        begun = data.replace(measurements=data.measurements[:26])
        predictor = fit(begun)
        learnt = update(predictor, data)
        truth = np.array([m.slowdown for m in data.measurements[26:]])
        names = list(data.workloads(GPU))
        pairs = np.array([[names.index(n) for n in m.workloads] for m in data.measurements[26:]])

        def error(one):
            known = data.workloads(GPU)
            said = one.predict(known, pairs, np.zeros_like(pairs), GPU).slowdown
            return np.nanmean(np.abs(said - truth))

        assert error(learnt.predictor) < error(predictor)
        before, after = predictor.fits[GPU].bound, learnt.predictor.fits[GPU].bound
        assert any(
            new.jobs.sum() > old.jobs.sum()
            for new, old in zip(after.evidence, before.evidence, strict=True)
        )
        assert learnt.predictor.about.training.measurements == len(data.measurements)

    def test_nothing_new_changes_nothing(self, data, fitted):
        predictor = fitted("constant")
        learnt = update(predictor, data)
        assert learnt.predictor.fits == predictor.fits
        assert not learnt.drift[GPU].drifted

    def test_what_the_model_was_fitted_on_says_nothing_of_its_errors(self, data, fitted):
        predictor = fitted("constant")
        turned = tuple(
            m.replace(workloads=m.workloads[::-1], slowdown=m.slowdown[::-1])
            for m in data.measurements[:20]
        )
        later = data.replace(measurements=(*data.measurements, *turned))
        before, after = (
            one.fits[GPU].bound.evidence for one in (predictor, update(predictor, later).predictor)
        )
        assert [e.jobs.sum() for e in after] == [e.jobs.sum() for e in before]

    def test_drift_is_found_where_jobs_are_slower_than_promised(self, data, fitted):
        predictor = fitted("analytic")
        again = [m.replace(slowdown=tuple(2 * s for s in m.slowdown)) for m in data.measurements]
        later = data.replace(measurements=(*data.measurements, *again))
        found = update(predictor, later).drift[GPU]
        assert found.drifted
        assert "more often than promised" in str(found)

    def test_a_workload_met_for_the_first_time_is_known_afterwards(self, data, fitted):
        profile = SoloProfile(
            workload="new",
            gpu_model=GPU,
            metrics={"sm_active": 0.5, "dram_active": 0.2},
            throughput=5.0,
        )
        pair = Measurement(workloads=("new", "f0 b0"), gpu_model=GPU, slowdown=(1.3, 1.4))
        grown = data.replace(
            profiles=(*data.profiles, profile), measurements=(*data.measurements, pair)
        )
        learnt = update(fitted("hierarchical"), grown).predictor
        assert "new" in learnt.fits[GPU].measured

    def test_other_data_are_refused(self, data, fitted):
        predictor = fitted("constant")
        other = data.replace(measurements=data.measurements[1:])
        with pytest.raises(InputError, match="must begin with the 8 profiles and 36 measurements"):
            update(predictor, other)


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        ("best", f"model must be one of {', '.join(MODELS)}, "),
        (
            "analytic",
            "analytic needs of every measured workload also sm_active or gpu_util, "
            "dram_active or mem_util, which bare does not have",
        ),
    ],
)
def test_models_that_cannot_be(model, rule):
    pair = Measurement(workloads=("a", "b"), gpu_model=GPU, slowdown=(1.0, 1.0))
    with pytest.raises(UnsupportedError) as caught:
        fit(DataSet(name="bare", measurements=[pair]), model)
    assert str(caught.value).startswith(rule)


@pytest.fixture
def tuned(monkeypatch):
    """A plugin: a model with two options; return the tasks that it was prepared for."""
    tasks = []

    def prepare(made, task, options):
        tasks.append((task.gpu_model, task.seed, dict(options)))
        return made

    options = {"extra": float, "from": GpuModelOption}
    own = spec("constant")._replace(options=options, prepare=prepare)
    monkeypatch.setattr(sys.modules[__name__], "SPEC", own, raising=False)
    plugin = Plugin("predictor", "own", "some-package", f"{__name__}:SPEC")
    monkeypatch.setattr(
        "dovetail.predictors.estimators.registry.plugins", {"predictor": {"own": plugin}}.get
    )
    return tasks


def of_two_gpu_models(data):
    other = [m.replace(gpu_model="other") for m in data.measurements]
    profiles = [p.replace(gpu_model="other") for p in data.profiles]
    return DataSet(
        name="both",
        profiles=(*data.profiles, *profiles),
        measurements=(*data.measurements, *other),
    )


def test_a_plugin_is_fitted_with_its_own_options(data, tuned):
    assert fit(data, "own", seed=3, options={"extra": 2}).fits[GPU].member.model == "own"
    assert tuned == [(GPU, 3, {"extra": 2})]
    assert fit(of_two_gpu_models(data), "own", options={"from": GPU}).gpu_models == ("other",)
    assert tuned[1:] == [("other", 0, {"from": GPU})]


@pytest.mark.parametrize(
    ("model", "options", "rule"),
    [
        ("constant", {"extra": 1.0}, "model 'constant' has no option 'extra': it has none"),
        ("own", {"more": 1}, "model 'own' has no option 'more': its options are extra, from"),
        ("own", {"extra": "much"}, "extra: must be of type float, got 'much'"),
        ("own", {"from": "H100"}, f"from: must be a GPU model of the data ({GPU}), got 'H100'"),
        (
            "own",
            {"from": GPU},
            f"from: must be another GPU model than those to fit for, got '{GPU}'",
        ),
    ],
)
def test_options_that_cannot_be(data, tuned, model, options, rule):
    with pytest.raises(DovetailError) as caught:
        fit(data, model, options=options)
    assert str(caught.value) == rule
    assert tuned == []


def power_of_pairs(data, gpu_model, seed):
    """What a plugin of the kind power is: a model of the power of pairs."""
    return member(linear((0.0, 0.0), base=150.0), "sm_active")


@pytest.mark.parametrize(
    ("packages", "power_w"), [((), None), (("dovetail", "some-package"), 150.0)]
)
def test_the_power_of_pairs_is_up_to_plugins(data, monkeypatch, packages, power_w):
    measured = [m.replace(power_w=180.0) for m in data.measurements]
    here = {
        name: Plugin("power", name, name, f"{__name__}:power_of_pairs" if name != OWN else "none:")
        for name in packages
    }
    monkeypatch.setattr("dovetail.predictors.fitted.training.plugins", {"power": here}.get)
    found = answers(fit(data.replace(measurements=measured), "constant"), data).power_w
    assert found is None if power_w is None else found == pytest.approx(power_w)


def test_the_names_of_the_core_win(data, monkeypatch):
    plugin = Plugin("predictor", "constant", "some-package", "nowhere:SPEC")
    monkeypatch.setattr(
        "dovetail.predictors.estimators.registry.plugins", {"predictor": {"constant": plugin}}.get
    )
    assert model_names() == MODELS
    assert fit(data, "constant").fits[GPU].member.form.kind == "constant"


def turns(data):
    """Return measurements of the same pairs that took turns, about twice as slow."""
    found = (m.replace(slowdown=tuple(1 + s for s in m.slowdown)) for m in data.measurements)
    return tuple(m.replace(mode="time_sliced") for m in found)


def test_a_model_is_fitted_on_one_mode_and_answers_for_no_other(data, fitted, tmp_path):
    both = data.replace(measurements=(*data.measurements, *turns(data)))
    under_mps, by_turns = fit(both, "constant"), fit(both, "constant", mode="time_sliced")
    assert answers(under_mps, data).slowdown == pytest.approx(
        answers(fitted("constant"), data).slowdown
    )
    save_model(by_turns, tmp_path / "m.model")
    loaded = load_model(tmp_path / "m.model")
    assert loaded.mode == "time_sliced"
    names, pair = data.workloads(GPU), np.array([[0, 1]])
    measured = loaded.predict(names, pair, np.zeros_like(pair), GPU, "time_sliced").slowdown
    expected = under_mps.predict(names, pair, np.zeros_like(pair), GPU).slowdown + 1
    assert measured == pytest.approx(expected)
    rule = "mode: the model was fitted on pairs measured under time_sliced, not mps"
    with pytest.raises(InputError, match=rule):
        loaded.predict(names, pair, np.zeros_like(pair), GPU)
    with pytest.raises(InputError, match=rule):
        loaded.predict_table(names, [(0, 0)], GPU)
    world = data.instance(GPU, 1, memory_mib=1e6)
    rule = "cluster.sharing: the predictor was fitted on pairs measured under time_sliced and not"
    with pytest.raises(InputError, match=rule):
        predict(world.replace(slowdowns=()), loaded)


def test_measurements_of_another_mode_are_not_learnt(data, fitted):
    begun = fitted("hierarchical")
    mixed = data.replace(measurements=(*turns(data), *data.measurements))
    learnt = update(begun, mixed).predictor
    assert np.array_equal(answers(learnt, data).slowdown, answers(begun, data).slowdown)
    online = Online(begun, len(data.measurements))
    assert online.learn(mixed) == []
    assert online.learnt == 0


def test_pairs_of_two_modes_are_never_rows_of_one_model(data):
    mixed = data.replace(measurements=(*data.measurements, *turns(data)))
    with pytest.raises(InputError, match="must be of one sharing mode, got mps and time_sliced"):
        prepared(mixed, "hierarchical")
    assert prepared(mixed.in_mode("time_sliced"), "hierarchical").rows.mode == "time_sliced"


def test_a_law_of_mps_is_not_fitted_to_time_slices(data):
    sliced = data.replace(measurements=turns(data))
    for model in ("analytic", "kernels"):
        with pytest.raises(UnsupportedError, match=f"{model} models sharing under mps, not time"):
            fit(sliced, model, mode="time_sliced")
    with pytest.raises(InputError, match="must have at least one measured pair of mode mps"):
        fit(sliced)


def test_nothing_measured():
    with pytest.raises(InputError, match="must have at least one measured pair"):
        fit(DataSet(name="empty"))


@pytest.mark.parametrize(
    ("of", "rule"),
    [
        (lambda slowdown: 1 / slowdown, r"half are at most 0\.\d+, as speeds are"),
        (lambda slowdown: max(slowdown - 1, 0.01), r"half are at most 0\.\d+, as speeds are"),
        (lambda slowdown: 100 * slowdown, r"half are at least 1\d\d\.?\d*, as percentages are"),
    ],
)
@pytest.mark.parametrize("model", ["constant", AUTO])
def test_what_cannot_be_slowdowns_is_refused(data, model, of, rule):
    changed = tuple(
        m.replace(slowdown=tuple(map(of, m.slowdown))) for m in data.measurements if not m.failed
    )
    with pytest.raises(InputError, match=rf"must be iteration time together / alone; {rule}"):
        prepared(data.replace(measurements=changed), model)


def test_slowdowns_a_little_below_one_are_noise(data):
    changed = tuple(m.replace(slowdown=(0.97, 0.99)) for m in data.measurements)
    rows = prepared(data.replace(measurements=changed), "constant").rows
    assert np.median(rows.slowdown) == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("model", "families", "each"),
    [
        ("constant", 2, 2),
        ("constant", 3, 1),
        ("constant", 3, 2),
        ("hierarchical", 2, 2),
        ("hierarchical", 3, 1),
    ],
)
def test_few_workloads_have_bounds_at_the_confidence_of_few(model, families, each):
    data = synthetic(families, each)
    bound = fit(data, model).fits[GPU].bound
    # No bound of the highest level is broken; a family never seen is taken to break all of its
    # bounds, and anything else never seen a quarter.
    for kind in range(len(STANDINGS)):
        worst = 1 if kind >= OF_NEW_FAMILIES else 0.25
        without = each == 1 and kind in (NEW_CO_RUNNER, NEW)
        most = 0 if without else 1 - worst / (families + 1)
        assert bound.largest_confidence(kind) == pytest.approx(most)
