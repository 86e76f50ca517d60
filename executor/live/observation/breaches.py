"""Runs over their gSLA because of sharing: which run is stopped, and which are separated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from dovetail.executor.jobs.events import AnyEvent, Separated, StopDecided
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import Track, Tracks

_WINDOWS: Final = (1, 4, 16)
"""Numbers of windows over which a breach is looked for, in this order."""

_Excess = tuple[float, bool]
"""A slowdown above a gSLA, and whether it is the growth of the p99."""


class Breach(NamedTuple):
    """A run over its gSLA.

    Attributes
    ----------
    track : Track
        The run.
    residents : tuple of Track
        The run and all its co-runners.
    gsla : float
        Its gSLA.
    still_s : float
        Seconds since its last iteration.
    slowdown : float or None
        Its slowdown; None if it is over its gSLA because it makes no progress.
    tail : bool
        Whether ``slowdown`` is the growth of its p99.
    """

    track: Track
    residents: tuple[Track, ...]
    gsla: float
    still_s: float
    slowdown: float | None
    tail: bool

    @property
    def newest(self) -> Track:
        """The run that started last, which is the one to stop."""
        return max(self.residents, key=_started)

    @property
    def culprits(self) -> tuple[Track, ...]:
        """The runs that may have slowed it: the newest run, or all others if it is the newest."""
        if self.newest is not self.track:
            return (self.newest,)
        return tuple(other for other in self.residents if other is not self.track)

    @property
    def reason(self) -> str:
        """Why the newest run is stopped."""
        job = self.track.job.id
        if self.slowdown is None:
            return f"{job} has done no iteration with co-runners for {self.still_s:.0f} s"
        what = "'s p99 latency grew by a factor of" if self.tail else " was slowed by a factor of"
        return f"{job}{what} {self.slowdown:.2f}, its gSLA is {self.gsla:g}"

    def stop(self, at_s: float) -> StopDecided:
        """Return the event that stops the newest run."""
        newest = self.newest.run
        then = "wait" if newest.spec.requeue else "fail"
        return StopDecided(at_s=at_s, run=newest.id, reason=self.reason, then=then)

    def separated(self, tracks: Tracks) -> Iterator[AnyEvent]:
        """Yield the separations of the run from its culprits, for each pair of shares."""
        track = self.track
        for other in self.culprits:
            there = {seat.gpu: seat.share for seat in other.run.seats}
            mine = {seat.gpu: seat.share for seat in track.run.seats if seat.gpu in there}
            for shares in dict.fromkeys((mine[gpu], there[gpu]) for gpu in mine):
                yield Separated(
                    at_s=tracks.now_s,
                    runs=(track.run.id, other.run.id),
                    gpu_model=tracks.model(track),
                    workloads=(track.name, other.name),
                    shares=shares,
                    gsla=self.gsla,
                    slowdown=self.slowdown,
                    tail=self.tail,
                    mode=tracks.mode(shares),
                )


def breaches(tracks: Tracks) -> Iterator[Breach]:
    """Yield the runs that are over their gSLA."""
    for track in tracks.runs.values():
        runs = {run for residents in track.phase for run, _ in residents}
        gsla, begin_s = track.job.spec.gsla, tracks.begin_s(track)
        if gsla is None or begin_s is None or len(runs) < 2:
            continue
        still_s = tracks.now_s - max(track.samples[-1].at_s, begin_s)
        stalled = still_s >= tracks.options.stall_s
        excess = None if stalled else _too_slow(tracks, track, begin_s, gsla)
        if not stalled and excess is None:
            continue
        for seat in track.run.seats:
            tracks.devices[seat.gpu].verdict = "stalled" if stalled else "broken"
        residents = tuple(tracks.runs[run] for run in runs)
        yield Breach(track, residents, gsla, still_s, *(excess or (None, False)))


def _too_slow(tracks: Tracks, track: Track, begin_s: float, gsla: float) -> _Excess | None:
    """Return the slowdown of a run that exceeds its gSLA beyond the noise, else None."""
    for times in _WINDOWS:
        since_s = tracks.now_s - times * tracks.options.window_s
        if since_s < begin_s:
            return None
        critical = track.run.spec.priority == "latency"
        growth = tracks.tail_growth(track, since_s) if critical else None
        if growth is not None:
            excess = (growth[0], True) if growth[1] > gsla else None
        else:
            excess = _slow_on_average(tracks, track, since_s, gsla)
        if excess is not None:
            return excess
    return None


def _slow_on_average(tracks: Tracks, track: Track, since_s: float, gsla: float) -> _Excess | None:
    solo, rate = tracks.solo_rate(track), tracks.rate(track, since_s)
    if solo and rate and solo / rate.per_s * (1 - 2 * rate.noise) > gsla:
        return (solo / rate.per_s, False)
    return None


def _started(track: Track) -> tuple[float, float]:
    """Return when a run was placed, then (to break ties) when its job was submitted."""
    steps = (step.at_s for step in reversed(track.job.history) if step.state is JobState.STARTING)
    return next(steps, track.seen_s), track.job.submitted_s
