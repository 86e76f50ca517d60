"""Recent observations of running jobs and their devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run, probes_per_s
from dovetail.executor.jobs.states import WATCHED, JobState
from dovetail.executor.live.beliefs import Belief
from dovetail.executor.live.job_beliefs import JobBeliefs, workload_name
from dovetail.executor.live.observation.records import (
    LatencyTail,
    Period,
    Rate,
    Sample,
    Tails,
    rate_of,
)
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.instances._record import AnyShare
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.instances.slowdowns.shares import caps_of

Residents = tuple[tuple[str, bool], ...]
"""The runs on a device in order of arrival, each with whether it is under way."""

ProfileKey = tuple[str, str, int]
"""A workload's name in the repository, a device model, and the number of workers."""

WINDOWS: Final = (1, 4, 16)
"""Numbers of windows over which a tail, or a breach of a gSLA, is looked for, in this order."""

READY_S: Final = 5.0
"""A service is ready if it answered a probe in this many seconds, or in `READY_PROBES` of them."""

READY_PROBES: Final = 3

PART: Final = 4
"""An interrupted window is used if at least one part in this many of it has passed."""

_MOST_SAMPLES: Final = 2048


@dataclass(frozen=True)
class WatchOptions:
    """How long runs are watched before conclusions are drawn; all times in seconds.

    Attributes
    ----------
    warm_up_s : float
        Time after a run's first iteration that is ignored (compilation, caches, tuning).
    settle_s : float
        Time after a run started on a device or left it that is ignored.
    profile_s, profile_most_s : float
        Least duration of a profile, and approximate limit on it including the warm-up.
    window_s, window_most_s : float
        The first measurement of runs together takes ``window_s``, and each further measurement of
        the same runs takes twice as long, up to ``window_most_s``. A gSLA is broken if it was
        exceeded for at least ``window_s``.
    stall_s : float
        A run with a gSLA that shares and has done no iteration for this long is over its gSLA.
    tolerance : float
        A rate is steady if its relative standard error is at most this, and it changes by at most
        twice this between the first and the second half of the time.
    iterations : int
        The fewest iterations that give a rate.
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
class Track:
    """A run that holds devices, since it was first seen; times are on the service's clock.

    ``phase`` has the residents of its devices, unchanged since ``phase_s``; ``first_s`` is when its
    first iteration was seen, ``total`` its total iterations if it reports them, and ``memory_mib``
    the most memory that a rank was seen to use. ``profiled`` and ``renewed``: its profile, or a
    newer profile, has been made.
    """

    job: LiveJob
    run: Run
    seen_s: float
    phase: tuple[Residents, ...] = ()
    phase_s: float = 0.0
    first_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    tails: Tails = field(default_factory=Tails)
    total: float | None = None
    memory_mib: float | None = None
    profiled: bool = False
    renewed: bool = False

    @property
    def name(self) -> str:
        """The name of its workload in the repository."""
        return workload_name(self.run.spec)

    @property
    def present(self) -> bool:
        """Whether it is still the last run of its job."""
        return self.job.run is not None and self.job.run.id == self.run.id

    @property
    def shares(self) -> bool:
        """Whether it shares one of its devices."""
        return any(len(residents) > 1 for residents in self.phase)

    @property
    def to_profile(self) -> bool:
        """Whether it is being measured alone."""
        alone_only = self.job.alone_only or self.profiled
        return self.job.state is JobState.PROFILING and not alone_only

    def tail_over(self, rate: Rate) -> LatencyTail | None:
        """Return the tail of its latencies in the time of a rate."""
        return self.tails.since(self.samples[-1].at_s - rate.seconds)

    def advance(self, ranks: Sequence[Progress | None], now_s: float, shift_s: float) -> None:
        """Add the progress of the ranks; ``shift_s`` is the service's clock minus theirs."""
        # Only the first rank is probed.
        probed = self.run.spec.probe is not None
        if probed:
            ranks = ranks[:1]
        reporting = [rank for rank in ranks if rank is not None]
        if not reporting:
            return
        slowest = min(reporting, key=lambda rank: rank.iterations)
        sample = Sample(slowest.at_s + shift_s, slowest.iterations)
        last = self.samples[-1] if self.samples else None
        self.total = slowest.total
        if last is not None and sample.iterations < last.iterations:
            # Another process of the job counts now, and must warm up first.
            self.samples.clear()
            self.tails.clear()
            self.first_s = None
        fresh = not self.samples or sample.at_s > self.samples[-1].at_s
        # Probes that fail count as latencies, too, and make no progress.
        if fresh or probed:
            self.tails.note(now_s if probed else sample.at_s, ranks)
        if not fresh:
            return
        self.samples.append(sample)
        if self.first_s is None:
            self.first_s = sample.at_s
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1:-1:2]


