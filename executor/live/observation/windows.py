"""Measurements of runs that share a device, one time window after another.

A slowdown is the rate alone over the rate now; a p99 is the 99th percentile of latency now over the
99th percentile alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dovetail.executor.jobs.events import AnyEvent, Measured
from dovetail.executor.live.observation.records import Slowed, measurement
from dovetail.executor.live.observation.tracks import PART, Residents, Track, TrackedDevice, Tracks

LEAST_CREDIBLE: Final = 0.8
"""A smaller slowdown means that the rate alone is wrong, not that sharing helps the run."""

_PATIENCE: Final = 4
"""Factor by which a window may be extended until its rates are steady."""


def measurements(tracks: Tracks, ended: Iterable[str] | None = None) -> Iterator[AnyEvent]:
    """Yield measurements of the devices whose window is over.

    Parameters
    ----------
    tracks : Tracks
        Runs and devices.
    ended : iterable of str, optional
        Devices whose residents are about to change, which are measured with an incomplete window.
        Default: all devices, with full windows.
    """
    # Gangs that share several devices are measured on the first.
    first: dict[Residents, str] = {}
    for gpu in tracks.devices if ended is None else ended:
        if tracks.residents(gpu) and tracks.devices[gpu].shared:
            first.setdefault(tracks.devices[gpu].residents, gpu)
    for gpu in first.values():
        event = _measured(tracks, gpu, tracks.devices[gpu], ended is not None)
        if event is not None:
            yield event


def _measured(tracks: Tracks, gpu: str, device: TrackedDevice, ended: bool) -> AnyEvent | None:
    runs = [tracks.runs[run] for run, _ in device.residents]
    begins = [begin for track in runs if (begin := tracks.begin_s(track)) is not None]
    if len(begins) < len(runs) or not all(_attributable(tracks, track, gpu) for track in runs):
        return None
    since_s = max(device.since_s, *begins)
    length_s, slowed = tracks.now_s - since_s, _slowed(tracks, runs, since_s)
    stalled = ended and device.verdict == "stalled"
    if not stalled and not (slowed and _window_over(tracks, device, length_s, slowed, ended)):
        return None
    if slowed and not device.verdict and any(one.slowdown < LEAST_CREDIBLE for one in slowed):
        return None
    period = tracks.period(runs, [gpu], since_s)
    device.since_s, device.readings = tracks.now_s, period.readings[-1:]
    device.windows += 1
    shares = [track.run.share_on(gpu) for track in runs]
    names, figures = [track.name for track in runs], None if stalled else slowed
    found = measurement(names, shares, figures, period, tracks.mode(shares))
    return Measured(
        at_s=tracks.now_s,
        runs=tuple(track.run.id for track in runs),
        gpu=gpu,
        measurement=found,
        window_s=length_s,
        predicted=device.predicted,
    )


def _slowed(tracks: Tracks, runs: Sequence[Track], since_s: float) -> list[Slowed] | None:
    """Return the slowdown of each run; None if any is unknown."""
    found = []
    for track in runs:
        rate, solo = tracks.rate(track, since_s), tracks.solo_rate(track)
        if rate is None or solo is None:
            return None
        growth = tracks.tail_growth(track, since_s)
        found.append(Slowed(solo / rate.per_s, rate, growth and growth[0]))
    return found


def _window_over(
    tracks: Tracks, device: TrackedDevice, length_s: float, slowed: Sequence[Slowed], ended: bool
) -> bool:
    steady = all(tracks.steady(one.rate) for one in slowed)
    if ended and device.verdict and not device.windows:
        return True
    if ended:
        return steady and length_s >= tracks.options.window_s / PART
    wanted_s = tracks.options.window_s * 2.0**device.windows
    wanted_s = min(wanted_s, tracks.options.window_most_s)
    return length_s >= (wanted_s if steady else _PATIENCE * wanted_s)


def _attributable(tracks: Tracks, track: Track, gpu: str) -> bool:
    """Return whether a run is slowed only by its co-runners on this device.

    A gang is as slow as its slowest worker, so it must have its other devices to itself or share
    them with the same workloads.
    """
    run, here = track.run, _workloads(tracks, gpu)
    if run.sub_batch is not None or not track.present:
        return False
    elsewhere = (_workloads(tracks, seat.gpu) for seat in run.seats if seat.gpu != gpu)
    return all(there == here or len(there) == 1 for there in elsewhere)


def _workloads(tracks: Tracks, gpu: str) -> list[tuple[str, str]]:
    """Return the workloads on a device, each with its share there."""
    runs = [tracks.runs[run] for run, _ in tracks.devices[gpu].residents]
    return sorted((one.name, str(one.run.share_on(gpu))) for one in runs)
