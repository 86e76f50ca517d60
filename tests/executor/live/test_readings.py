"""Readings of finished runs: their progress, and the cost of sharing."""

from __future__ import annotations

from dovetail.executor.live.live import LastReading, RunReading
from dovetail.executor.pools.pool import Progress

ALONE = RunReading(iterations=10.0, total=100.0, rate=4.0, solo_rate=4.0, slowdown=1.0)
SHARED = RunReading(
    iterations=40.0, total=100.0, rate=2.0, solo_rate=4.0, slowdown=2.0, predicted=1.5
)


def test_a_slowdown_is_kept_from_when_it_shared():
    seen = LastReading()
    seen.note("j1.1", ALONE, shares=False)
    assert seen.readings["j1.1"].slowdown is None
    seen.note("j1.1", SHARED, shares=True)
    # Its co-runner has gone: neither its rate alone nor a window without one says what it cost.
    seen.note("j1.1", RunReading(predicted=1.7), shares=True)
    seen.note("j1.1", ALONE._replace(iterations=90.0), shares=False)
    kept = RunReading(iterations=90.0, total=100.0, slowdown=2.0, predicted=1.5)
    assert seen.readings == {"j1.1": kept}


def test_how_far_a_run_came_is_the_last_word_of_its_slowest_rank():
    seen = LastReading()
    seen.note("j1.1", SHARED, shares=True)
    seen.note_end("j1.1", [Progress(100.0, 5.0, 100.0), None, Progress(99.0, 5.0, 100.0)])
    seen.note_end("j2.1", [None])
    assert {run: kept.iterations for run, kept in seen.readings.items()} == {"j1.1": 99.0}
    assert seen.readings["j1.1"].slowdown == 2.0


def test_those_noted_longest_ago_are_forgotten_first():
    seen = LastReading(most=2)
    for run in ("j1.1", "j2.1", "j1.1", "j3.1"):
        seen.note(run, ALONE, shares=False)
    assert list(seen.readings) == ["j1.1", "j3.1"]
