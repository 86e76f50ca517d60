"""Runs left by an earlier service: found again, lost, or without a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.commands import Command, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import HOLDING, QUEUED, UNDER_WAY

TRACE_S: Final = 60.0
"""Seconds within which a pool must report an expected run after the start."""

_ENDS: Final = frozenset({"rank_ended", "rank_gone", "rank_refused"})


class LeftBehind:
    """Keeps track of runs left by an earlier service until all of them are accounted for.

    A *stray* is a run without a job. No job starts on its devices until it has ended.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    """

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._unseen: set[tuple[str, int]] = set()
        self._lost_s = math.inf
        # The runs, and their ranks that may still run.
        self._strays: dict[str, tuple[Run, set[int]]] = {}

    @property
    def lost_s(self) -> float:
        """When ranks that were not reported become lost; infinity if all were reported."""
        return self._lost_s if self._unseen else math.inf

    @property
    def held(self) -> Mapping[str, str]:
        """The devices of strays, with the id of the run."""
        return {seat.gpu: run.id for run, _ in self._strays.values() for seat in run.seats}

    def adopted(self, beyond: Iterable[Run], at_s: float) -> list[AnyEvent]:
        """Return starts that the journal has lost: of unknown runs that fit their jobs."""
        return [
            events.Placed(
                at_s=at_s,
                run=run,
                profiling=run.spec.key not in self._machine.profiled,
            )
            for run in beyond
            if (job := self._machine.jobs.get(run.job)) is not None
            and job.state in QUEUED
            and job.spec == run.spec
            and run.id == f"{job.id}.{job.runs + 1}"
        ]

    def await_ranks(self, runs: Sequence[str], at_s: float) -> None:
        """Expect the pool to report every rank of these runs, within `TRACE_S`."""
        self._lost_s = at_s + TRACE_S
        self._unseen = {
            (job.run.id, rank)
            for name in runs
            if (job := self._machine.jobs[name]).run is not None and job.state in UNDER_WAY
            for rank in range(len(job.ranks))
        }

    def end_strays(self, beyond: Iterable[Run]) -> list[Command]:
        """Return commands that stop strays, and that release runs of ended jobs."""
        found: list[Command] = []
        for run in beyond:
            job = self._machine.jobs.get(run.job)
            if job is not None and job.run is not None and job.run.id == run.id:
                found += [] if job.state in HOLDING else [Release(run.id)]
            else:
                self._strays[run.id] = run, set(range(len(run.seats)))
                found.append(StopRun(run.id, run.spec.grace_s))
        return found

    def sort(self, reported: Iterable[AnyEvent]) -> tuple[list[AnyEvent], list[Command]]:
        """Return the events of jobs, and the releases of strays that have ended."""
        ours: list[AnyEvent] = []
        over: list[Command] = []
        for event in reported:
            run, rank = getattr(event, "run", ""), getattr(event, "rank", -1)
            self._unseen.discard((run, rank))
            if run not in self._strays:
                ours.append(event)
            elif event.kind in _ENDS:
                _, left = self._strays[run]
                left.discard(rank)
                if not left:
                    del self._strays[run]
                    over.append(Release(run))
        return ours, over

    def lost(self, at_s: float) -> list[AnyEvent]:
        """Return the loss events of ranks that the pool has not reported in time."""
        if at_s < self.lost_s:
            return []
        unseen, self._unseen = sorted(self._unseen), set()
        return [
            events.RankLost(at_s=at_s, run=run, rank=rank, reason="the pool has no trace of it")
            for run, rank in unseen
            if (job := self._machine.jobs[run.rpartition(".")[0]]).state in UNDER_WAY
            and job.run is not None
            and job.run.id == run
        ]
