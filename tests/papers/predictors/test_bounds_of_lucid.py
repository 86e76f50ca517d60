"""Bounds on the pairs that Lucid has published, in plans of the engine."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dovetail.predictors.fitted.standing import (
    CO_RUNNER_OF_NEW_FAMILY,
    KNOWN,
    NEW_FAMILY,
    STANDINGS,
)

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data" / "lucid"


@cache
def benchmark():
    pytest.importorskip("sklearn", reason="the extra train is not installed")
    found = importlib.util.spec_from_file_location("bounds", ROOT / "benchmarks" / "bounds.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["bounds"] = module
    found.loader.exec_module(module)
    return module


measured = pytest.mark.skipif(
    not DATA.exists(), reason=f"no data at {DATA}: python benchmarks/fetch_data.py"
)


def jobs_kept(case, confidence, rounds):
    """Return, for each standing, whether jobs of the engine's plans kept their bounds."""
    upper = benchmark().uppers(case.bounds["corrected"], case.table, confidence)
    found = [[] for _ in STANDINGS]
    for number in range(rounds):
        jobs = [benchmark().Job(workload) for workload in benchmark().drawn(case, number)]
        prediction = case.table.prediction
        for job, others, _ in benchmark().planned(case, jobs, prediction, upper, 1.5):
            for other in others:
                cell = job.workload, other
                found[case.table.standing[cell]].append(case.table.truth[cell] <= upper[cell])
    return found


@measured
def test_known_workloads_of_lucid():
    rows = benchmark().lucid_rows(benchmark().TREES)
    case = next(iter(benchmark().new_pairs(rows, benchmark().TREES)))
    # Some 80 jobs: one deviation is 3.4 points.
    found = jobs_kept(case, 0.9, 3)[KNOWN]
    assert len(found) > 60
    assert np.mean(found) >= 0.85


@measured
@pytest.mark.long
def test_new_families_of_lucid():
    rows = benchmark().lucid_rows(benchmark().TREES)
    cases = list(benchmark().new_families(rows, benchmark().TREES))
    assert len(cases) == 10
    each = [jobs_kept(case, 0.9, 3) for case in cases]
    for code in (CO_RUNNER_OF_NEW_FAMILY, NEW_FAMILY):
        assert np.mean([np.mean(found[code]) for found in each]) >= 0.88
