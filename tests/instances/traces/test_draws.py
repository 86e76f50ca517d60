"""Drawn workloads and gSLAs: known values stay, and each field has its own seeded stream."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from dovetail.instances.errors import InputError
from dovetail.instances.traces import Trace, TraceJob, with_gslas, with_workloads

MANY = Trace("many", tuple(TraceJob(f"j{k}", float(k), 1, 60.0) for k in range(2000)))
NAMES = ("bert", "dlrm", "vgg")


def workloads(trace):
    return [job.workload for job in trace.jobs]


def gslas(trace):
    return [job.gsla for job in trace.jobs]


def test_workloads_are_drawn_alike_and_by_seed():
    drawn = with_workloads(MANY, NAMES, 1)
    # 2000 / 3 = 667; four standard deviations of the count are 4 * sqrt(2000 * 2 / 9) = 84.
    assert all(abs(count - 667) < 84 for count in Counter(workloads(drawn)).values())
    assert drawn == with_workloads(MANY, NAMES, 1)
    assert drawn != with_workloads(MANY, NAMES, 2)


def test_workloads_are_drawn_by_weight():
    counts = Counter(workloads(with_workloads(MANY, NAMES, 1, weights=(3, 0, 1))))
    # 2000 * 3 / 4 = 1500; four standard deviations are 4 * sqrt(2000 * 3 / 16) = 77.
    assert counts["dlrm"] == 0
    assert abs(counts["bert"] - 1500) < 77


def test_what_is_known_stays_and_does_not_change_what_others_get():
    drawn = with_workloads(MANY, NAMES, 1)
    first = dataclasses.replace(MANY.jobs[0], workload="own", gsla=1.25)
    known = MANY.replace((first, *MANY.jobs[1:]))
    assert workloads(with_workloads(known, NAMES, 1)) == ["own", *workloads(drawn)[1:]]
    others = gslas(with_gslas(MANY, "uniform:1:2", 1))[1:]
    assert gslas(with_gslas(known, "uniform:1:2", 1)) == [1.25, *others]


def test_one_draw_does_not_change_the_other():
    both = with_gslas(with_workloads(MANY, NAMES, 1), "uniform:1:2", 1)
    assert both == with_workloads(with_gslas(MANY, "uniform:1:2", 1), NAMES, 1)
    assert workloads(both) == workloads(
        with_gslas(with_workloads(MANY, NAMES, 1), "choice:1.2,1.5@0.5", 9)
    )


def test_forms_of_gslas():
    assert with_gslas(MANY, "none", 1) is MANY
    assert set(gslas(with_gslas(MANY, "fixed:1.5", 1))) == {1.5}
    uniform = gslas(with_gslas(MANY, "uniform:1:2", 1))
    # The mean of 2000 uniform numbers deviates by 1 / sqrt(12 * 2000) = 0.0065.
    assert 1 <= min(uniform) < 1.01 < 1.99 < max(uniform) <= 2
    assert sum(uniform) / 2000 == pytest.approx(1.5, abs=0.026)
    choice = Counter(gslas(with_gslas(MANY, "choice:1.2,1.5,2", 1)))
    assert all(abs(choice[value] - 667) < 84 for value in (1.2, 1.5, 2.0))


def test_a_part_gets_one_and_the_values_stay():
    whole = gslas(with_gslas(MANY, "uniform:1:2", 1))
    half = gslas(with_gslas(MANY, "uniform:1:2@0.5", 1))
    drawn = [value for value in half if value is not None]
    # Half of 2000; four standard deviations are 4 * sqrt(2000) / 2 = 89.
    assert abs(len(drawn) - 1000) < 89
    assert drawn == [all_ for all_, value in zip(whole, half, strict=True) if value is not None]
    assert set(gslas(with_gslas(MANY, "fixed:1.5@0", 1))) == {None}
    assert set(gslas(with_gslas(MANY, "fixed:1.5@1", 1))) == {1.5}


@pytest.mark.parametrize(
    "spec",
    [
        *("", "some", "none:1", "fixed", "fixed:0.9", "fixed:x", "fixed:1:2", "fixed:inf"),
        *("uniform:2:1", "uniform:1", "uniform:nan:2", "uniform:1:2:3", "choice:", "choice:1,0.5"),
        *("fixed:1.5@", "fixed:1.5@2", "fixed:1.5@-1", "fixed:1.5@nan", "fixed:1.5@0.5@0.5"),
    ],
)
def test_a_broken_form_is_reported(spec):
    with pytest.raises(InputError) as error:
        with_gslas(MANY, spec, 1)
    forms = "none, fixed:1.5, uniform:1:2, choice:1.2,1.5,2 (>= 1; @0.5 for a part)"
    assert str(error.value) == f"gsla: must be like one of {forms}, got {spec!r}"


@pytest.mark.parametrize("weights", [(1, 2), (1, 2, -1), (0, 0, 0), (1, 2, float("nan"))])
def test_broken_weights_are_reported(weights):
    with pytest.raises(InputError) as error:
        with_workloads(MANY, NAMES, 1, weights)
    assert str(error.value) == "workload weights: must be 3 finite numbers >= 0, not all 0"


def test_no_workloads_are_reported():
    with pytest.raises(InputError, match=r"^workloads: must name at least one workload$"):
        with_workloads(MANY, (), 1)
