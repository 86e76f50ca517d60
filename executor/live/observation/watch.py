"""What the service sees of running jobs, and the events that follow from it.

`RunWatch.sample` reads progress and usage from the pool, and returns:

- for a run that is being profiled: ``Profiled`` once its rate is steady, ``ProfileFailed`` if it
  cannot be measured (``profiles``);
- for runs that share a device: ``Measured`` for each window (``measurements``);
- for a run over its gSLA for longer than a window: ``StopDecided`` for the newest of the runs that
  share, and ``Separated`` for the pairs that may not share again (``breaches``);
- for a run that loaded a library: ``LibrarySeen``, and ``StopDecided`` if its share is wrong.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.states import WATCHED
from dovetail.executor.live.live import Live, RunReading
from dovetail.executor.live.observation.conclusions import (
    breaches,
    ended_profiles,
    grown_profiles,
    measurements,
    profiles,
    renewed_profiles,
)
from dovetail.executor.live.observation.records import power_w
from dovetail.executor.live.observation.tracks import Track, Tracks, WatchOptions
from dovetail.executor.pools.pool import Progress
from dovetail.instances._record import IDLE


class RunWatch:
    """What was seen of the running jobs and their devices; lost when the service ends.

    The service's thread calls its methods; others only read.

    Parameters
    ----------
    live : Live
        What the parts of the service share; its readings are kept up to date.
    options : WatchOptions
        How long runs are watched before conclusions are drawn.
    every_s : float
        Seconds between two samples.
    """

    def __init__(self, live: Live, options: WatchOptions, every_s: float) -> None:
        self._machine, self._pool, self._beliefs = live.machine, live.pool, live.beliefs
        self._readings = live.readings
        self._tracks = Tracks(live.devices.models, live.beliefs, options)
        self._every_s = every_s
        self._sampled_s = -math.inf
        self._library_seen: set[str] = set()

    @property
    def next_s(self) -> float:
        """When the next sample is due; infinity while nothing runs.

        One more sample is taken after the last run has ended, to draw conclusions from it.
        """
        runs = self._watched() or self._readings.now
        return self._sampled_s + self._every_s if runs else math.inf

    def sample(self, now_s: float, boot_s: float) -> list[AnyEvent]:
        """Take a sample and return the resulting events.

        Parameters
        ----------
        now_s, boot_s : float
            The moment on the service's clock, and on the clock of the pool's figures.
        """
        self._sampled_s = now_s
        watched = self._watched()
        progress = {run: self._pool.progress(run) for run in watched}
        readings, usage = self._readings, self._pool.usage()
        before, readings.usage = readings.usage, usage
        metered = {gpu: power_w([before[gpu], now]) for gpu, now in usage.items() if gpu in before}
        readings.power_w = {gpu: power for gpu, power in metered.items() if power is not None}
        found = [*self._observed(progress, now_s, now_s - boot_s)]
        found += self._libraries(watched.values(), now_s)
        self._read(watched)
        return found

    def note_ends(self, happened: Iterable[AnyEvent]) -> None:
        """Keep the last progress of runs that have ended, before they are released."""
        for run in {event.run for event in happened if isinstance(event, events.RankEnded)}:
            self._readings.note_end(run, self._pool.progress(run))

    def _watched(self) -> dict[str, LiveJob]:
        """Return the jobs whose progress is watched, by their runs."""
        jobs = self._machine.holding.values()
        return {job.run.id: job for job in jobs if job.state in WATCHED and job.run}

    # Conclusions.

    def _observed(
        self,
        progress: Mapping[str, Sequence[Progress | None]],
        now_s: float,
        shift_s: float,
    ) -> Iterator[AnyEvent]:
        """Add progress and usage to the tracks, and yield the conclusions.

        ``shift_s`` is the service's clock minus that of the pool's figures.
        """
        tracks = self._tracks
        tracks.now_s = now_s
        measuring = self._machine.shares.present
        tracks.measured_on = measuring.gpu if measuring is not None else ""
        jobs = self._machine.holding.values()
        holding = [(job, job.run) for job in jobs if job.run is not None]
        changed = tracks.changed(holding)
        yield from ended_profiles(tracks)
        yield from measurements(tracks, changed)
        tracks.follow(holding, changed)
        for run in progress.keys() & tracks.runs.keys():
            tracks.runs[run].advance(progress[run], shift_s)
        usage = self._readings.usage
        for gpu in usage.keys() & tracks.devices.keys():
            tracks.use(gpu, usage[gpu], shift_s)
        broken = list(breaches(tracks))
        yield from profiles(tracks)
        yield from measurements(tracks)
        yield from grown_profiles(tracks)
        yield from renewed_profiles(tracks)
        yield from {breach.newest.run.id: breach.stop(now_s) for breach in broken}.values()
        for breach in broken:
            yield from breach.separated(tracks)

    def _libraries(self, jobs: Iterable[LiveJob], at_s: float) -> Iterator[AnyEvent]:
        """Yield the libraries that runs loaded, and stops of runs whose share is wrong for them.

        The library of a workload may change from one run to the next.
        """
        runs = {job.run.id: (job, job.run) for job in jobs if job.run is not None}
        self._library_seen.intersection_update(runs)
        for name, (job, run) in runs.items():
            if name in self._library_seen or not (library := self._pool.library(run)):
                continue
            self._library_seen.add(name)
            python = self._python_of(run)
            new = python and self._machine.shares.pythons.get(library) != python
            if library != self._machine.library(job.spec) or new:
                uid, workload = job.spec.owner.uid, job.spec.workload
                seen = {"uid": uid, "workload": workload, "library": library, "python": python}
                yield events.LibrarySeen.model_validate({"at_s": at_s, **seen})
            yield from self._wrong_share(run, library, at_s)

    def _python_of(self, run: Run) -> str:
        """Return a Python that has the library of a run and may be run by this service.

        The service executes no files of other users.
        """
        gate = self._pool.gate
        return gate.python_of(run) if gate and run.spec.owner.uid == os.geteuid() else ""

    def _wrong_share(self, run: Run, library: str, at_s: float) -> Iterator[AnyEvent]:
        for seat in run.seats:
            model = self._tracks.models.get(seat.gpu)
            if seat.share in (None, IDLE) or model is None:
                continue
            if seat.share not in self._pool.allowed(library, model):
                reason = f"its library {library} is not known to compute right at {seat.share} %"
                then: Literal["wait", "fail"] = "wait" if run.spec.requeue else "fail"
                yield events.StopDecided(at_s=at_s, run=run.id, reason=reason, then=then)
                return

    # Readings.

    def _read(self, watched: Mapping[str, LiveJob]) -> None:
        """Read the figures of the watched runs."""
        tracks = self._tracks
        residents = self._machine.residents()
        self._readings.now = {run: self._reading(tracks.runs[run], residents) for run in watched}
        for run, reading in self._readings.now.items():
            self._readings.note(run, reading, tracks.runs[run].shares)

    def _reading(self, track: Track, residents: Mapping[str, Sequence[LiveJob]]) -> RunReading:
        tracks, run, usage = self._tracks, track.run, self._readings.usage
        rate, solo = tracks.present_rate(track), tracks.solo_rate(track)
        belief = tracks.predicted(track)
        isolated = [
            usage[seat.gpu] for seat in run.seats if run.isolated_on(seat) and seat.gpu in usage
        ]
        return RunReading(
            iterations=track.samples[-1].iterations if track.samples else None,
            total=track.total,
            rate=rate,
            solo_rate=solo,
            slowdown=solo / rate if rate and solo else None,
            predicted=belief.slowdown if belief else None,
            upper=self._beliefs.upper(run.job, residents),
            predicted_by=belief.words if belief else "",
            memory_used_mib=track.memory_mib,
            launches=sum((Counter(used.launches) for used in isolated), Counter()),
            escapes={kernel: why for used in isolated for kernel, why in used.escapes.items()},
        )
