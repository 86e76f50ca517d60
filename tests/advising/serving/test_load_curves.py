"""What a slowed server promises, against a simulated server and a search by hand."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from dovetail.advising.serving.load_curves import LoadCurve, curve_of
from dovetail.advising.serving.scenario import Serving
from tests.advising.serving.queues import latencies

RATES = (1.0, 3.0, 5.0, 7.0, 8.0, 9.0)


@pytest.fixture(scope="module")
def measured():
    """Return the curve of the simulated server alone."""
    found = [[latencies(rate, 1.0, seed) for seed in range(3)] for rate in RATES]
    means = np.array(found).mean(axis=1)
    tails = {"ttft": np.maximum.accumulate(means[:, 0]), "tpot": np.maximum.accumulate(means[:, 1])}
    return LoadCurve(np.array(RATES), True, tails, {})


@pytest.mark.parametrize("slowdown", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("rate", [1.0, 2.5, 3.5])
def test_a_slowed_server_is_as_slow_as_its_curve_says(measured, rate, slowdown):
    ttft, tpot = np.mean([latencies(rate, slowdown, 100 + seed) for seed in range(3)], axis=0)
    assert measured.latency("ttft", rate, slowdown) == pytest.approx(ttft, rel=0.15)
    assert measured.latency("tpot", rate, slowdown) == pytest.approx(tpot, rel=0.15)


def test_nothing_is_promised_beyond_the_measured_loads(measured):
    assert math.isfinite(measured.latency("ttft", 4.5, 2.0))
    assert measured.latency("ttft", 4.5, 2.1) == math.inf
    assert measured.latency("ttft", 9.5) == math.inf
    assert measured.promise(4.5, {"ttft": 1e9, "tpot": 1e9}) == pytest.approx(2.0)


def by_hand(points, load, slowdown):
    """The latency beside co-runners by interpolation, written out."""
    reached, most = load * slowdown, 0.0
    rising = []
    for at, value in sorted(points):
        most = max(most, value)
        rising.append((at, most))
    if reached <= rising[0][0]:
        return slowdown * rising[0][1]
    for (a, low), (b, high) in pairwise(rising):
        if a <= reached <= b:
            return slowdown * (low + (high - low) * (reached - a) / (b - a))
    return math.inf


@pytest.mark.parametrize("seed", range(200))
def test_a_promise_is_the_largest_slowdown_that_keeps_all_tails(seed):
    draw = random.Random(seed)
    loads = sorted(draw.uniform(0.5, 50) for _ in range(draw.randint(1, 6)))
    points = {tail: [(load, draw.uniform(5, 500)) for load in loads] for tail in ("ttft", "tpot")}
    runs = [
        {"requests_per_s": load, "p99_ms": {tail: dict(of)[load] for tail, of in points.items()}}
        for load in loads
    ]
    promised = {tail: draw.uniform(5, 2_000) for tail in points}
    load = draw.uniform(0.3, 30)
    model = {"requests_per_s": load, "p99_ms": promised, "memory_mib": 10.0, "runs": runs}
    serving = Serving.from_data(
        {"name": "one", "gpus": [{"model": "H200"}], "models": {"m": model}}
    )
    found = curve_of(serving, "m", "H200").promise(load, promised)

    def kept(slowdown):
        return all(by_hand(points[t], load, slowdown) <= most for t, most in promised.items())

    if found == 0:
        assert not kept(1.0)
    else:
        assert 1 <= found <= 1_000
        assert kept(found * (1 - 1e-9))
        assert found == 1_000 or not kept(found * (1 + 1e-9))


def test_clients_that_wait_for_answers_do_not_come_faster():
    runs = [{"concurrency": c, "p99_ms": {"tpot": 10.0 * c}} for c in (1, 2, 4)]
    model = {"concurrency": 2.0, "p99_ms": {"tpot": 50.0}, "memory_mib": 10.0, "runs": runs}
    serving = Serving.from_data(
        {"name": "one", "gpus": [{"model": "H200"}], "models": {"m": model}}
    )
    curve = curve_of(serving, "m", "H200")
    assert curve.latency("tpot", 2, 2.5) == pytest.approx(50)
    assert curve.latency("tpot", 3) == pytest.approx(30)
    assert curve.promise(2, {"tpot": 50.0}) == pytest.approx(2.5)
