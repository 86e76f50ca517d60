"""What the service sees of running jobs, and the events that follow from it.

`RunWatch.sample` reads progress and usage from the pool, and returns:

- for a run that is being profiled: ``Profiled`` once its rate is steady, ``ProfileFailed`` if it
  cannot be measured (``profiles``);
- for runs that share a device: ``Measured`` for each window (``measurements``);
- for a run over its gSLA for longer than a window: ``StopDecided`` for the newest of the runs that
  share, and ``Separated`` for the pairs that may not share again (``breaches``);
- for a run that loaded a library: ``LibrarySeen``, and ``StopDecided`` if its share is wrong.

A slowdown is the rate alone over the rate now; a p99 is the 99th percentile of latency now over the
99th percentile alone.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import (
    AnyEvent,
    Measured,
    Profiled,
    ProfileFailed,
    Separated,
    StopDecided,
)
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.states import WATCHED, JobState
from dovetail.executor.live.live import NOTHING, Live, RunReading
from dovetail.executor.live.observation.attribution import Account, Accounts, DeviceSharer
from dovetail.executor.live.observation.records import (
    Rate,
    Slowed,
    measurement,
    moment,
    power_w,
    solo_profile,
    with_kernels_of,
)
from dovetail.executor.live.observation.tracks import (
    PART,
    WINDOWS,
    Residents,
    Track,
    TrackedDevice,
    Tracks,
    WatchOptions,
)
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.instances._record import IDLE
from dovetail.instances.datasets.records import SoloProfile

OUTDATED: Final = 0.1
"""Relative difference to the profile's rate at which a run alone is profiled again."""

_MEMORY_GROWTH: Final = 1.02


def profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that are measured alone, and failures if a profile takes too long."""
    found = (track for track in tracks.runs.values() if track.to_profile)
    return _one_of_each(tracks, found, _profile)


def _one_of_each(
    tracks: Tracks,
    candidates: Iterable[Track],
    profile: Callable[[Tracks, Track], Iterator[AnyEvent]],
) -> Iterator[AnyEvent]:
    """Yield profiles, but only one if several equal jobs are ready: it serves all of them."""
    known = set()
    for track in candidates:
        key = tracks.key(track)
        if key not in known:
            for event in profile(tracks, track):
                if isinstance(event, Profiled):
                    known.add(key)
                yield event


def _profile(tracks: Tracks, track: Track) -> Iterator[AnyEvent]:
    options, begin_s = tracks.options, tracks.begin_s(track)
    if track.first_s is None and track.run.spec.probe is not None:
        return  # Its server may load a large model for longer than a profile takes.
    since_s = max(track.seen_s, track.job.since_s, track.first_s or 0.0)
    rates: list[Rate] = []
    if begin_s is not None and tracks.now_s - begin_s >= options.profile_s:
        starts = (tracks.now_s - options.profile_s, begin_s)
        rates = [rate for start in starts if (rate := tracks.rate(track, start))]
    least_s = options.warm_up_s + options.settle_s + options.profile_s
    late = tracks.now_s - since_s >= max(options.profile_most_s, least_s)
    ready = (rate for rate in rates if tracks.steady(rate) and _tail_known(track, rate))
    best = next(ready, rates[0] if late and rates else None)
    if best is not None:
        yield _profiled(tracks, track, best)
    elif late:
        yield _unmeasured(tracks, track, _too_few(tracks, track))


def ended_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that finished before their profile was complete."""
    found = (track for track in tracks.runs.values() if track.present and _ended_alone(track))
    return _one_of_each(tracks, found, _ended_profile)


def _ended_alone(track: Track) -> bool:
    job = track.job
    alone = job.profiling and not (job.alone_only or track.profiled)
    return job.state is JobState.FINISHED and alone


def _ended_profile(tracks: Tracks, track: Track) -> Iterator[AnyEvent]:
    begin_s = tracks.begin_s(track) if track.phase else None
    rate = tracks.rate(track, begin_s) if begin_s is not None else None
    if rate and tracks.steady(rate) and rate.seconds >= tracks.options.profile_s / PART:
        yield _profiled(tracks, track, rate)


def _profiled(tracks: Tracks, track: Track, rate: Rate) -> AnyEvent:
    limits = [seat.memory_mib for seat in track.run.seats if seat.memory_mib is not None]
    memory_mib = track.memory_mib or max(limits, default=None)
    if memory_mib is None:
        return _unmeasured(tracks, track, "its memory is unknown: submit it with its memory")
    track.profiled = True
    begin_s = track.samples[-1].at_s - rate.seconds
    tail = track.tail_over(rate)
    p99_s = tail.p99_s if tail else None
    period = tracks.period([track], [seat.gpu for seat in track.run.seats], begin_s)
    profile = solo_profile(track.run, track.name, rate, memory_mib, period, p99_s)
    profile = with_kernels_of(profile, tracks.described(track))
    if profile.share is None:
        tracks.found[tracks.key(track)] = profile
    return Profiled(at_s=tracks.now_s, run=track.run.id, profile=profile)


