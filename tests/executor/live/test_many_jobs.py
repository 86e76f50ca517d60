"""The benchmark of many jobs in short form; ``benchmarks/live/many_jobs.py`` is the long one."""

import os
from pathlib import Path

import pytest

LIVE = Path(__file__).parents[3] / "benchmarks" / "live"
JOBS = 300


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_what_hundreds_of_jobs_leave_is_bounded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(LIVE))
    from many_jobs import lefts, restart_s

    _, first, *_, last = lefts(tmp_path, JOBS, 3)
    assert last.jobs == JOBS
    assert last.descriptors <= first.descriptors + 2
    assert last.threads <= first.threads + 2
    assert last.processes <= first.processes + 2
    assert last.memory_mib < first.memory_mib + 10
    assert last.files - first.files <= 6 * (last.jobs - first.jobs)
    restart_s(tmp_path)  # how long it takes is for the long form on a quiet machine
