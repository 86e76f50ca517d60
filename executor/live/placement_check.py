"""The last look before a job is placed, whatever a policy was told: unknown is busy.

It shares nothing with the state that policies see, and adds to what the brain itself refuses
(``Brain.apply`` of ``Placed``). A start that it refuses is left out of the decision: the worst case
is an idle device, never one that is booked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dovetail.executor.live.brain import Brain, JobState, LiveJob
from dovetail.executor.live.jobs import JobSpec, Run, Seat
from dovetail.instances.instance import Cluster, Gpu

_LEAVING = frozenset({JobState.STOPPING, JobState.LOST})


@dataclass(frozen=True)
class PlacementCheck:
    """What must hold of every start.

    Attributes
    ----------
    brain : Brain
        Jobs and devices.
    cluster : Cluster
        The pool's devices, and the shares that may be used on them.
    sharing : callable
        Why two runs may never share a device; None = they may (``NodePool.sharing``).
    allowed : callable
        The shares that a job may have on a device model (``NodePool.allowed``).
    strays : mapping of str to str
        Devices that runs of no job may still hold, and which.
    """

    brain: Brain
    cluster: Cluster
    sharing: Callable[[Run, Run], str | None]
    allowed: Callable[[JobSpec, str], Collection[int]]
    strays: Mapping[str, str]

    def refusal(self, run: Run) -> str | None:
        """Return why a run may not start now, None where it may."""
        gpus = {gpu.id: gpu for node in self.cluster.nodes for gpu in node.devices}
        missing = [seat.gpu for seat in run.seats if seat.gpu not in gpus]
        if missing:
            return f"the pool has no device {missing[0]}"
        if len({gpus[seat.gpu].model for seat in run.seats}) > 1:
            return "its devices would be of several models"
        residents = self.brain.residents()
        told = (
            self._at(run, seat, gpus[seat.gpu], residents.get(seat.gpu, [])) for seat in run.seats
        )
        return next((why for why in told if why), self._named(run))

    def _named(self, run: Run) -> str | None:
        """Return why a run may not have its name: what is told of a stray is not told of it."""
        taken = run.id in self.strays.values()
        return f"{run.id} is another run until that has ended" if taken else None

    def _at(self, run: Run, seat: Seat, gpu: Gpu, residents: list[LiveJob]) -> str | None:
        """Return why a rank may not take its seat."""
        trouble = self.brain.devices[gpu.id].trouble
        if trouble:
            return f"{gpu.id}: {trouble}"
        if gpu.id in self.strays:
            return f"{self.strays[gpu.id]} may still be on {gpu.id}"
        if seat.share is not None and seat.share not in self.allowed(run.spec, gpu.model):
            return f"a share of {seat.share} % is not known to compute right on {gpu.id}"
        if len(residents) >= self.cluster.max_jobs_per_gpu:
            return f"{gpu.id} is full"
        for other in residents:
            if other.state in _LEAVING:
                return f"{other.id} may still be on {gpu.id}"
            if not (self.brain.may_share(other) and self.brain.may_share(self.brain.jobs[run.job])):
                return f"{run.job} and {other.id} are not both known well enough to share"
            if self.brain.are_apart(run.job, other.id):
                return f"{run.job} and {other.id} broke a gSLA on a device before"
        return self._beside(run, seat, gpu, residents)

    def _beside(self, run: Run, seat: Seat, gpu: Gpu, residents: list[LiveJob]) -> str | None:
        """Return why a rank may not join the residents of its device."""
        seats = [seat]
        for other in residents:
            assert other.run is not None
            apart = self.sharing(run, other.run)
            if apart:
                return f"{run.job} and {other.id} may not share: {apart}"
            seats += [taken for taken in other.run.seats if taken.gpu == gpu.id]
        if sum(taken.share or 0 for taken in seats) > self.cluster.share_sum:
            return f"the caps on {gpu.id} would sum to more than {self.cluster.share_sum} %"
        need_mib = self.cluster.reserve_mib + sum(
            (taken.memory_mib or 0) + self.cluster.per_process_mib for taken in seats
        )
        return f"the memory limits would exceed {gpu.id}" if need_mib > gpu.memory_mib else None