def _unmeasured(tracks: Tracks, track: Track, reason: str) -> AnyEvent:
    track.profiled = True
    return ProfileFailed(at_s=tracks.now_s, run=track.run.id, reason=reason)


def _too_few(tracks: Tracks, track: Track) -> str:
    if track.first_s is None:
        most_s = tracks.options.profile_most_s
        return f"it reported no progress in {most_s:g} s; see docs/howto/report-progress.md"
    return (
        f"its rate is unknown: fewer than {tracks.options.iterations} iterations "
        f"in {tracks.options.profile_most_s:g} s"
    )


def grown_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that use more memory than their profile says."""
    for track in tracks.runs.values():
        known = tracks.alone(track) if track.job.state is JobState.RUNNING else None
        used, most = track.memory_mib, known.memory_mib if known else None
        if known and used and most and used > _MEMORY_GROWTH * most:
            profile = known.replace(memory_mib=used, date=moment(tracks.now_s))
            tracks.found[tracks.key(track)] = profile
            yield Profiled(at_s=tracks.now_s, run=track.run.id, profile=profile)


def renewed_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield new profiles of runs alone whose rate differs from their profile."""
    since_s = tracks.now_s - tracks.options.profile_s
    for track in tracks.runs.values():
        begin_s = tracks.begin_s(track) if _may_renew(track) else None
        rate = tracks.rate(track, since_s) if begin_s and begin_s <= since_s else None
        known = tracks.alone(track)
        if rate is None or known is None or not tracks.steady(rate):
            continue
        if _outdated(known, track, rate) and track.memory_mib is not None:
            track.renewed = True
            yield _profiled(tracks, track, rate)


def _outdated(known: SoloProfile, track: Track, rate: Rate) -> bool:
    """Return whether a run's rate differs from its profile, or the profile lacks its p99."""
    solo = known.throughput
    new_tail = known.latency_p99_s is None and track.tail_over(rate) is not None
    return solo is not None and (new_tail or abs(rate.per_s - solo) > OUTDATED * solo)


def _may_renew(track: Track) -> bool:
    alone = all(len(residents) == 1 for residents in track.phase)
    uncapped = all(seat.share is None for seat in track.run.seats)
    running = track.job.state is JobState.RUNNING and track.run.sub_batch is None
    return running and alone and uncapped and not track.renewed


def _tail_known(track: Track, rate: Rate) -> bool:
    """Return False if a run reports latencies, but too few in the time of a rate."""
    return not track.tails.reported or track.tail_over(rate) is not None


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
        if growth is None and _waits_for_requests(track):
            return None
        slowdown = solo / rate.per_s if not _waits_for_requests(track) or not growth else growth[0]
        found.append(Slowed(slowdown, rate, growth and growth[0]))
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
        """The run to stop, which is the one that started last.

        Beside a service, it is the last one that may start again and is no service, if any is.
        """
        give_way = [track for track in self.residents if _gives_way(track)]
        served = any(track.run.spec.service for track in self.residents)
        return max(give_way if served and give_way else self.residents, key=_started)

    @property
    def culprits(self) -> tuple[Track, ...]:
        """The runs that may have slowed it: the one to stop, or all others if it is that one."""
        if self.newest is not self.track:
            return (self.newest,)
        return tuple(other for other in self.residents if other is not self.track)

    @property
    def reason(self) -> str:
        """Why the run is stopped."""
        job = self.track.job.id
        if self.slowdown is None:
            return f"{job} has done no iteration with co-runners for {self.still_s:.0f} s"
        what = "'s p99 latency grew by a factor of" if self.tail else " was slowed by a factor of"
        return f"{job}{what} {self.slowdown:.2f}, its gSLA is {self.gsla:g}"

    def stop(self, at_s: float) -> StopDecided:
        """Return the event that stops the run."""
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
        stalled = still_s >= tracks.options.stall_s and not _waits_for_requests(track)
        excess = None if stalled else _too_slow(tracks, track, begin_s, gsla)
        if not stalled and excess is None:
            continue
        for seat in track.run.seats:
            tracks.devices[seat.gpu].verdict = "stalled" if stalled else "broken"
        residents = tuple(tracks.runs[run] for run in runs)
        yield Breach(track, residents, gsla, still_s, *(excess or (None, False)))