@dataclass
class TrackedDevice:
    """A device while its residents are the same.

    ``since_s`` is when the present window began, after ``windows`` earlier windows. ``verdict``
    says that one of the runs was over its gSLA: this must be recorded as a measurement, or the
    policy would put the runs together again.
    """

    residents: Residents = ()
    since_s: float = 0.0
    windows: int = 0
    beliefs: tuple[Belief, ...] = ()
    readings: list[Usage] = field(default_factory=list)
    verdict: Literal["", "broken", "stalled"] = ""

    @property
    def predicted(self) -> tuple[float, ...]:
        """The believed slowdowns of its runs; empty unless all are known."""
        return tuple(belief.slowdown for belief in self.beliefs)

    @property
    def shared(self) -> bool:
        """Whether it has several runs, all under way."""
        return len(self.residents) > 1 and all(under_way for _, under_way in self.residents)


class Tracks:
    """Keeps track of the runs that hold devices.

    Parameters
    ----------
    models : mapping of str to str
        The model of every device of the pool, by its id.
    beliefs : JobBeliefs
        Profiles and beliefs.
    options : WatchOptions
        How long runs are watched.

    Attributes
    ----------
    now_s : float
        The moment of the last observation, on the service's clock.
    measured_on : str
        Device on which the service measures a share; empty if there is none.
    runs : dict of str to Track
        By id of the run.
    devices : dict of str to TrackedDevice
        By id of the device.
    found : dict
        Profiles made here that may not be in the repository yet.
    """

    def __init__(
        self, models: Mapping[str, str], beliefs: JobBeliefs, options: WatchOptions
    ) -> None:
        self.models = models
        self.options = options
        self._beliefs = beliefs
        self.now_s = 0.0
        self.measured_on = ""
        self.runs: dict[str, Track] = {}
        self.devices: dict[str, TrackedDevice] = {}
        self.found: dict[ProfileKey, SoloProfile] = {}

    def changed(self, holding: Sequence[tuple[LiveJob, Run]]) -> dict[str, Residents]:
        """Return the new residents of devices with changes; ``holding`` has all present runs."""
        residents: dict[str, Residents] = {}
        for job, run in holding:
            for seat in run.seats:
                entry = (run.id, job.state in WATCHED)
                residents[seat.gpu] = (*residents.get(seat.gpu, ()), entry)
        return {
            gpu: residents.get(gpu, ())
            for gpu in self.devices.keys() | residents.keys()
            if residents.get(gpu, ()) != self.residents(gpu)
        }

    def residents(self, gpu: str) -> Residents:
        """Return the tracked runs on a device."""
        return self.devices[gpu].residents if gpu in self.devices else ()

    def follow(
        self, holding: Sequence[tuple[LiveJob, Run]], changed: Mapping[str, Residents]
    ) -> None:
        """Track these runs, and start over with the devices whose residents have changed."""
        before, self.runs = self.runs, {}
        for job, run in holding:
            track = self.runs[run.id] = before.get(run.id) or Track(job, run, self.now_s)
            track.run = run  # its share may have changed with its co-runners
        for gpu, residents in changed.items():
            device = self.devices[gpu] = TrackedDevice(residents, self.now_s)
            if device.shared:
                runs = [self.runs[run].run for run, _ in residents]
                device.beliefs = self._beliefs.predicted(runs, gpu)
        for track in self.runs.values():
            phase = tuple(self.devices[seat.gpu].residents for seat in track.run.seats)
            if phase != track.phase:
                track.phase, track.phase_s = phase, self.now_s
                del track.samples[:-1]

    def use(self, gpu: str, usage: Usage, shift_s: float) -> None:
        """Add the usage of a device; ``shift_s`` is the service's clock minus the device's."""
        device = self.devices[gpu]
        if not device.residents:
            return
        device.readings.append(usage._replace(at_s=usage.at_s + shift_s))
        if len(device.readings) > _MOST_SAMPLES:
            del device.readings[1:-1:2]
        for run, _ in device.residents:
            used, track = usage.memory_by_run.get(run), self.runs[run]
            if used is None and track.to_profile and self.begin_s(track) is not None:
                # The run has the device to itself; this includes the driver's memory.
                used = usage.memory_mib
            if used is not None:
                track.memory_mib = max(used, track.memory_mib or 0.0)

    def period(self, tracks: Sequence[Track], gpus: Iterable[str], since_s: float) -> Period:
        """Return what these devices showed since a moment; ``tracks`` are the runs on them."""
        readings = [
            [reading for reading in self.devices[gpu].readings if reading.at_s >= since_s]
            for gpu in gpus
        ]
        held = {seat.gpu for track in tracks for seat in track.run.seats}
        others = self._beliefs.neighbours(held)
        busy = sum(gpu == self.measured_on or bool(self.residents(gpu)) for gpu in others)
        return Period(self.model(tracks[0]), readings, self.now_s, busy)

    # Figures of one run.

    def begin_s(self, track: Track) -> float | None:
        """Return the moment from which a run's rate is valid; None if it is not valid yet."""
        under_way = all(way for residents in track.phase for _, way in residents)
        if track.first_s is None or not under_way:
            return None
        warm_s = track.first_s + self.options.warm_up_s
        begin_s = max(warm_s, track.phase_s + self.options.settle_s)
        return begin_s if begin_s <= self.now_s else None

    def rate(self, track: Track, since_s: float) -> Rate | None:
        """Return a run's rate since a moment; None if there are too few iterations."""
        rate = rate_of(track.samples, since_s)
        return rate if rate and rate.iterations >= self.options.iterations else None

    def present_rate(self, track: Track) -> float | None:
        """Return a run's iterations per second now, over at most a window."""
        rate = rate_of(track.samples, max(track.phase_s, self.now_s - self.options.window_s))
        return rate.per_s if rate else None

    def steady(self, rate: Rate) -> bool:
        """Return whether a rate is steady (``WatchOptions.tolerance``)."""
        tolerance = self.options.tolerance
        return rate.noise <= tolerance and abs(rate.drift) <= 2 * tolerance

    def key(self, track: Track) -> ProfileKey:
        """Return what distinguishes a run's profile from others."""
        return track.name, self.model(track), track.run.spec.workers

    def alone(self, track: Track) -> SoloProfile | None:
        """Return the profile of a run's workload alone and uncapped."""
        found = self.found.get(self.key(track))
        return found or self._beliefs.alone(track.run.spec, self.model(track))

    def described(self, track: Track) -> SoloProfile | None:
        """Return what is known of a run's workload alone and uncapped, if only of its kernels."""
        return self.alone(track) or self._beliefs.described(track.run.spec, self.model(track))

    def solo_rate(self, track: Track) -> float | None:
        """Return the rate of a run's workload alone."""
        known = self.alone(track)
        return known.throughput if known else None

    def tail_growth(self, track: Track, since_s: float) -> tuple[float, float] | None:
        """Return the factor by which a run's p99 has grown, and a lower bound on it.

        None if it is unknown.
        """
        known, tail = self.alone(track), track.tails.since(since_s)
        alone_s = known.latency_p99_s if known else None
        return (tail.p99_s / alone_s, tail.least_s / alone_s) if tail and alone_s else None

    def present_tail(self, track: Track) -> LatencyTail | None:
        """Return the tail of a run's latencies now, over as few windows as have enough of them.

        None if there was none in the last window.
        """
        if not self.requests_per_s(track):
            return None
        for times in WINDOWS:
            since_s = max(track.phase_s, self.now_s - times * self.options.window_s)
            if found := track.tails.since(since_s):
                return found
        return None

    def requests_per_s(self, track: Track) -> float | None:
        """Return a run's latencies per second of the last window; None if it reports none."""
        since_s = max(track.phase_s, self.now_s - self.options.window_s)
        if not track.tails.reported or since_s >= self.now_s:
            return None
        return track.tails.number(since_s) / (self.now_s - since_s)

    def ready(self, track: Track) -> bool | None:
        """Return whether a service has just answered a probe; None if it has no probe."""
        spec = track.run.spec
        if spec.probe is None:
            return None
        silent_s = max(READY_S, READY_PROBES / probes_per_s(spec))
        return bool(track.samples) and self.now_s - track.samples[-1].at_s <= silent_s

    def mode(self, shares: Iterable[AnyShare]) -> SharingMode:
        """Return how runs at these shares share a device.

        Only MPS keeps caps: runs that have some outlived a service that had MPS.
        """
        return "mps" if caps_of(shares) else self._beliefs.cluster.sharing

    def model(self, track: Track) -> str:
        """Return the model of a run's devices."""
        # The device of a lost run may have left the pool.
        return self.models.get(track.run.seats[0].gpu, "unknown")

    def predicted(self, track: Track) -> Belief | None:
        """Return the largest slowdown believed for a run with its present co-runners."""
        devices = [self.devices[seat.gpu] for seat in track.run.seats]
        beliefs = [
            belief
            for device in devices
            for (resident, _), belief in zip(device.residents, device.beliefs, strict=False)
            if resident == track.run.id
        ]
        return max(beliefs, key=lambda belief: belief.slowdown, default=None)
