"""How iterations follow one another: without a pause, or as requests arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .commands import Commands
from .devices import Device
from .loading import Step

WARM_UP = 3
WARM_UP_S = 0.3
CHUNK_S = 0.05
"""Iterations are counted in chunks of about this length."""

Tell = Callable[..., None]


def warm_up(step: Step, device: Device) -> int:
    """Iterate until libraries are loaded and memory is held; return how many make a chunk.

    After the first few, twice as many are timed each time: the last timing is of the longest run.
    """
    began = time.monotonic()
    _timed(step, device, WARM_UP)
    n, took_s = 1, _timed(step, device, 1)
    while time.monotonic() - began < WARM_UP_S or took_s < CHUNK_S:
        n *= 2
        took_s = _timed(step, device, n)
    return max(1, round(n * CHUNK_S / took_s))


def _timed(step: Step, device: Device, n: int) -> float:
    began = time.monotonic()
    for _ in range(n):
        step()
    device.idle()
    return time.monotonic() - began


def without_pause(step: Step, device: Device, chunk: int, commands: Commands, tell: Tell) -> None:
    """Iterate until told to end, and tell of every chunk when the device had done it.

    Times are the device's own, counted on from its idle state at the beginning: the host may look
    later. The device is idle when this returns.
    """
    device.idle()
    last, at = device.mark(), time.monotonic()
    for mark in _marks(step, device, chunk, commands):
        device.wait(mark)
        busy_s = device.seconds(last, mark)
        last, at = mark, at + busy_s
        tell("steps", at=at, n=chunk, busy_s=busy_s)
    device.idle()


def _marks(step: Step, device: Device, chunk: int, commands: Commands) -> Iterator[Any]:
    """Yield the mark behind each chunk when the next one is queued, so that no device waits."""
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


def as_requests_arrive(
    step: Step, device: Device, gaps: Iterable[float], commands: Commands, tell: Tell
) -> None:
    """Answer one request after the other until told to end; each arrives whether one waits or not.

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
        tell("answered", at=time.monotonic(), arrived=arrived, started=started)
    raise ValueError("gaps: must never end")