def _too_slow(tracks: Tracks, track: Track, begin_s: float, gsla: float) -> _Excess | None:
    """Return the slowdown of a run that exceeds its gSLA beyond the noise, else None."""
    for times in WINDOWS:
        since_s = tracks.now_s - times * tracks.options.window_s
        if since_s < begin_s:
            return None
        critical = track.run.spec.priority == "latency"
        growth = tracks.tail_growth(track, since_s) if critical else None
        if growth is not None:
            excess = (growth[0], True) if growth[1] > gsla else None
        elif not track.run.spec.service:
            excess = _slow_on_average(tracks, track, since_s, gsla)
        else:
            excess = None  # Its rate is that of its requests.
        if excess is not None:
            return excess
    return None


def _gives_way(track: Track) -> bool:
    """Return whether a run beside a service is stopped rather than that."""
    return track.run.spec.requeue and not track.run.spec.service


def _waits_for_requests(track: Track) -> bool:
    """Return whether a run's iterations are requests, of which there may be none."""
    return track.run.spec.service and track.run.spec.probe is None


def _slow_on_average(tracks: Tracks, track: Track, since_s: float, gsla: float) -> _Excess | None:
    solo, rate = tracks.solo_rate(track), tracks.rate(track, since_s)
    if solo and rate and solo / rate.per_s * (1 - 2 * rate.noise) > gsla:
        return (solo / rate.per_s, False)
    return None


def _started(track: Track) -> tuple[float, float]:
    """Return when a run was placed, then (to break ties) when its job was submitted."""
    steps = (step.at_s for step in reversed(track.job.history) if step.state is JobState.STARTING)
    return next(steps, track.seen_s), track.job.submitted_s


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
        self._accounts = Accounts()
        self._counted = live.counted
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
        self._accounts.charge(before, usage)
        found = [*self._observed(progress, now_s, now_s - boot_s)]
        found += self._libraries(watched.values(), now_s)
        self._read(watched)
        self._accounts.settle(self._residents(), readings.power_w)
        readings.parts = self._accounts.parts
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
            tracks.runs[run].advance(progress[run], now_s, shift_s)
        usage = self._readings.usage
        for gpu in usage.keys() & tracks.devices.keys():
            tracks.use(gpu, usage[gpu], shift_s)
        broken = list(breaches(tracks))
        self._counted.broken += len(broken)
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

    def _residents(self) -> dict[str, list[DeviceSharer]]:
        """Return the jobs on each device, with what their parts of it depend on."""
        found: dict[str, list[DeviceSharer]] = defaultdict(list)
        holding = [(job, job.run) for job in self._machine.holding.values() if job.run is not None]
        for job, run in holding:
            for seat in run.seats:
                found[seat.gpu].append(self._resident(job, run, seat.gpu))
        return found

    def _resident(self, job: LiveJob, run: Run, gpu: str) -> DeviceSharer:
        now = self._readings.now.get(run.id, NOTHING)
        speed: float | None = 0.0
        if job.state in WATCHED:
            speed = now.rate / now.solo_rate if now.rate is not None and now.solo_rate else None
        measured = speed is not None
        if speed is None and now.predicted:
            speed = 1 / now.predicted
        known = self._beliefs.alone(run.spec, self._tracks.models.get(gpu, ""))
        return DeviceSharer(run.id, job.id, speed, measured, known.power_w if known else None)

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
        belief, tail = tracks.predicted(track), tracks.present_tail(track)
        known = tracks.alone(track)
        p99_s = tail.p99_s if tail else None
        alone_s = known.latency_p99_s if known else None
        slowdown = solo / rate if rate and solo else None
        if run.spec.service:
            slowdown = p99_s / alone_s if p99_s and alone_s else None
        used_up = self._accounts.of_run.get(run.id, Account())
        isolated = [
            usage[seat.gpu] for seat in run.seats if run.isolated_on(seat) and seat.gpu in usage
        ]
        return RunReading(
            iterations=track.samples[-1].iterations if track.samples else None,
            total=track.total,
            rate=rate,
            solo_rate=solo,
            slowdown=slowdown,
            predicted=belief.slowdown if belief else None,
            upper=self._beliefs.upper(run.job, residents),
            predicted_by=belief.words if belief else "",
            memory_used_mib=track.memory_mib,
            memory_held_by=_holders(run, usage),
            energy_j=used_up.energy_j,
            device_s=used_up.device_s,
            launches=sum((Counter(used.launches) for used in isolated), Counter()),
            escapes={kernel: why for used in isolated for kernel, why in used.escapes.items()},
            ready=tracks.ready(track),
            p99_s=p99_s,
            p99_alone_s=alone_s,
            requests_per_s=tracks.requests_per_s(track),
        )


def _holders(run: Run, usage: Mapping[str, Usage]) -> str:
    """Return what holds the memory limits of a run on its devices, in words."""
    limited = [seat.gpu for seat in run.seats if seat.memory_mib is not None]
    held = (usage[gpu].memory_held_by for gpu in limited if gpu in usage)
    return "; elsewhere by ".join(dict.fromkeys(filter(None, held)))
