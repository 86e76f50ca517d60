"""The checker finds every kind of wrong result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail.solver.pairing import Certificate, certificate_errors, match_pairs
from dovetail.solver.pairing.certificate import Dual

from .instances import pair_values

NAN = np.nan
PAIRS = np.array([[NAN, 5.0, 4.0], [5.0, NAN, 3.0], [4.0, 3.0, NAN]])
SINGLE = np.array([1.0, 1.0, NAN])
ARGUMENTS = (PAIRS, SINGLE, 2)
RIGHT = match_pairs(*ARGUMENTS)
(MAIN,) = RIGHT.certificate.main


def with_dual(**changes):
    return replace(RIGHT, certificate=Certificate((replace(MAIN, **changes),)))


def test_right():
    assert RIGHT.value == 5.0
    assert certificate_errors(RIGHT, *ARGUMENTS) == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (replace(RIGHT, mate=np.array([1, 0])), "mate must hold n = 3 indices or -1"),
        (replace(RIGHT, mate=np.array([1, 2, -1])), "mate is not symmetric"),
        (replace(RIGHT, mate=np.array([1, 0, 2])), "a job may not run alone"),
        (replace(RIGHT, value=6.0), "the value is 5.0, not 6.0"),
        (replace(RIGHT, bound=4.0), "the duals prove a bound of 5.0, not 4.0"),
        (replace(RIGHT, gap=0.1), "the gap is 0.0, not 0.1"),
        (with_dual(potential=MAIN.potential - 0.5), "a pair has negative reduced cost"),
        (with_dual(potential=MAIN.potential - [0, 0, 9]), "that may wait is negative"),
        (with_dual(price=-1.0), "a price is negative"),
        (with_dual(blossoms=((np.array([0, 1]), 1.0),)), "not an odd set"),
        (with_dual(blossoms=((np.array([0, 1, 2]), -1.0),)), "not an odd set"),
        (with_dual(jobs=np.array([0, 1, 1])), "do not cover every job once"),
    ],
)
def test_wrong(wrong, error):
    assert any(error in found for found in certificate_errors(wrong, *ARGUMENTS))


def test_too_many_gpus():
    both = match_pairs(PAIRS, np.full(3, 4.0))
    assert any(
        "3 GPUs are used of 2" in e for e in certificate_errors(both, PAIRS, np.full(3, 4.0), 2)
    )


def test_job_alone_and_required_job():
    alone = Dual(MAIN.jobs, 0.0, np.zeros(3), ())
    low = replace(RIGHT, certificate=Certificate((alone,)))
    assert any("less than its value alone" in e for e in certificate_errors(low, *ARGUMENTS))
    must = np.array([False, False, True])
    assert any("not placed" in e for e in certificate_errors(RIGHT, *ARGUMENTS, required=must))


def test_unequal_sizes():
    errors = certificate_errors(RIGHT, *ARGUMENTS, size=np.array([1, 2, 1]))
    assert any("a pair has unequal sizes" in e for e in errors)
    assert any("a class has jobs of several sizes" in e for e in errors)


def test_refined_duals_must_hold_for_the_pairs_that_count():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = 24
        values = pair_values(rng, n, "small integers", 0.2)
        arguments = (values, rng.integers(0, 3, n).astype(float), 17, rng.choice([2, 3], n))
        matching = match_pairs(*arguments)
        if matching.certificate.refined:
            break
    assert certificate_errors(matching, *arguments) == []
    refined = matching.certificate.refined
    lowered = tuple(replace(d, potential=d.potential * 0.5) for d in refined)
    wrong = replace(matching, certificate=replace(matching.certificate, refined=lowered))
    assert any("could be in a better solution" in e for e in certificate_errors(wrong, *arguments))
    unproven = replace(matching, certificate=replace(matching.certificate, refined=()))
    assert any("the duals prove a bound" in e for e in certificate_errors(unproven, *arguments))
