"""The tutorial of live mode, from end to end: real programs share one real core.

The short form has jobs of about a second, and the service looks at them accordingly. On a machine
that is busy with other things every figure is noisy: asserted are counts, and that beliefs follow
from measurements; the long form asserts that they come nearer to what is measured then.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

from dovetail.executor.jobs.events import Placed, Profiled
from dovetail.executor.jobs.journal import read_events
from tests.executor.local_runs import cleared

PATH = Path(__file__).parents[2] / "benchmarks" / "live_tutorial.py"
QUICK = "sample_s=0.1,warm_up_s=0.2,settle_s=0.2,profile_s=0.5,profile_most_s=4,window_s=1"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("live_tutorial_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tenths", "watch"),
    [
        pytest.param(20, f"{QUICK},tolerance=0.2", id="short"),
        pytest.param(60, None, id="long", marks=pytest.mark.long),
    ],
)
def test_twelve_jobs_on_one_core(benchmark, tenths, watch):
    with tempfile.TemporaryDirectory(prefix="dove-") as folder:
        tutorial = benchmark.Tutorial(Path(folder), watch or benchmark.USUAL)
        quiet = is_quiet()
        before_s = tutorial.alone_s(benchmark.KINDS, tenths)
        with cleared(tutorial.home), tutorial.service():
            first, second = tutorial.run(tenths, at_once=False), tutorial.run(tenths)
            repository = tutorial.say(
                "dovetail", "dataset", "show", "--json", str(tutorial.home / "repository.db")
            )
        after_s = tutorial.alone_s(benchmark.KINDS, tenths)
        events = [entry.event for entry in read_events(tutorial.home)]
    every_one_ran_once_and_finished(first)
    every_one_ran_once_and_finished(second)
    each_kind_was_profiled_alone_at_first_sight(events)
    known = json.loads(repository)["gpu_models"]["cpu-1-core"]
    assert known["workloads"] == 3
    assert known["pairs"]["measured"] >= len(first.pairs) + len(second.pairs) > 3
    assert what_was_measured_is_believed([*first.pairs, *second.pairs]) > 0
    if not (quiet and is_quiet()):
        pytest.skip("others use this machine: all ran as it must, but no time means anything")
    if watch is None:
        # Jobs of a second are measured about as badly as they are predicted.
        from_profiles = benchmark.mean_error(pair for pair in first.pairs if not pair.again)
        assert benchmark.mean_error(second.pairs) < from_profiles
    # Six of the twelve were run one after another; while one job waits, another computes.
    assert second.seconds < 2 * (before_s + after_s)


def is_quiet():
    """Return whether this machine is nearly idle now."""
    return psutil.cpu_percent(interval=1.0) < 25


def every_one_ran_once_and_finished(found):
    assert Counter(job["workload"] for job in found.jobs) == dict.fromkeys(
        ("dense", "stream", "means"), 4
    )
    assert {(job["state"], job["runs"], tuple(job["statuses"])) for job in found.jobs} == {
        ("finished", 1, (0,))
    }


def what_was_measured_is_believed(pairs):
    """Check every prediction of two that were measured before; return how many there were.

    Of several measurements a mean is believed, so it lies between them.
    """
    measured = defaultdict(list)
    checked = 0
    for pair in pairs:
        for kind, believed, found in zip(
            pair.workloads, pair.predicted, pair.measured, strict=True
        ):
            seen = measured[kind, frozenset(pair.workloads)]
            if pair.again:
                assert seen
                assert min(seen) - 1e-9 <= believed <= max(seen) + 1e-9
                checked += 1
            seen.append(found)
    return checked


def each_kind_was_profiled_alone_at_first_sight(events):
    placed = [event for event in events if isinstance(event, Placed)]
    profiled = {event.run for event in events if isinstance(event, Profiled)}
    for kind in ("dense", "stream", "means"):
        runs = [event for event in placed if event.run.spec.workload == kind]
        # Of each kind some run alone until one has been measured; the others may share.
        alone = [event.run.id for event in runs if event.profiling]
        assert runs[0].run.id in alone
        assert profiled & set(alone)
