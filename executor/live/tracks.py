"""What the last minutes showed of running jobs and of their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.states import WATCHED, JobState
from dovetail.executor.live.beliefs import Belief
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.rates import Rate, Sample, rate_of
from dovetail.executor.live.sharing_classes import workload_name
from dovetail.executor.live.tails import LatencyTail, Tails
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.instances.datasets.records import SoloProfile

Residents = tuple[tuple[str, bool], ...]
"""The runs on a device in the order in which they came, each with whether it is under way."""

PART: Final = 4
"""What there is of a window at its end counts if it is at least one part of so many."""

_MOST_SAMPLES: Final = 2048


@dataclass(frozen=True)
class WatchOptions:
    """How long runs are watched before anything follows from it; all times in seconds.

    Attributes
    ----------
    warm_up_s : float
        Time after a run's first iteration that does not count (compilation, caches, tuning).
    settle_s : float
        Time that does not count after a run came to a device or left it.
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
class Track:
    """A run that holds devices, since it was first seen; times on the service's clock.

    ``phase`` are the residents of its devices, the same since ``phase_s``; ``first_s`` is when its
    first iteration was seen, ``total`` its iterations in all if it reports them, and ``memory_mib``
    the most that a rank was seen to use. ``profiled`` and ``renewed``: its profile, or a newer
    one, has been made.
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
    def to_profile(self) -> bool:
        """Whether it is being measured alone."""
        alone_only = self.job.alone_only or self.profiled
        return self.job.state is JobState.PROFILING and not alone_only

    def tail_over(self, rate: Rate) -> LatencyTail | None:
        """Return the tail of its latencies in the time of a rate."""
        return self.tails.since(self.samples[-1].at_s - rate.seconds)

    def advance(self, ranks: Sequence[Progress | None], shift_s: float) -> None:
        """Take in how far the ranks are; ``shift_s`` is the service's clock less theirs."""
        reporting = [rank for rank in ranks if rank is not None]
        if not reporting:
            return
        slowest = min(reporting, key=lambda rank: rank.iterations)
        sample = Sample(slowest.at_s + shift_s, slowest.iterations)
        last = self.samples[-1] if self.samples else None
        self.total = slowest.total
        if last is not None and sample.iterations < last.iterations:
            # Another process of the job counts now, and warms up first.
            self.samples.clear()
            self.tails.clear()
            self.first_s = None
        elif last is not None and sample.at_s <= last.at_s:
            return
        self.samples.append(sample)
        self.tails.note(sample.at_s, ranks)
        if self.first_s is None:
            self.first_s = sample.at_s
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1:-1:2]


