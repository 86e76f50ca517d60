"""Synchronisation of the repository, the beliefs and the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.observation.learning import Learner
from dovetail.executor.live.observation.recorder import Recorder
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.live.troubles import Troubles
from dovetail.executor.system.clock import ServiceClock
from dovetail.instances.errors import DovetailError


class Knowledge:
    """Writes measurements to the repository, and updates policy view and journal from it.

    Parameters
    ----------
    machine, clock, devices, view, troubles
        Parts of the service.
    recorder : Recorder
        Writes to the repository.
    learner : Learner
        Reads the repository and fits models.
    learned : callable
        Called when the view has newer beliefs.
    """

    def __init__(
        self,
        machine: StateMachine,
        clock: ServiceClock,
        devices: Devices,
        view: PolicyView,
        troubles: Troubles,
        recorder: Recorder,
        learner: Learner,
        learned: Callable[[], None],
    ) -> None:
        self._machine, self._clock, self._devices, self._view = machine, clock, devices, view
        self._troubles, self._recorder, self._learner = troubles, recorder, learner
        self._learned = learned

    @property
    def trouble(self) -> str:
        """Errors of the repository or a fit, and pairs that drift; empty if there are none."""
        troubles = [self._recorder.trouble, self._learner.trouble, *self._learner.drifts]
        return "; ".join(filter(None, troubles))

    def close(self) -> None:
        """Wait a moment for a write that is under way, and end a fit."""
        self._recorder.close()
        self._learner.close()

    def record(self) -> None:
        """Begin to write new measurements to the repository."""
        self._recorder.offer(self._machine.unrecorded)

    def recorded(self) -> list[AnyEvent]:
        """Learn from new measurements in the repository, and return the events for the journal."""
        sequence = self._recorder.recorded()
        if sequence is None and not self._learner.fitting and "repository" not in self._troubles:
            return []
        self.learn()
        if sequence is None:
            return self.newly_known()
        at_s, drifts = self._clock.now_s(), tuple(self._learner.drifts)
        recorded = events.Recorded(at_s=at_s, sequence=sequence, drifts=drifts)
        return [recorded, *self.newly_known()]

    def learn(self) -> None:
        """Give the view newer beliefs if there are any."""
        try:
            beliefs = self._learner.news()
        except DovetailError as error:
            self._troubles.report("repository", error)
            return
        self._troubles.clear("repository")
        if beliefs is not None:
            self._view.learn(beliefs)
            self._learned()

    def newly_known(self) -> list[AnyEvent]:
        """Return an event for each workload of waiting jobs that now has a profile."""
        waiting = (
            job.spec
            for job in self._machine.queued.values()
            if job.state is JobState.SUBMITTED and not job.alone_only
        )
        return self.known({spec.key: spec for spec in waiting}.values())

    def known(self, specs: Iterable[JobSpec]) -> list[AnyEvent]:
        """Return an event for each workload with a profile that the journal does not know yet."""
        at_s, models = self._clock.now_s(), self._devices.offered_models
        keys = {spec.key for spec in specs if any(self._view.alone(spec, m) for m in models)}
        new = sorted(keys - self._machine.profiled)
        return [events.WorkloadKnown(at_s=at_s, uid=uid, workload=name) for uid, name in new]
