"""The last look before a job is placed, whatever a policy was told: unknown is busy.

It shares nothing with the state that policies see. A start that it refuses is left out of the
decision: the worst case is an idle device, never one that is booked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.executor.live.brain import QUEUED, Brain, JobState, LiveJob
from dovetail.executor.live.jobs import Run, Seat
from dovetail.instances.instance import Cluster, Gpu

_LEAVING = frozenset({JobState.STOPPING, JobState.LOST})


@dataclass(frozen=True)
class Gate:
    """What must hold of every start.

    Attributes
    ----------
    brain : Brain
        Jobs and devices.
    cluster : Cluster
        The pool's devices, and the shares that may be used on them.
    sharing : callable
        Why two runs may never share a device; None = they may (``NodePool.sharing``).
    strays : mapping of str to str
        Devices that runs of no job may still hold, and which.
    """

    brain: Brain
    cluster: Cluster
    sharing: Callable[[Run, Run], str | None]
    strays: Mapping[str, str]

    def refusal(self, run: Run) -> str | None:
        """Return why a run may not start now, None where it may."""
        job = self.brain.jobs[run.job]
        if job.state not in QUEUED:
            return f"{job.id} is {job.state}"
        gpus = {gpu.id: gpu for node in self.cluster.nodes for gpu in node.devices}
        missing = [seat.gpu for seat in run.seats if seat.gpu not in gpus]
        if missing:
            return f"the pool has no device {missing[0]}"
        if len({gpus[seat.gpu].model for seat in run.seats}) > 1:
            return f"{job.id} would run on devices of several models"
        residents = self.brain.residents()
        told = (
            self._at(job, run, seat, gpus[seat.gpu], residents.get(seat.gpu, []))
            for seat in run.seats
        )
        return next((why for why in told if why), None)

    def _at(
        self, job: LiveJob, run: Run, seat: Seat, gpu: Gpu, residents: list[LiveJob]
    ) -> str | None:
        """Return why a rank may not take its seat."""
        trouble = device_trouble(self.brain, gpu.id)
        if trouble:
            return f"{gpu.id} is {trouble}"
        if gpu.id in self.strays:
            return f"{self.strays[gpu.id]} may still be on {gpu.id}"
        if seat.share is not None and seat.share not in self.cluster.shares:
            return f"{seat.share} % is no share of {gpu.id}"
        if not residents:
            return None
        if len(residents) >= self.cluster.max_jobs_per_gpu:
            return f"{gpu.id} is full"
        for one in (job, *residents):
            if needs_alone(self.brain, one):
                return f"{one.id} must have {gpu.id} alone"
        leaving = next((other.id for other in residents if other.state in _LEAVING), None)
        if leaving:
            return f"{leaving} may still be on {gpu.id}"
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
        need = self.cluster.reserve_mib + sum(
            (taken.memory_mib or 0) + self.cluster.per_process_mib for taken in seats
        )
        return f"the memory limits on {gpu.id} exceed it" if need > gpu.memory_mib else None


def device_trouble(brain: Brain, gpu: str) -> str:
    """Return why a device takes no new jobs, empty where it does."""
    device = brain.devices.get(gpu)
    if device is None:
        return "not of the pool"
    if device.sick:
        return f"sick: {device.sick}"
    return f"drained by {device.drained}" if device.drained else ""


def needs_alone(brain: Brain, job: LiveJob) -> bool:
    """Tell whether nobody may share a device with a job: it is unknown, or being measured."""
    known = (job.spec.owner.uid, job.spec.workload) in brain.profiled
    return not known or bool(job.alone_only) or job.state is JobState.PROFILING