@dataclass
class TrackedDevice:
    """A device while its residents are the same.

    ``since_s`` is when the present window began, after ``windows`` others. ``verdict`` says that
    one of the runs was over its gSLA: this has to be measured, or the policy would put them
    together again.
    """

    residents: Residents = ()
    since_s: float = 0.0
    windows: int = 0
    beliefs: tuple[Belief, ...] = ()
    readings: list[Usage] = field(default_factory=list)
    verdict: Literal["", "broken", "stalled"] = ""

    @property
    def predicted(self) -> tuple[float, ...]:
        """The slowdowns that are believed of its runs, if all are known."""
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
    view : PolicyView
        Profiles and beliefs.
    options : WatchOptions
        How long runs are watched.

    Attributes
    ----------
    now_s : float
        The moment of the last observation, on the service's clock.
    runs : dict of str to Track
        By id of the run.
    devices : dict of str to TrackedDevice
        By id of the device.
    found : dict
        Profiles made here that may not be in the repository yet, by workload, model and workers.
    """

    def __init__(self, models: Mapping[str, str], view: PolicyView, options: WatchOptions) -> None:
        self.models = models
        self.options = options
        self._view = view
        self.now_s = 0.0
        self.runs: dict[str, Track] = {}
        self.devices: dict[str, TrackedDevice] = {}
        self.found: dict[tuple[str, str, int], SoloProfile] = {}

    def changed(self, holding: Sequence[tuple[LiveJob, Run]]) -> dict[str, Residents]:
        """Return the new residents of devices that had others; ``holding`` are all runs there."""
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
        """Return the runs on a device, as tracked."""
        return self.devices[gpu].residents if gpu in self.devices else ()

    def follow(
        self, holding: Sequence[tuple[LiveJob, Run]], changed: Mapping[str, Residents]
    ) -> None:
        """Track these runs, and begin anew with devices whose residents have changed."""
        self.runs = {
            run.id: self.runs.get(run.id) or Track(job, run, self.now_s) for job, run in holding
        }
        for gpu, residents in changed.items():
            device = self.devices[gpu] = TrackedDevice(residents, self.now_s)
            if device.shared:
                runs = [self.runs[run].run for run, _ in residents]
                device.beliefs = self._view.predicted(runs, gpu)
        for track in self.runs.values():
            phase = tuple(self.devices[seat.gpu].residents for seat in track.run.seats)
            if phase != track.phase:
                track.phase, track.phase_s = phase, self.now_s
                del track.samples[:-1]

    def use(self, gpu: str, usage: Usage, shift_s: float) -> None:
        """Take in the usage of a device; ``shift_s`` is the service's clock less its own."""
        device = self.devices[gpu]
        if not device.residents:
            return
        device.readings.append(usage._replace(at_s=usage.at_s + shift_s))
        if len(device.readings) > _MOST_SAMPLES:
            del device.readings[1:-1:2]
        for run, _ in device.residents:
            used, track = usage.memory_by_run.get(run), self.runs[run]
            if used is None and track.to_profile and self.begin_s(track) is not None:
                # The run has the device for itself; what the driver takes there is counted in.
                used = usage.memory_mib
            if used is not None:
                track.memory_mib = max(used, track.memory_mib or 0.0)

    def busy_neighbours(self, *runs: Run) -> int:
        """Return on how many other devices of their nodes there are runs now."""
        others = self._view.neighbours({seat.gpu for run in runs for seat in run.seats})
        return sum(bool(self.residents(gpu)) for gpu in others)

    # What is known of one run.

    def begin_s(self, track: Track) -> float | None:
        """Return from when on a run's rate counts; None while it does not."""
        under_way = all(way for residents in track.phase for _, way in residents)
        if track.first_s is None or not under_way:
            return None
        warm_s = track.first_s + self.options.warm_up_s
        begin_s = max(warm_s, track.phase_s + self.options.settle_s)
        return begin_s if begin_s <= self.now_s else None

    def rate(self, track: Track, since_s: float) -> Rate | None:
        """Return a run's rate since a moment; None if that is too few iterations."""
        rate = rate_of(track.samples, since_s)
        return rate if rate and rate.iterations >= self.options.iterations else None

    def steady(self, rate: Rate) -> bool:
        """Return whether a rate is steady (``WatchOptions.tolerance``)."""
        tolerance = self.options.tolerance
        return rate.noise <= tolerance and abs(rate.drift) <= 2 * tolerance

    def alone(self, track: Track) -> SoloProfile | None:
        """Return the profile of a run's workload alone and uncapped."""
        model = self.model(track)
        found = self.found.get((track.name, model, track.run.spec.workers))
        return found or self._view.alone(track.run.spec, model)

    def solo_rate(self, track: Track) -> float | None:
        """Return the rate of a run's workload alone."""
        known = self.alone(track)
        return known.throughput if known else None

    def tail_growth(self, track: Track, since_s: float) -> tuple[float, float] | None:
        """Return by which factor a run's p99 has grown, and a lower bound on it beyond the noise.

        None if that is unknown.
        """
        known, tail = self.alone(track), track.tails.since(since_s)
        alone_s = known.latency_p99_s if known else None
        return (tail.p99_s / alone_s, tail.least_s / alone_s) if tail and alone_s else None

    def model(self, track: Track) -> str:
        """Return the model of a run's devices."""
        # A device may have left the pool with a run on it that is lost.
        return self.models.get(track.run.seats[0].gpu, "unknown")

    def predicted(self, run: str) -> Belief | None:
        """Return the largest slowdown that was believed of a run with its present co-runners."""
        beliefs = [
            belief
            for device in self.devices.values()
            for (resident, _), belief in zip(device.residents, device.beliefs, strict=False)
            if resident == run
        ]
        return max(beliefs, key=lambda belief: belief.slowdown, default=None)
