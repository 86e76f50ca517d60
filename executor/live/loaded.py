"""Which libraries runs have loaded, and whether these compute right under the runs' shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from dovetail.executor.live import events
from dovetail.executor.live.brain import Brain
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.events import AnyEvent
from dovetail.executor.live.jobs import Run
from dovetail.executor.live.pools.pool import NodePool


class LoadedLibraries:
    """Asks a pool, once a run, what it has loaded.

    Parameters
    ----------
    brain : Brain
        Is read only.
    pool : NodePool
        Where the runs are.
    devices : Devices
        Of the pool.
    """

    def __init__(self, brain: Brain, pool: NodePool, devices: Devices) -> None:
        self._brain, self._pool, self._devices = brain, pool, devices
        self._told: set[str] = set()

    def news(self, runs: Sequence[str], at_s: float) -> Iterator[AnyEvent]:
        """Yield which libraries runs have loaded, and the stops of those that compute wrong.

        A workload's jobs may change their library between one run and the next.
        """
        self._told &= set(runs)
        for name in runs:
            job = self._brain.jobs[name.rpartition(".")[0]]
            if job.run is None or name in self._told:
                continue
            library = self._pool.library(job.run)
            if not library:
                continue
            self._told.add(name)
            if library != self._brain.library(job.spec):
                uid, workload = job.spec.owner.uid, job.spec.workload
                yield events.LibrarySeen(at_s=at_s, uid=uid, workload=workload, library=library)
            yield from self._wrong_share(job.run, library, at_s)

    def _wrong_share(self, run: Run, library: str, at_s: float) -> Iterator[AnyEvent]:
        for seat in run.seats:
            model = self._devices.models.get(seat.gpu)
            if seat.share is None or model is None:
                continue
            if seat.share not in self._pool.allowed(library, model):
                reason = f"its library {library} is not known to compute right at {seat.share} %"
                then: Literal["wait", "fail"] = "wait" if run.spec.requeue else "fail"
                yield events.StopDecided(at_s=at_s, run=run.id, reason=reason, then=then)
                return
