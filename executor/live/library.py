"""What is known of workloads, as who watches runs asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.live.policy_view import PolicyView
from dovetail.executor.live.sharing_classes import workload_name
from dovetail.instances.datasets import DataSet, SoloProfile

_PAIR: Final = 2


class Library:
    """What a policy view believes, as the watch on runs asks for it (a ``watch.Knowledge``).

    Parameters
    ----------
    view : PolicyView
        Its beliefs are read, whichever they are by then.
    """

    def __init__(self, view: PolicyView) -> None:
        self._view = view
        self._read: DataSet | None = None
        self._profiles: dict[tuple[str, str, int], SoloProfile] = {}

    def alone(self, spec: JobSpec, gpu_model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload alone and uncapped, with its workers."""
        data = self._view.beliefs.data
        if data is not self._read:
            self._read, self._profiles = data, _uncapped(data)
        return self._profiles.get((workload_name(spec), gpu_model, spec.workers))

    def predicted(self, runs: Sequence[Run], gpu: str) -> tuple[float, ...]:
        """Return the slowdown believed of each run beside the others there; empty if unknown."""
        if len(runs) != _PAIR:
            return ()
        found = self._view.believed(runs[0].job, runs[1].job, gpu)
        return () if found is None else (found[0].slowdown, found[1].slowdown)

    def upper(self, machine: StateMachine, run: str) -> float | None:
        """Return the bound on the slowdown of a run beside those who share its devices now.

        None where it runs alone, or where nothing is believed of it beside one of them.
        """
        name, residents = run.rpartition(".")[0], machine.residents()
        seats = machine.jobs[name].run
        found = [
            self._view.believed(name, other.id, seat.gpu)
            for seat in (seats.seats if seats is not None else ())
            for other in residents[seat.gpu]
            if other.id != name
        ]
        bounds = [pair[0].upper for pair in found if pair and not math.isnan(pair[0].upper)]
        return max(bounds) if bounds and len(bounds) == len(found) else None


def _uncapped(data: DataSet) -> dict[tuple[str, str, int], SoloProfile]:
    """Return the newest profile of each workload, model and number of workers with a rate."""
    return {
        (key.workload, key.gpu_model, key.workers): profile
        for key, profile in data.newest.items()
        if key.share is None and profile.throughput is not None
    }
