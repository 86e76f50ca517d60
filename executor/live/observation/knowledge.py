"""Synchronisation of the repository, the beliefs and the journal."""

from __future__ import annotations

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.live.live import Live
from dovetail.executor.live.observation.learning import Learner
from dovetail.executor.live.observation.recorder import Recorder
from dovetail.instances.errors import DovetailError


class Knowledge:
    """Writes measurements to the repository, and updates beliefs and journal from it.

    Parameters
    ----------
    live : Live
        What the parts of the service share; its beliefs are kept up to date.
    recorder : Recorder
        Writes to the repository.
    learner : Learner
        Reads the repository and fits models.
    """

    def __init__(self, live: Live, recorder: Recorder, learner: Learner) -> None:
        self._live, self._recorder, self._learner = live, recorder, learner
        live.beliefs.of_workloads = learner.beliefs
        self.learn()

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
        self._recorder.offer(self._live.machine.unrecorded)

    def recorded(self) -> list[AnyEvent]:
        """Learn from new measurements in the repository, and return the events for the journal."""
        sequence = self._recorder.recorded()
        if (
            sequence is None
            and not self._learner.fitting
            and "repository" not in self._live.troubles
        ):
            return []
        self.learn()
        now_s = self._live.now_s
        if sequence is None:
            return self._live.beliefs.newly_known(now_s)
        drifts = tuple(self._learner.drifts)
        recorded = events.Recorded(at_s=now_s, sequence=sequence, drifts=drifts)
        return [recorded, *self._live.beliefs.newly_known(now_s)]

    def learn(self) -> None:
        """Use newer beliefs if there are any."""
        try:
            beliefs = self._learner.news()
        except DovetailError as error:
            self._live.troubles.report("repository", error)
            return
        self._live.troubles.clear("repository")
        if beliefs is not None:
            self._live.beliefs.of_workloads = beliefs
