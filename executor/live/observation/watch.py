"""Conclusions from observations of running jobs. Pure logic, no I/O.

`Watch.observe` takes a pool's reports of progress and usage, and returns the resulting events:

- for a run that is being profiled: ``Profiled`` once its rate is steady, ``ProfileFailed`` if it
  cannot be measured (``profiles``);
- for runs that share a device: ``Measured`` for each window (``windows``);
- for a run over its gSLA for longer than a window: ``StopDecided`` for the newest of the runs that
  share, and ``Separated`` for the pairs that may not share again (``breaches``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import WATCHED
from dovetail.executor.live.observation.breaches import breaches
from dovetail.executor.live.observation.profiles import (
    ended_profiles,
    grown_profiles,
    profiles,
    renewed_profiles,
)
from dovetail.executor.live.observation.rates import rate_of
from dovetail.executor.live.observation.readings import NOTHING, RunReading
from dovetail.executor.live.observation.tracks import Tracks, WatchOptions
from dovetail.executor.live.observation.windows import measurements
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.pools.pool import Progress, Usage


def watched(machine: StateMachine) -> list[str]:
    """Return the runs whose progress `Watch.observe` needs."""
    return [job.run.id for job in machine.holding.values() if job.state in WATCHED and job.run]


class RunWatch:
    """Draws conclusions from recent observations, which are lost when the service ends.

    Its methods are called from one thread.

    Parameters
    ----------
    models : mapping of str to str
        The model of every device, by its id; read at each `observe`.
    view : PolicyView
        Profiles and beliefs.
    options : WatchOptions, optional
        How long runs are watched.
    """

    def __init__(
        self, models: Mapping[str, str], view: PolicyView, options: WatchOptions | None = None
    ) -> None:
        self._tracks = Tracks(models, view, options or WatchOptions())

    def observe(
        self,
        machine: StateMachine,
        progress: Mapping[str, Sequence[Progress | None]],
        usage: Mapping[str, Usage],
        now_s: float,
        boot_s: float,
    ) -> tuple[AnyEvent, ...]:
        """Add the reports of a pool, and return the resulting events.

        Parameters
        ----------
        machine : StateMachine
            Jobs and devices; only read.
        progress : mapping of str to sequence of Progress or None
            ``pool.progress(run)`` for each of the `watched` runs.
        usage : mapping of str to Usage
            ``pool.usage()``.
        now_s, boot_s : float
            The moment on the service's clock, and on the clock of ``progress`` and ``usage``.
        """
        tracks = self._tracks
        tracks.now_s = now_s
        measuring = machine.shares.present
        tracks.measured_on = measuring.gpu if measuring is not None else ""
        holding = [(job, job.run) for job in machine.holding.values() if job.run is not None]
        changed = tracks.changed(holding)
        ended = [*ended_profiles(tracks), *measurements(tracks, changed)]
        tracks.follow(holding, changed)
        for run in progress.keys() & tracks.runs.keys():
            tracks.runs[run].advance(progress[run], now_s - boot_s)
        for gpu in usage.keys() & tracks.devices.keys():
            tracks.use(gpu, usage[gpu], now_s - boot_s)
        broken = list(breaches(tracks))
        stops = {breach.newest.run.id: breach.stop(now_s) for breach in broken}
        return (
            *ended,
            *profiles(tracks),
            *measurements(tracks),
            *grown_profiles(tracks),
            *renewed_profiles(tracks),
            *stops.values(),
            *(event for breach in broken for event in breach.separated(tracks)),
        )

    def reading(self, run: str) -> RunReading:
        """Return the reading of a run at the last `observe`; empty if it is not watched."""
        tracks = self._tracks
        track = tracks.runs.get(run)
        if track is None:
            return NOTHING
        since_s = max(track.phase_s, tracks.now_s - tracks.options.window_s)
        rate, solo = rate_of(track.samples, since_s), tracks.solo_rate(track)
        belief = tracks.predicted(run)
        return RunReading(
            iterations=track.samples[-1].iterations if track.samples else None,
            total=track.total,
            rate=rate.per_s if rate else None,
            solo_rate=solo,
            slowdown=solo / rate.per_s if rate and solo else None,
            predicted=belief.slowdown if belief else None,
            predicted_by=belief.words if belief else "",
            memory_used_mib=track.memory_mib,
        )
