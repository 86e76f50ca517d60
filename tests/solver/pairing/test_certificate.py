"""The checker finds every kind of wrong result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from dovetail.solver.pairing import Certificate, certificate_errors, match_pairs
from dovetail.solver.pairing.result import Dual

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
        (replace(RIGHT, mate=np.array([1.0, 0.0, 2.0])), "mate must hold n = 3 indices or -1"),
        (replace(RIGHT, bound=NAN), "the bound is not a finite number, got nan"),
        (replace(RIGHT, gap=NAN), "the gap is 0.0, not nan"),
        (replace(RIGHT, status="feasible"), "the status is optimal, not feasible"),
        (replace(RIGHT, status="infeasible"), "no job is placed without a solution"),
        (with_dual(price=NAN), "is not a finite number"),
        (with_dual(potential=np.full(3, NAN)), "is not a finite number"),
        (with_dual(potential=np.zeros(1)), "one potential per job"),
        (with_dual(blossoms=((np.array([0, 1, 2]), NAN),)), "is not a finite number"),
        (with_dual(blossoms=((np.array([0, 1, 3]), 1.0),)), "indices of jobs below 3"),
        (with_dual(jobs=np.array([0, 1, 3])), "different indices below 3"),
        (with_dual(potential=MAIN.potential + 0.1), "sums are exact"),
    ],
)
def test_wrong(wrong, error):
    assert any(error in found for found in certificate_errors(wrong, *ARGUMENTS))


def test_jobs_of_one_size_in_two_classes():
    """Pairs of these jobs would be in neither class."""
    alone = tuple(Dual(np.array([k]), 1.0, np.zeros(1), ()) for k in range(3))
    wrong = replace(RIGHT, mate=np.array([0, 1, -1]), value=2.0, bound=2.0)
    wrong = replace(wrong, certificate=Certificate(alone))
    (error,) = certificate_errors(wrong, *ARGUMENTS)
    assert error == "the jobs of one size are in several classes"


def test_status_that_the_duals_do_not_prove():
    none = np.full(3, -1)
    wrong = replace(RIGHT, mate=none, value=-np.inf, bound=-np.inf, status="infeasible")
    (error,) = certificate_errors(wrong, *ARGUMENTS)
    assert error == "the duals do not prove that there is no solution"
    must = np.ones(3, dtype=bool)
    right = match_pairs(PAIRS, None, 2, required=must)
    assert right.status == "infeasible"
    assert certificate_errors(right, PAIRS, None, 2, required=must) == []


@pytest.mark.parametrize("kind", [sp.coo_array, sp.csr_array])
def test_entries_of_a_pair_are_added(kind):
    twice = sp.coo_array(([5.0] * 4, ([0, 1, 0, 1], [1, 0, 1, 0])), shape=(2, 2))
    if kind is sp.csr_array:
        twice = kind(([5.0] * 4, [1, 1, 0, 0], [0, 2, 4]), shape=(2, 2))
    found = match_pairs(twice)
    assert found.value == 10.0
    assert certificate_errors(found, twice) == []
    lower = Dual(np.arange(2), 0.0, np.full(2, 4.0), ())
    wrong = replace(found, mate=np.full(2, -1), value=0.0, bound=8.0, gap=1.0, status="feasible")
    errors = certificate_errors(replace(wrong, certificate=Certificate((lower,))), twice)
    assert errors == ["a pair has negative reduced cost"]


def test_values_that_differ_from_the_mirrored():
    other = PAIRS.copy()
    other[2, 0] = 9.0
    assert certificate_errors(RIGHT, other, SINGLE, 2) == ["pair_value is not symmetric"]
    assert certificate_errors(RIGHT, sp.csr_array(np.nan_to_num(other)), SINGLE, 2)


def test_tolerances_are_relative():
    small = PAIRS * 1e-13
    right = match_pairs(small)
    assert certificate_errors(right, small) == []
    wrong = replace(right, mate=np.array([-1, 2, 1]), value=3e-13, bound=3e-13, gap=0.0)
    (error,) = certificate_errors(wrong, small)
    assert error == f"the duals prove a bound of {right.bound}, not 3e-13"


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
