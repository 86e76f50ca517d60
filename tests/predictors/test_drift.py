"""The test for drift: exact capital by hand, false alarms and power by simulation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dovetail.instances.errors import InputError
from dovetail.predictors.fitted.drift import BoundOutcome, drift


def outcomes(broken, confidence=0.9, workload="a"):
    return [BoundOutcome(workload, 1.2, 1.3 if miss else 1.1, confidence) for miss in broken]


def test_capital_by_hand():
    # At 90 % the rates are 0.15, 0.2, 0.3, 0.5 and 0.8. Half of the stake is bet on the first
    # outcome; broken, it grows by the mean of 1.5, 2, 3, 5 and 8, 3.9: 1.95, and 0.5 is kept.
    assert drift(outcomes([True])).model.evidence == pytest.approx(2.45)
    # Kept, the factors are 0.85, 0.8, 0.7, 0.5 and 0.2 over 0.9, so the capital falls below 1.
    found = drift(outcomes([False])).model
    assert (found.evidence, found.broken, found.promised) == (1.0, 0, pytest.approx(0.1))


def test_a_bound_that_is_met_is_kept():
    assert drift([BoundOutcome("a", 1.2, 1.2, 0.9)]).model.broken == 0


def test_nothing_measured_is_no_drift():
    found = drift([])
    assert not found.drifted
    assert found.workloads == ()


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_false_alarms_are_as_rare_as_stated(confidence):
    # 200 streams of a promise kept exactly, looked at after each of 300 outcomes. At 10 % false
    # alarms, more than 20 + 4 * 4.2 would be four deviations too many.
    draw = np.random.default_rng(1)
    streams = draw.random((200, 300)) > confidence
    alarms = sum(drift(outcomes(broken, confidence), 0.1).drifted for broken in streams)
    assert alarms <= 36


@pytest.mark.parametrize("before", [0, 200])
def test_a_drift_is_noticed_early_or_late(before):
    # Three times as many as promised: noticed within 150 outcomes in nine of ten streams, even
    # after a long time in which the promise was kept (one alarm in 200 streams may be false).
    draw = np.random.default_rng(2)
    rate = np.r_[np.full(before, 0.1), np.full(150, 0.3)]
    found = [drift(outcomes(draw.random(len(rate)) < rate)).model for _ in range(60)]
    assert sum(one.drifted for one in found) >= 54
    assert sum(one.noticed <= before for one in found if one.drifted) <= 2


def test_the_workload_that_drifts_is_named():
    draw = np.random.default_rng(3)
    stream = []
    for _ in range(100):
        stream += outcomes([draw.random() < 0.05], workload="steady")
        stream += outcomes([draw.random() < 0.5], workload="other")
    found = drift(stream)
    assert [one.workload for one in found.workloads if one.drifted] == ["other"]
    assert str(found).splitlines()[-1].startswith("other: ")
    assert "more often than promised" in str(found)
    assert json.loads(json.dumps(found.to_data()))["workloads"][1]["workload"] == "other"


@pytest.mark.parametrize(
    ("outcome", "path"),
    [
        (BoundOutcome("a", 1.2, 1.1, 1.0), "outcomes[0].confidence"),
        (BoundOutcome("a", float("nan"), 1.1, 0.9), "outcomes[0].upper"),
        (BoundOutcome("a", 1.2, float("inf"), 0.9), "outcomes[0].measured"),
    ],
)
def test_broken_input(outcome, path):
    with pytest.raises(InputError) as raised:
        drift([outcome])
    assert raised.value.path == path


def test_false_alarms_must_be_a_probability():
    with pytest.raises(InputError, match="false_alarms"):
        drift([], 0)
