"""Samples of the runs and devices of a pool."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.observation.findings import power_w
from dovetail.executor.live.observation.readings import LastReading, RunReading
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.observation.watch import RunWatch, watched
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.pools.pool import NodePool, Usage
from dovetail.instances._record import IDLE


class Observer:
    """Samples progress and usage for the watch; used by one thread.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    pool : NodePool
        The pool that runs the jobs.
    devices : Devices
        Devices of the pool.
    view : PolicyView
        Updated with the progress of jobs.
    options : WatchOptions
        How long runs are watched before conclusions are drawn.
    every_s : float
        Seconds between two samples.

    Attributes
    ----------
    usage : mapping of str to Usage
        The last usage of each device.
    power_w : mapping of str to float
        Power of each device for which it is known.
    last : LastReading
        Readings of the present runs, and the last readings of runs that are over.
    """

    def __init__(
        self,
        machine: StateMachine,
        pool: NodePool,
        devices: Devices,
        view: PolicyView,
        options: WatchOptions,
        every_s: float,
    ) -> None:
        self._machine, self._pool, self._devices, self._view = machine, pool, devices, view
        self._watch = RunWatch(devices.models, view, options)
        self._every_s = every_s
        self._sampled_s = -math.inf
        self._library_seen: set[str] = set()
        self.usage: Mapping[str, Usage] = {}
        self.power_w: Mapping[str, float] = {}
        self.last = LastReading()

    @property
    def next_s(self) -> float:
        """When the next sample is due; infinity while nothing runs.

        One more sample is taken after the last run has ended, to draw conclusions from it.
        """
        runs = watched(self._machine) or self.last.now
        return self._sampled_s + self._every_s if runs else math.inf

    def note_ends(self, happened: Iterable[AnyEvent]) -> None:
        """Note the last progress of runs that have ended, before they are released."""
        for run in {event.run for event in happened if isinstance(event, events.RankEnded)}:
            self.last.note_end(run, self._pool.progress(run))

    def sample(self, now_s: float, boot_s: float) -> list[AnyEvent]:
        """Take a sample and return the resulting events.

        Parameters
        ----------
        now_s, boot_s : float
            The moment on the service's clock, and on the clock of the pool's figures.
        """
        self._sampled_s = now_s
        runs = watched(self._machine)
        progress = {run: self._pool.progress(run) for run in runs}
        before, self.usage = self.usage, self._pool.usage()
        metered = {
            gpu: power_w([before[gpu], now]) for gpu, now in self.usage.items() if gpu in before
        }
        self.power_w = {gpu: power for gpu, power in metered.items() if power is not None}
        found = self._watch.observe(self._machine, progress, self.usage, now_s, boot_s)
        loaded = list(self._libraries(runs, now_s))
        self.last.now = {run: self._reading(run, run.rpartition(".")[0]) for run in runs}
        shared = self._sharing()
        for run, reading in self.last.now.items():
            self.last.note(run, reading, run in shared)
            if reading.iterations is not None:
                job = run.rpartition(".")[0]
                self._view.note_progress(job, reading.iterations, reading.total, now_s)
        return [*found, *loaded]

    def _reading(self, name: str, job: str) -> RunReading:
        run = self._machine.jobs[job].run
        isolated = [
            self.usage[seat.gpu]
            for seat in (run.seats if run is not None else ())
            if run is not None and run.isolated_on(seat) and seat.gpu in self.usage
        ]
        return self._watch.reading(name)._replace(
            upper=self._view.upper(job),
            launches=sum((Counter(used.launches) for used in isolated), Counter()),
            escapes={kernel: why for used in isolated for kernel, why in used.escapes.items()},
        )

    def _sharing(self) -> set[str]:
        return {
            job.run.id
            for jobs in self._machine.residents().values()
            for job in jobs
            if job.run is not None and len(jobs) > 1
        }

    def _libraries(self, runs: Sequence[str], at_s: float) -> Iterator[AnyEvent]:
        """Yield the libraries that runs loaded, and stops of runs whose share is wrong for them.

        The library of a workload may change from one run to the next.
        """
        self._library_seen &= set(runs)
        for name in runs:
            job = self._machine.jobs[name.rpartition(".")[0]]
            if job.run is None or name in self._library_seen:
                continue
            library = self._pool.library(job.run)
            if not library:
                continue
            self._library_seen.add(name)
            python = self._python_of(job.run)
            new = python and self._machine.shares.pythons.get(library) != python
            if library != self._machine.library(job.spec) or new:
                uid, workload = job.spec.owner.uid, job.spec.workload
                seen = {"uid": uid, "workload": workload, "library": library, "python": python}
                yield events.LibrarySeen.model_validate({"at_s": at_s, **seen})
            yield from self._wrong_share(job.run, library, at_s)

    def _python_of(self, run: Run) -> str:
        """Return a Python that has the library of a run and may be run by this service.

        The service executes no files of other users.
        """
        gate = self._pool.gate
        return gate.python_of(run) if gate and run.spec.owner.uid == os.geteuid() else ""

    def _wrong_share(self, run: Run, library: str, at_s: float) -> Iterator[AnyEvent]:
        for seat in run.seats:
            model = self._devices.models.get(seat.gpu)
            if seat.share in (None, IDLE) or model is None:
                continue
            if seat.share not in self._pool.allowed(library, model):
                reason = f"its library {library} is not known to compute right at {seat.share} %"
                then: Literal["wait", "fail"] = "wait" if run.spec.requeue else "fail"
                yield events.StopDecided(at_s=at_s, run=run.id, reason=reason, then=then)
                return
