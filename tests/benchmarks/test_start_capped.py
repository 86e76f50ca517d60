"""The study of starting capped: its worlds, and that choosing by numbers is never worse."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from dovetail.instances import _contention as contention

PATH = Path(__file__).parents[2] / "benchmarks" / "start_capped.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("start_capped_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_overlapping_caps_are_no_caps_where_both_are_whole():
    traits = contention.draw_traits(np.random.default_rng(0), 8)
    whole = contention.overlapping_slowdown(traits, 1.0, 1.0)
    assert whole == pytest.approx(contention.open_slowdown(traits))
    assert (contention.overlapping_slowdown(traits, 0.5, 1.0) >= 1.0).all()


@pytest.mark.parametrize("wait", [0.1, 10.0])
def test_by_numbers_is_as_good_as_the_better_of_always_and_never(benchmark, wait):
    true = benchmark.world_of(0, (50,), 100)
    found = benchmark.compare(true, benchmark.believed_of(true, 0), wait)
    assert found.by_numbers >= max(found.uncapped, found.capped) - 0.005


def test_a_cap_pays_where_newcomers_come_soon_and_costs_where_they_do_not(benchmark):
    true = benchmark.world_of(0, (50,), 100)
    soon, late = (benchmark.compare(true, true, wait) for wait in (0.1, 10.0))
    assert soon.capped > soon.uncapped
    assert late.capped < late.uncapped
