"""What running jobs show of themselves: profiles, slowdowns, breaches. Pure logic, no I/O.

`Watch.observe` takes what a pool tells of progress and usage, and returns the events that follow:

- a run that is being profiled: ``Profiled`` once its rate is steady, ``ProfileFailed`` where it
  cannot be measured;
- runs that share a device: ``Measured``, a window at a time, each slowdown being the rate alone
  over the rate now, and each p99 the 99th percentile of latency now over that alone;
- a run over its gSLA for longer than a window: the newest of those who share is stopped, and
  ``Separated`` says who may not be put together again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

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
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import WATCHED, JobState
from dovetail.executor.live.findings import Slowed, measurement, moment, solo_profile
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.rates import Rate, Sample, rate_of
from dovetail.executor.live.readings import Reading
from dovetail.executor.live.sharing_classes import workload_name
from dovetail.executor.live.tails import Tail, Tails
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.instances.datasets import SoloProfile

_Residents = tuple[tuple[str, bool], ...]
"""The runs on a device, in the order in which they came, and whether each is under way."""

_MOST_SAMPLES: Final = 2048
_MEMORY_GROWTH: Final = 1.02
_LONGER: Final = (1, 4, 16)
"""A breach that one window does not prove is looked for in so many."""

_PATIENCE: Final = 4
"""A noisy window is waited on until it is so many times as long."""

OUTDATED: Final = 0.1
"""A run alone whose rate is off by more than this part of its profile's is profiled again."""

LEAST_CREDIBLE: Final = 0.8
"""A slowdown below this says that the rate alone is wrong, not that company helps."""

_PART: Final = 4
"""What is left of a window at its end counts if it is at least one part of so many."""


@dataclass(frozen=True)
class WatchOptions:
    """How long things are looked at; all times in seconds.

    Attributes
    ----------
    warm_up_s : float
        After a run's first iteration, nothing counts for so long (compilation, caches, tuning).
    settle_s : float
        After somebody came to a device or left it, nothing counts for so long.
    profile_s, profile_most_s : float
        A profile takes at least the first, and at most about the second with its warm-up.
    window_s, window_most_s : float
        The first measurement of runs together takes ``window_s``, each further one of the same
        runs twice as long as the one before, up to ``window_most_s``. A gSLA is broken when it
        was for ``window_s``.
    stall_s : float
        A run with a gSLA that shares and has done no iteration for so long is over its gSLA.
    tolerance : float
        A rate is steady when its relative standard error is at most this, and it moves by at
        most twice this from the first half of the time to the second.
    iterations : int
        The fewest that make a rate.
    """

    warm_up_s: float = 10.0
    settle_s: float = 5.0
    profile_s: float = 60.0
    profile_most_s: float = 300.0
    window_s: float = 60.0
    window_most_s: float = 3600.0
    stall_s: float = 600.0
    tolerance: float = 0.03
    iterations: int = 5


@dataclass
class _Track:
    """One run that holds devices, since it was first seen; on the service's clock."""

    job: LiveJob
    run: Run
    seen_s: float
    phase: tuple[_Residents, ...] = ()
    phase_s: float = 0.0
    first_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    tails: Tails = field(default_factory=Tails)
    total: float | None = None
    memory_mib: float | None = None
    profiled: bool = False
    renewed: bool = False


@dataclass
class _Device:
    """One device while the same runs are on it.

    ``since_s`` is when the present window began, after ``windows`` others. ``verdict`` says that
    one of the runs was over its gSLA: it has to be learned, or they are put together again.
    """

    residents: _Residents = ()
    since_s: float = 0.0
    windows: int = 0
    predicted: tuple[float, ...] = ()
    readings: list[Usage] = field(default_factory=list)
    verdict: Literal["", "broken", "stalled"] = ""

    @property
    def shared(self) -> bool:
        """Whether several runs are on it, all under way."""
        return len(self.residents) > 1 and all(under_way for _, under_way in self.residents)


class _Excess(NamedTuple):
    """By how much a run was slowed beyond its gSLA; ``tail``: by how much its p99 grew."""

    slowdown: float
    tail: bool


class _Growth(NamedTuple):
    """By how much the p99 of a run has grown, and a lower bound on that beyond the noise."""

    p99: float
    least: float


