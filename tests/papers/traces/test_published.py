"""Published traces, next to the checkout: counts that other code gives, and names that fit."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from dovetail.instances.traces import read_trace
from dovetail.papers.importers.gavel import gavel_data
from dovetail.papers.traces.muri import muri_stages

DATA = Path(__file__).parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no traces at {DATA}: python benchmarks/fetch_data.py"
)


def test_philly_is_read_whole_and_quickly():
    started = time.process_time()
    trace = read_trace(DATA / "philly" / "philly.csv.gz")
    assert time.process_time() - started < 10  # 1 s; a slow machine may take longer
    sizes = Counter(job.workers for job in trace.jobs)
    assert (len(trace.jobs), sizes[1], sizes[8], max(sizes)) == (82247, 76627, 1643, 128)
    assert len({job.tenant for job in trace.jobs}) == 15
    # 2017-09-04 10:30:41 to 12-22 08:02:11 are 109 days less 2:28:30.
    assert trace.jobs[-1].arrival_s == 109 * 86400 - 8910
    assert trace.notes == ()


@pytest.mark.parametrize(("number", "jobs"), [(1, 1494), (3, 992)])
def test_muri(number, jobs):
    path = DATA / "muri" / f"trace{number}.csv.gz"
    trace = read_trace(path)
    stages = muri_stages(path)
    assert len(trace.jobs) == jobs
    assert len({job.workload for job in trace.jobs}) == 8
    assert {(job.workload, job.workers) for job in trace.jobs} == stages.keys()
    assert stages["gpt2", 8] == (0.437, 0.0006, 0.419, 0.049)


def test_gavel_names_the_workloads_of_its_data_set():
    data = gavel_data(str(DATA / "gavel" / "simulation_throughputs.json.gz"))
    known = {profile.workload for profile in data.profiles}
    traces = [read_trace(path) for path in (DATA / "gavel" / "traces").glob("*.gz")]
    assert sum(len(trace.jobs) for trace in traces) == 15264
    assert {job.workload for trace in traces for job in trace.jobs} <= known
    single = next(trace for trace in traces if trace.name == "ed69ec")
    assert (len(single.jobs), single.notes) == (951, ())
