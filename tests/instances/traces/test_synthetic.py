"""The generator of traces, the shipped ones, and the rules of the record itself."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.conservation import violations
from dovetail.executor.simulation import simulate
from dovetail.instances.errors import InputError
from dovetail.instances.library import TRACES
from dovetail.instances.traces import (
    Trace,
    TraceJob,
    library_trace,
    library_world,
    synthetic,
    trace_names,
)
from dovetail.instances.traces.trace import JobColumns
from dovetail.solver.policies import policy_named


def test_gang_sizes_and_durations_are_phillys():
    trace = synthetic(20_000, 3, 64, 0.8, least_s=1.0, most_s=1e12)
    sizes = Counter(job.workers for job in trace.jobs)
    # Of 20,000: 93.27 % alone, deviation sqrt(20000 * 0.9327 * 0.0673) = 35; 2 % gangs of 8, 20.
    assert abs(sizes[1] - 18_654) < 140
    assert abs(sizes[8] - 400) < 80
    assert set(sizes) == {1, 2, 4, 8, 16}
    logs = [math.log(job.duration_s) for job in trace.jobs if job.workers == 8]
    # ln s: mean 9.65, deviation 2.79; of 400 the mean deviates by 0.14. Cut at 1 s: hardly any.
    assert fmean(logs) == pytest.approx(9.65, abs=0.56)
    assert stdev(logs) == pytest.approx(2.79, abs=0.4)


def test_the_load_is_what_was_asked_for():
    trace = synthetic(20_000, 3, 64, 0.8)
    # Of 20,000 gaps the mean deviates by 1 / sqrt(20000) = 0.7 %.
    assert trace.gpu_seconds / (64 * trace.jobs[-1].arrival_s) == pytest.approx(0.8, rel=0.03)
    assert trace.jobs[0].arrival_s == 0
    assert {60.0, 172800.0} <= {job.duration_s for job in trace.jobs}


def test_load_changes_arrivals_alone_and_seeds_change_all():
    def bodies(trace):
        return [(job.workers, job.duration_s) for job in trace.jobs]

    low, high = synthetic(50, 1, 8, 0.5), synthetic(50, 1, 8, 1.0)
    assert bodies(low) == bodies(high)
    # Arrivals are whole seconds.
    assert low.jobs[-1].arrival_s == pytest.approx(2 * high.jobs[-1].arrival_s, abs=3)
    assert bodies(synthetic(50, 2, 8, 0.5)) != bodies(low)
    assert synthetic(50, 1, 8, 0.5) == low
    assert max(job.workers for job in synthetic(500, 1, 8, 0.5, largest=2).jobs) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "jobs: must be >= 1, got 0"),
        ({"gpus": 0}, "gpus: must be >= 1, got 0"),
        ({"load": 0}, "load: must be a finite number > 0, got 0"),
        ({"seed": -1}, "seed: must be >= 0, got -1"),
        ({"largest": 0}, "largest: must be >= 1, got 0"),
        ({"least_s": 9, "most_s": 8}, "duration: must be 1 <= least_s <= most_s, got 9 and 8"),
    ],
)
def test_broken_arguments_are_reported(changes, message):
    with pytest.raises(InputError) as error:
        synthetic(**{"jobs": 5, "seed": 1, "gpus": 8, "load": 0.5} | changes)
    assert str(error.value) == message


@pytest.mark.parametrize("name", trace_names())
def test_a_shipped_trace_runs_in_its_world(name):
    trace, world = library_trace(name), library_world(name)
    assert trace.name == name
    assert world.name == TRACES.manifest[name].world
    assert world.jobs == ()
    history = simulate(trace, world, policy_named("fifo"))
    assert violations(history, trace, world) == []


def test_every_shipped_file_is_in_the_manifest_and_small():
    folder = TRACES.folder
    named = {f"{name}.csv" for name in trace_names()}
    worlds = {f"{entry.world}.yaml" for entry in TRACES.manifest.values()}
    assert {path.name for path in folder.iterdir()} == named | worlds | {"manifest.yaml"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 90_000


def test_an_unknown_shipped_trace_is_reported():
    for function in (library_trace, library_world):
        with pytest.raises(InputError) as error:
            function("nope")
        assert (
            str(error.value)
            == "library: must be a trace, one of lab-week, lab-day, h200-week, got 'nope'"
        )


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (TraceJob("", 0.0, 1, 1.0), "id: must be one line of printable characters, got ''"),
        (
            TraceJob("b", 0.0, 1, 1.0, workload="a\n"),
            "workload: must be one line of printable characters, got 'a\\n'",
        ),
        (TraceJob("b", math.inf, 1, 1.0), "arrival_s: must be a finite number >= 0, got inf"),
        (TraceJob("b", 0.0, 0, 1.0), "workers: must be >= 1, got 0"),
        (TraceJob("b", 0.0, 1, 0.0), "duration_s: must be a finite number > 0, got 0.0"),
    ],
)
def test_a_trace_refuses_a_broken_job(job, message):
    with pytest.raises(InputError) as error:
        Trace("made", (TraceJob("a", 0.0, 1, 1.0), job))
    assert str(error.value) == f"made: jobs[1].{message}"


odd_numbers = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1e6, 1e6 + 1, 1e11, 2e11, math.inf, math.nan])
odd_names = st.sampled_from(["a", "b c", "", " ", "\x07", "b\n"])
odd_jobs = st.builds(
    TraceJob,
    odd_names,
    odd_numbers,
    st.sampled_from([-1, 0, 1, 10**6, 10**6 + 1]),
    odd_numbers,
    st.none() | odd_names,
    st.none() | odd_numbers,
    odd_numbers,
    st.sampled_from(["batch", "latency", "high"]),
    st.none() | odd_names,
)


@given(st.lists(odd_jobs, max_size=3))
def test_columns_break_a_rule_where_one_of_their_jobs_does(jobs):
    broken = JobColumns.of_jobs(jobs).may_break_a_rule()
    assert broken.tolist() == [job.broken_rule() is not None for job in jobs]


def test_columns_hold_what_their_jobs_say():
    jobs = [TraceJob("a", 1.0, 2, 3.0), TraceJob("b", 0.0, 1, 4.0, "w", 1.5, 2.0, "latency", "t")]
    first, second = Trace.of("made", jobs).jobs
    assert (first, second) == (jobs[1], jobs[0])
    assert Trace.of_columns("made", JobColumns.of_jobs(jobs)) == Trace.of("made", jobs)
    assert Trace("made", ()).take([]) == Trace("made", ())
