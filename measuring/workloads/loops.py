"""Loops of iterations: without a pause, or as requests arrive."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .commands import FIXED, Commands, WorkerCommand
from .devices import WorkloadDevice
from .loading import Step

WARM_UP = 3
WARM_UP_S = 0.3
CHUNK_S = 0.05
"""Approximate length of the chunks in which iterations are counted."""

Report = Callable[..., None]


def warm_up(step: Step, device: WorkloadDevice) -> int:
    """Iterate until libraries are loaded and memory is allocated; return the length of a chunk.

    After the first few, each timed series is twice as long as the one before.
    """
    began = time.monotonic()
    _timed(step, device, WARM_UP)
    n, took_s = 1, _timed(step, device, 1)
    while time.monotonic() - began < WARM_UP_S or took_s < CHUNK_S:
        n *= 2
        took_s = _timed(step, device, n)
    return max(1, round(n * CHUNK_S / took_s))


def _timed(step: Step, device: WorkloadDevice, n: int) -> float:
    began = time.monotonic()
    for _ in range(n):
        step()
    device.idle()
    return time.monotonic() - began


def without_pause(
    step: Step, device: WorkloadDevice, chunk: int, commands: Commands, report: Report
) -> None:
    """Iterate until commanded to end, and report every chunk with the time of its completion.

    Times are measured by the device, starting from its idle state. The device is idle when this
    returns.
    """
    device.idle()
    last, at = device.mark(), time.monotonic()
    for mark in _marks(step, device, chunk, commands):
        device.wait(mark)
        busy_s = device.seconds(last, mark)
        last, at = mark, at + busy_s
        report("steps", at=at, n=chunk, busy_s=busy_s)
    device.idle()


def _marks(step: Step, device: WorkloadDevice, chunk: int, commands: Commands) -> Iterator[Any]:
    """Yield the mark after each chunk once the next one is queued, so the device never waits."""
    before = None
    while not commands.end():
        for _ in range(chunk):
            step()
        mark = device.mark()
        if before is not None:
            yield before
        before = mark
    if before is not None:
        yield before


def gaps_at(draw: random.Random, command: WorkerCommand) -> Iterator[float]:
    """Yield the seconds between requests that come as a command says."""
    while True:
        fixed = command.arrivals == FIXED
        yield 1 / command.requests_s if fixed else draw.expovariate(command.requests_s)


def as_requests_arrive(
    step: Step, device: WorkloadDevice, gaps: Iterable[float], commands: Commands, report: Report
) -> None:
    """Answer requests in order of arrival until commanded to end; arrivals wait for no answer.

    The device is idle when this returns.
    """
    arrived = time.monotonic()
    for gap_s in gaps:
        arrived += gap_s
        if commands.end(within_s=arrived - time.monotonic()):
            return
        started = time.monotonic()
        step()
        device.idle()
        report("answered", at=time.monotonic(), arrived=arrived, started=started)
    raise ValueError("gaps: must never end")