class _Breach(NamedTuple):
    """A run over its gSLA, by how much or for how long still, and all who are on its devices."""

    track: _Track
    beside: tuple[_Track, ...]
    gsla: float
    excess: _Excess | None
    still_s: float

    @property
    def newest(self) -> _Track:
        """The one that is stopped for it."""
        return max(self.beside, key=_started)

    @property
    def culprits(self) -> tuple[_Track, ...]:
        """Those that may have slowed it: the one that came last, or any where it came last."""
        newest = self.newest
        if newest is not self.track:
            return (newest,)
        return tuple(other for other in self.beside if other is not self.track)

    @property
    def reason(self) -> str:
        """Why somebody is stopped, in words."""
        job = self.track.job.id
        if self.excess is None:
            return f"{job} has done no iteration beside others for {self.still_s:.0f} s"
        what = "had its p99 latency grow" if self.excess.tail else "was slowed"
        return f"{job} {what} {self.excess.slowdown:.2f}, its gSLA is {self.gsla:g}"


def watched(machine: StateMachine) -> list[str]:
    """Return the runs whose progress `Watch.observe` wants to see."""
    return [job.run.id for job in machine.holding.values() if job.state in WATCHED and job.run]


class Watch:
    """Keeps what the last minutes showed; a new one after a restart begins to look anew.

    Its methods are called from one thread.

    Parameters
    ----------
    models : mapping of str to str
        The model of every device, by its id.
    knowledge : PolicyView
        Profiles and beliefs.
    options : WatchOptions, optional
        How long things are looked at.
    """

    def __init__(
        self,
        models: Mapping[str, str],
        knowledge: PolicyView,
        options: WatchOptions | None = None,
    ) -> None:
        self._models = models
        self._knowledge = knowledge
        self._options = options or WatchOptions()
        self._now_s = 0.0
        self._tracks: dict[str, _Track] = {}
        self._devices: dict[str, _Device] = {}
        self._found: dict[tuple[str, str, int], SoloProfile] = {}

    def equip(self, models: Mapping[str, str]) -> None:
        """Take in that the pool has other devices now."""
        self._models = models

    def observe(
        self,
        machine: StateMachine,
        progress: Mapping[str, Sequence[Progress | None]],
        usage: Mapping[str, Usage],
        now_s: float,
        boot_s: float,
    ) -> tuple[AnyEvent, ...]:
        """Take in what a pool tells, and return what follows from it.

        Parameters
        ----------
        machine : StateMachine
            Jobs and devices; it is only read.
        progress : mapping of str to sequence of Progress or None
            ``pool.progress(run)`` of each of the `watched` runs.
        usage : mapping of str to Usage
            ``pool.usage()``.
        now_s, boot_s : float
            The moment on the service's clock, and on the clock of ``progress`` and ``usage``.
        """
        self._now_s = now_s
        ended = self._follow(machine)
        for run in progress.keys() & self._tracks.keys():
            self._advance(self._tracks[run], progress[run], now_s - boot_s)
        for gpu in usage.keys() & self._devices.keys():
            self._use(self._devices[gpu], usage[gpu], now_s - boot_s)
        breaches = list(self._breaches())
        stops = {breach.newest.run.id: self._stop(breach) for breach in breaches}
        return (
            *ended,
            *self._profiles(),
            *self._measurements(),
            *self._grown(),
            *self._renewed(),
            *stops.values(),
            *(event for breach in breaches for event in self._separated(breach)),
        )

    def reading(self, run: str) -> Reading:
        """Return what was seen of a run at the last `observe`; empty if it is not watched."""
        track = self._tracks.get(run)
        if track is None:
            return Reading()
        since_s = max(track.phase_s, self._now_s - self._options.window_s)
        rate, solo = rate_of(track.samples, since_s), self._solo_rate(track)
        return Reading(
            iterations=track.samples[-1].iterations if track.samples else None,
            total=track.total,
            rate=rate.per_s if rate else None,
            solo_rate=solo,
            slowdown=solo / rate.per_s if rate and solo else None,
            noise=rate.noise if rate else None,
            predicted=self._predicted(run),
            memory_mib=track.memory_mib,
        )

    # Who is where.

    def _follow(self, machine: StateMachine) -> list[AnyEvent]:
        """Take in who is on which device; return what may still be said of those who were."""
        holding = [(job, job.run) for job in machine.holding.values() if job.run is not None]
        residents = _residents(holding)
        changed = [
            gpu
            for gpu in self._devices.keys() | residents.keys()
            if residents.get(gpu, ()) != self._residents_of(gpu)
        ]
        ended = [*self._ended_profiles(), *self._measurements(changed)]
        self._tracks = {
            run.id: self._tracks.get(run.id) or _Track(job, run, self._now_s)
            for job, run in holding
        }
        for gpu in changed:
            self._devices[gpu] = self._device(gpu, residents.get(gpu, ()))
        for track in self._tracks.values():
            self._enter_phase(track)
        return ended

    def _residents_of(self, gpu: str) -> _Residents:
        return self._devices[gpu].residents if gpu in self._devices else ()

    def _device(self, gpu: str, residents: _Residents) -> _Device:
        device = _Device(residents, self._now_s)
        if device.shared:
            runs = [self._tracks[run].run for run, _ in residents]
            beliefs = self._knowledge.predicted(runs, gpu)
            device.predicted = beliefs if all(map(math.isfinite, beliefs)) else ()
        return device

    def _enter_phase(self, track: _Track) -> None:
        phase = tuple(self._devices[seat.gpu].residents for seat in track.run.seats)
        if phase != track.phase:
            track.phase, track.phase_s = phase, self._now_s
            del track.samples[:-1]

    # What is told of runs and devices.

    def _advance(self, track: _Track, ranks: Sequence[Progress | None], shift_s: float) -> None:
        told = [rank for rank in ranks if rank is not None]
        if not told:
            return
        slowest = min(told, key=lambda rank: rank.iterations)
        sample = Sample(slowest.at_s + shift_s, slowest.iterations)
        last = track.samples[-1] if track.samples else None
        track.total = slowest.total
        if last is not None and sample.iterations < last.iterations:
            # Another process of the job counts now, and warms up first.
            track.samples.clear()
            track.tails.clear()
            track.first_s = None
        elif last is not None and sample.at_s <= last.at_s:
            return
        track.samples.append(sample)
        track.tails.note(sample.at_s, ranks)
        if track.first_s is None:
            track.first_s = sample.at_s
        if len(track.samples) > _MOST_SAMPLES:
            del track.samples[1:-1:2]

    def _use(self, device: _Device, usage: Usage, shift_s: float) -> None:
        if not device.residents:
            return
        device.readings.append(usage._replace(at_s=usage.at_s + shift_s))
        if len(device.readings) > _MOST_SAMPLES:
            del device.readings[1:-1:2]
        for run, _ in device.residents:
            used, track = usage.memory_by_run.get(run), self._tracks[run]
            if used is None and self._to_profile(track) and self._begin_s(track) is not None:
                # It has the device for itself; what the driver takes there is counted in.
                used = usage.memory_mib
            if used is not None:
                track.memory_mib = max(used, track.memory_mib or 0.0)

    def _begin_s(self, track: _Track) -> float | None:
        """Return from when on a run's rate counts; None while it does not."""
        under_way = all(way for residents in track.phase for _, way in residents)
        if track.first_s is None or not under_way:
            return None
        warm_s = track.first_s + self._options.warm_up_s
        begin_s = max(warm_s, track.phase_s + self._options.settle_s)
        return begin_s if begin_s <= self._now_s else None

    # Profiles.

    def _profiles(self) -> Iterator[AnyEvent]:
        for track in self._tracks.values():
            if self._to_profile(track):
                yield from self._profile(track)

    def _to_profile(self, track: _Track) -> bool:
        job = track.job
        return job.state is JobState.PROFILING and not (job.alone_only or track.profiled)

    def _profile(self, track: _Track) -> Iterator[AnyEvent]:
        options, begin_s = self._options, self._begin_s(track)
        since_s = max(track.seen_s, track.job.since_s, track.first_s or 0.0)
        rates: list[Rate] = []
        if begin_s is not None and self._now_s - begin_s >= options.profile_s:
            starts = (self._now_s - options.profile_s, begin_s)
            rates = [rate for start in starts if (rate := self._rate(track, start))]
        least_s = options.warm_up_s + options.settle_s + options.profile_s
        late = self._now_s - since_s >= max(options.profile_most_s, least_s)
        ready = (rate for rate in rates if self._steady(rate) and _tail_told(track, rate))
        best = next(ready, rates[0] if late and rates else None)
        if best is not None:
            yield self._profiled(track, best)
        elif late:
            yield self._unmeasured(track, self._too_few(track))

    def _ended_profiles(self) -> Iterator[AnyEvent]:
        """Yield the profiles of runs that ended well before their time was up."""
        for track in self._tracks.values():
            job, phase = track.job, track.phase
            alone = job.profiling and not (job.alone_only or track.profiled)
            if job.state is not JobState.FINISHED or not alone or _id(job) != track.run.id:
                continue
            begin_s = self._begin_s(track) if phase else None
            rate = self._rate(track, begin_s) if begin_s is not None else None
            if rate and self._steady(rate) and rate.seconds >= self._options.profile_s / _PART:
                yield self._profiled(track, rate)

    def _profiled(self, track: _Track, rate: Rate) -> AnyEvent:
        memory_mib = track.memory_mib or track.run.spec.memory_mib
        if memory_mib is None:
            return self._unmeasured(track, "nobody can tell its memory: submit it with its memory")
        track.profiled = True
        begin_s = track.samples[-1].at_s - rate.seconds
        tail = _tail_over(track, rate)
        p99_s = tail.p99_s if tail else None
        devices = [
            [reading for reading in self._devices[seat.gpu].readings if reading.at_s >= begin_s]
            for seat in track.run.seats
        ]
        name, model = self._name(track), self._model(track)
        profile = solo_profile(
            track.run, name, model, rate, memory_mib, devices, self._now_s, p99_s
        )
        if profile.share is None:
            self._found[name, model, track.run.spec.workers] = profile
        return Profiled(at_s=self._now_s, run=track.run.id, profile=profile)

    def _unmeasured(self, track: _Track, reason: str) -> AnyEvent:
        track.profiled = True
        return ProfileFailed(at_s=self._now_s, run=track.run.id, reason=reason)

    def _too_few(self, track: _Track) -> str:
        if track.first_s is None:
            most_s = self._options.profile_most_s
            return f"it reported no progress in {most_s:g} s; see docs/howto/report-progress.md"
        return (
            f"its rate cannot be told: fewer than {self._options.iterations} iterations "
            f"in {self._options.profile_most_s:g} s"
        )

    def _grown(self) -> Iterator[AnyEvent]:
        """Yield the profiles of runs that use more memory than was known."""
        for track in self._tracks.values():
            known = self._alone(track) if track.job.state is JobState.RUNNING else None
            used, most = track.memory_mib, known.memory_mib if known else None
            if known and used and most and used > _MEMORY_GROWTH * most:
                profile = known.replace(memory_mib=used, date=moment(self._now_s))
                self._found[self._name(track), self._model(track), known.workers] = profile
                yield Profiled(at_s=self._now_s, run=track.run.id, profile=profile)

    def _renewed(self) -> Iterator[AnyEvent]:
        """Yield new profiles of runs that are alone and go at another rate than was known."""
        since_s = self._now_s - self._options.profile_s
        for track in self._tracks.values():
            begin_s = self._begin_s(track) if self._may_renew(track) else None
            rate = self._rate(track, since_s) if begin_s and begin_s <= since_s else None
            known = self._alone(track)
            if rate is None or known is None or not self._steady(rate):
                continue
            if self._outdated(known, track, rate) and track.memory_mib is not None:
                track.renewed = True
                yield self._profiled(track, rate)

    def _outdated(self, known: SoloProfile, track: _Track, rate: Rate) -> bool:
        """Tell whether a run shows another rate than its profile, or a p99 that this one lacks."""
        solo = known.throughput
        new_tail = known.latency_p99_s is None and _tail_over(track, rate) is not None
        return solo is not None and (new_tail or abs(rate.per_s - solo) > OUTDATED * solo)

    def _may_renew(self, track: _Track) -> bool:
        alone = all(len(residents) == 1 for residents in track.phase)
        uncapped = all(seat.share is None for seat in track.run.seats)
        running = track.job.state is JobState.RUNNING and track.run.sub_batch is None
        return running and alone and uncapped and not track.renewed

    # Runs that share.

    def _measurements(self, ended: Sequence[str] | None = None) -> Iterator[AnyEvent]:
        """Yield what was measured on devices whose window is over.

        ``ended``: the devices whose runs are together no more, with what there is of a window.
        """
        # Gangs that share several devices are measured on the first.
        first: dict[_Residents, str] = {}
        for gpu in self._devices if ended is None else ended:
            if self._residents_of(gpu) and self._devices[gpu].shared:
                first.setdefault(self._devices[gpu].residents, gpu)
        for gpu in first.values():
            event = self._measured(gpu, self._devices[gpu], ended is not None)
            if event is not None:
                yield event

    def _measured(self, gpu: str, device: _Device, ended: bool) -> AnyEvent | None:
        tracks = [self._tracks[run] for run, _ in device.residents]
        begins = [begin for track in tracks if (begin := self._begin_s(track)) is not None]
        if len(begins) < len(tracks) or not all(self._attributable(track, gpu) for track in tracks):
            return None
        since_s = max(device.since_s, *begins)
        length_s, slowed = self._now_s - since_s, self._slowed(tracks, since_s)
        stalled = ended and device.verdict == "stalled"
        if not stalled and not (slowed and self._window_over(device, length_s, slowed, ended)):
            return None
        readings = [reading for reading in device.readings if reading.at_s >= since_s]
        if slowed and not device.verdict and any(one.slowdown < LEAST_CREDIBLE for one in slowed):
            return None
        device.since_s, device.readings = self._now_s, readings[-1:]
        device.windows += 1
        found = measurement(
            [self._name(track) for track in tracks],
            [track.run.share_on(gpu) for track in tracks],
            self._model(tracks[0]),
            None if stalled else slowed,
            readings,
            self._now_s,
        )
        runs = tuple(track.run.id for track in tracks)
        return Measured(
            at_s=self._now_s,
            runs=runs,
            gpu=gpu,
            measurement=found,
            window_s=length_s,
            predicted=device.predicted,
        )

    def _slowed(self, tracks: Sequence[_Track], since_s: float) -> list[Slowed] | None:
        """Return the slowdown of each run; None where it cannot be told of every one."""
        found = []
        for track in tracks:
            rate, solo = self._rate(track, since_s), self._solo_rate(track)
            if rate is None or solo is None:
                return None
            growth = self._tail_growth(track, since_s)
            found.append(Slowed(solo / rate.per_s, rate, growth and growth.p99))
        return found

    def _window_over(
        self, device: _Device, length_s: float, slowed: Sequence[Slowed], ended: bool
    ) -> bool:
        steady = all(self._steady(one.rate) for one in slowed)
        if ended and device.verdict and not device.windows:
            return True
        if ended:
            return steady and length_s >= self._options.window_s / _PART
        wanted_s = self._options.window_s * 2.0**device.windows
        wanted_s = min(wanted_s, self._options.window_most_s)
        return length_s >= (wanted_s if steady else _PATIENCE * wanted_s)

    def _attributable(self, track: _Track, gpu: str) -> bool:
        """Tell whether a run is slowed by who is on this device, and by nothing else.

        A gang runs at the pace of its slowest worker: its other devices must be its own, or
        shared in the same way.
        """
        run, here = track.run, self._company(gpu)
        if run.sub_batch is not None or _id(track.job) != run.id:
            return False
        elsewhere = (self._company(seat.gpu) for seat in run.seats if seat.gpu != gpu)
        return all(company == here or len(company) == 1 for company in elsewhere)

    def _company(self, gpu: str) -> list[tuple[str, str]]:
        """Return the workloads on a device, each with its share there."""
        runs = [self._tracks[run] for run, _ in self._devices[gpu].residents]
        return sorted((self._name(one), str(one.run.share_on(gpu))) for one in runs)

    def _breaches(self) -> Iterator[_Breach]:
        """Yield the runs that are over their gSLA."""
        for track in self._tracks.values():
            others = {run for residents in track.phase for run, _ in residents}
            gsla, begin_s = track.job.spec.gsla, self._begin_s(track)
            if gsla is None or begin_s is None or len(others) < 2:
                continue
            still_s = self._now_s - max(track.samples[-1].at_s, begin_s)
            stalled = still_s >= self._options.stall_s
            excess = None if stalled else self._too_slow(track, begin_s, gsla)
            if not stalled and excess is None:
                continue
            for seat in track.run.seats:
                self._devices[seat.gpu].verdict = "stalled" if stalled else "broken"
            beside = tuple(self._tracks[run] for run in others)
            yield _Breach(track, beside, gsla, excess, still_s)

    def _stop(self, breach: _Breach) -> AnyEvent:
        newest = breach.newest.run
        return StopDecided(
            at_s=self._now_s,
            run=newest.id,
            reason=breach.reason,
            then="wait" if newest.spec.requeue else "fail",
        )

    def _separated(self, breach: _Breach) -> Iterator[AnyEvent]:
        """Yield whom a run over its gSLA may not be beside again, at which caps."""
        track = breach.track
        for other in breach.culprits:
            there = {seat.gpu: seat.share for seat in other.run.seats}
            mine = {seat.gpu: seat.share for seat in track.run.seats if seat.gpu in there}
            for shares in dict.fromkeys((mine[gpu], there[gpu]) for gpu in mine):
                yield Separated(
                    at_s=self._now_s,
                    runs=(track.run.id, other.run.id),
                    gpu_model=self._model(track),
                    workloads=(self._name(track), self._name(other)),
                    shares=shares,
                    gsla=breach.gsla,
                    slowdown=breach.excess and breach.excess.slowdown,
                    tail=breach.excess is not None and breach.excess.tail,
                )

    def _too_slow(self, track: _Track, begin_s: float, gsla: float) -> _Excess | None:
        """Return the slowdown of a run that is over its gSLA beyond the noise, else None."""
        for times in _LONGER:
            since_s = self._now_s - times * self._options.window_s
            if since_s < begin_s:
                return None
            critical = track.run.spec.priority == "latency"
            growth = self._tail_growth(track, since_s) if critical else None
            if growth is not None:
                excess = _Excess(growth.p99, tail=True) if growth.least > gsla else None
            else:
                excess = self._slow_on_average(track, since_s, gsla)
            if excess is not None:
                return excess
        return None

    def _slow_on_average(self, track: _Track, since_s: float, gsla: float) -> _Excess | None:
        solo, rate = self._solo_rate(track), self._rate(track, since_s)
        if solo and rate and solo / rate.per_s * (1 - 2 * rate.noise) > gsla:
            return _Excess(solo / rate.per_s, tail=False)
        return None

    def _tail_growth(self, track: _Track, since_s: float) -> _Growth | None:
        """Return by how much the p99 of a run has grown; None where that is not known."""
        known, tail = self._alone(track), track.tails.since(since_s)
        alone_s = known.latency_p99_s if known else None
        return _Growth(tail.p99_s / alone_s, tail.least_s / alone_s) if tail and alone_s else None

    # What is known of one run.

    def _rate(self, track: _Track, since_s: float) -> Rate | None:
        rate = rate_of(track.samples, since_s)
        return rate if rate and rate.iterations >= self._options.iterations else None

    def _steady(self, rate: Rate) -> bool:
        tolerance = self._options.tolerance
        return rate.noise <= tolerance and abs(rate.drift) <= 2 * tolerance

    def _solo_rate(self, track: _Track) -> float | None:
        known = self._alone(track)
        return known.throughput if known else None

    def _alone(self, track: _Track) -> SoloProfile | None:
        key = (self._name(track), self._model(track), track.run.spec.workers)
        found = self._found.get(key)
        return found or self._knowledge.alone(track.run.spec, self._model(track))

    def _predicted(self, run: str) -> float | None:
        beliefs = [
            belief
            for device in self._devices.values()
            for (resident, _), belief in zip(device.residents, device.predicted, strict=False)
            if resident == run
        ]
        return max(beliefs, default=None)

    def _name(self, track: _Track) -> str:
        return workload_name(track.run.spec)

    def _model(self, track: _Track) -> str:
        # A device may have left the pool with a run on it that nobody can find.
        return self._models.get(track.run.seats[0].gpu, "unknown")


def _id(job: LiveJob) -> str:
    """Return the id of its present run, or its last one; empty before it has one."""
    return job.run.id if job.run is not None else ""


def _tail_over(track: _Track, rate: Rate) -> Tail | None:
    """Return the tail of a run's latencies in the time of a rate."""
    return track.tails.since(track.samples[-1].at_s - rate.seconds)


def _tail_told(track: _Track, rate: Rate) -> bool:
    """Tell whether a run that reports latencies reported enough of them in the time of a rate."""
    return not track.tails.told or _tail_over(track, rate) is not None


def _residents(holding: Sequence[tuple[LiveJob, Run]]) -> dict[str, _Residents]:
    """Return the runs on each device and whether each is under way."""
    found: dict[str, _Residents] = {}
    for job, run in holding:
        for seat in run.seats:
            entry = (run.id, job.state in WATCHED)
            found[seat.gpu] = (*found.get(seat.gpu, ()), entry)
    return found


def _started(track: _Track) -> tuple[float, float]:
    """Return when a run was placed; of two placed at once, the one submitted later is newer."""
    steps = (step.at_s for step in reversed(track.job.history) if step.state is JobState.STARTING)
    return next(steps, track.seen_s), track.job.submitted_s
