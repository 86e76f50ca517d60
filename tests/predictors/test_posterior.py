"""The posterior: an update by one measurement equals a refit."""

from dataclasses import replace

import numpy as np
import pytest

from dovetail.predictors.estimators.hierarchical import SPEC, Hierarchical
from dovetail.predictors.fitted.posterior import JobsWithCoRunners, Posterior
from dovetail.predictors.fitted.rows import training_rows
from tests.predictors.synthetic import synthetic


@pytest.fixture(scope="module")
def measured():
    """Return the rows of pairs, every fifth of which was measured twice, in random order."""
    _, rows = training_rows(synthetic(families=5, noise=0.05), SPEC.features, partial=True)
    draw = np.random.default_rng(3)
    again = draw.permutation(len(rows.own))[: len(rows.own) // 5]
    order = draw.permutation(np.append(np.arange(len(rows.own)), again))
    return rows.table[order], rows.slowdown[order] * np.exp(draw.normal(0, 0.05, len(order)))


@pytest.fixture(scope="module")
def fitted(measured):
    table, slowdown = measured
    return Hierarchical().fit(table[:60], slowdown[:60]).to_form()


def states_of(table):
    pairs = JobsWithCoRunners.of(table)
    return pairs.states, pairs.own, pairs.other


def test_updates_in_blocks_say_what_a_refit_with_the_same_variances_says(measured, fitted):
    table, slowdown = measured
    posterior = Posterior.of(fitted, JobsWithCoRunners.of(table[:60]), slowdown[:60])
    for end in range(60, len(table), 7):
        block = slice(end, min(end + 7, len(table)))
        posterior = posterior.updated(JobsWithCoRunners.of(table[block]), slowdown[block])
    refit = Hierarchical(like=fitted).fit(table, slowdown).to_form()
    asked = states_of(table)
    np.testing.assert_allclose(posterior.form.predict(*asked), refit.predict(*asked), rtol=1e-8)
    at_once = Posterior.of(fitted, JobsWithCoRunners.of(table), slowdown)
    found, expected = (p.moments(JobsWithCoRunners.of(table[::9])) for p in (posterior, at_once))
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-8)
    np.testing.assert_allclose(np.exp(found.mean), refit.predict(*states_of(table[::9])), rtol=1e-8)


def test_a_measurement_makes_its_pair_and_those_alike_surer_and_none_less_sure(measured, fitted):
    table, slowdown = measured
    asked = JobsWithCoRunners.of(table[60:90])
    # With another shift, a slowdown that turns out larger is also less sure.
    plain = replace(fitted, shift=np.ones(1))
    before = Posterior.of(plain, JobsWithCoRunners.of(table[:60]), slowdown[:60])
    after = before.updated(JobsWithCoRunners.of(table[60:61]), slowdown[60:61])
    spread = [np.diag(p.moments(asked).covariance) for p in (before, after)]
    assert (spread[1] <= spread[0] + 1e-12).all()
    assert spread[1][0] < spread[0][0] * 0.9
    assert spread[1][0] < before.like.noise[0] * 1.1


def test_residuals_are_in_standard_errors_of_a_new_measurement(measured, fitted):
    table, slowdown = measured
    posterior = Posterior.of(fitted, JobsWithCoRunners.of(table[:60]), slowdown[:60])
    asked = JobsWithCoRunners.of(table[60:70])
    moments = posterior.moments(asked)
    error = np.sqrt(np.diag(moments.covariance) + moments.noise)
    for distance in (0.0, -2.0):
        found = posterior.residuals(asked, np.exp(moments.mean + distance * error))
        assert found == pytest.approx(np.full(10, distance))
