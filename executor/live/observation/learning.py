"""What the service learns: from the journal to the repository, and from there to beliefs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.live.beliefs import Beliefs
from dovetail.executor.live.live import Live
from dovetail.executor.live.observation.fitting import FitProcess
from dovetail.executor.live.observation.recorder import Recorder
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError
from dovetail.predictors.fitted.model_file import load_model
from dovetail.predictors.fitted.online import Drifts, Online
from dovetail.predictors.fitted.trained import TrainedPredictor

LEAST_PAIRS: Final = 30
"""Least number of different pairs measured on a device model before a model is fitted.

``docs/internals/live-beliefs.md`` shows how good such fits are."""

LEAST_WORKLOADS: Final = 8
"""Least number of different workloads in these pairs."""

NEWS: Final = 1.2
"""Factor by which the number of pairs must grow before the next fit."""

_GIVEN: Final = "model that was given"


class Learner:
    """Records what was found in a repository, and keeps the beliefs up to date with all of it.

    Once there are enough measurements, a model is fitted on them; between two fits it is updated
    with each measurement. It is stored in a file, which the next service reads at its start. A
    model is fitted on measurements of the present sharing mode only.

    Parameters
    ----------
    live : Live
        What the parts of the service share; ``live.beliefs`` is kept up to date.
    repository : Repository
        The repository; its file may not exist yet.
    model : TrainedPredictor, optional
        A model given by the user (``--model``); if given, none is fitted.
    into : path, optional
        The file of the fitted model, with which the next learner begins; without it no model is
        fitted.
    kind : str
        The kind of model, as in ``predictors.fitted.training.fit``.
    """

    def __init__(
        self,
        live: Live,
        repository: Repository,
        model: TrainedPredictor | None = None,
        into: Path | None = None,
        kind: str = "auto",
    ) -> None:
        self._live = live
        self._repository = repository
        self._recorder = Recorder(repository, self._wake)
        self._into = into if model is None else None
        self._kind = kind
        self._sequence = 0
        self._profiles: list[SoloProfile] = []
        self._measurements: list[Measurement] = []
        self._fit: FitProcess | None = None
        self._fitted_on, self._fitted_in = 0, live.devices.cluster.sharing
        self._model, self._source = model, _GIVEN
        self._online: Online | None = None
        self._drifts = Drifts()
        self._fault = ""
        if self._into is not None and self._into.exists():
            self._take(self._into)
        self._told = self._sequence, self._model
        live.beliefs.of_workloads = self._beliefs()
        self.learn()

    @property
    def trouble(self) -> str:
        """Errors of the repository or a fit, and pairs that drift; empty if there are none."""
        troubles = [self._recorder.trouble, self._fault, *self._drifts.texts]
        return "; ".join(filter(None, troubles))

    @property
    def fitting(self) -> bool:
        """Whether a model is being fitted."""
        return self._fit is not None

    def close(self) -> None:
        """Wait a moment for a write that is under way, and end a fit."""
        self._recorder.close()
        if self._fit is not None:
            self._fit.close()
            self._fit = None

    def record(self) -> None:
        """Begin to write new profiles and measurements to the repository."""
        self._recorder.offer(self._live.machine.unrecorded)

    def recorded(self) -> list[AnyEvent]:
        """Learn from new records in the repository, and return the events for the journal."""
        live, sequence = self._live, self._recorder.recorded()
        if sequence is None and not self.fitting and "repository" not in live.troubles:
            return []
        self.learn()
        now_s = live.now_s
        known = live.beliefs.newly_known(now_s)
        if sequence is None:
            return known
        drifts = tuple(self._drifts.texts)
        return [events.Recorded(at_s=now_s, sequence=sequence, drifts=drifts), *known]

    def learn(self) -> None:
        """Read new records, and replace the beliefs if there is news."""
        try:
            self._read()
            self._collect()
            if self._online is not None:
                self._drifts.add(self._online.learn(self._data))
            self._begin_where_due()
        except DovetailError as error:
            self._live.troubles.report("repository", error)
            return
        self._live.troubles.clear("repository")
        known = self._sequence, self._model
        if known != self._told:
            self._told = known
            self._live.beliefs.of_workloads = self._beliefs()

    def _beliefs(self) -> Beliefs:
        """Return the beliefs from the records read so far."""
        if self._online is None:
            return Beliefs(self._data, self._model, self._source)
        later = f", {self._online.learnt} learnt since" if self._online.learnt else ""
        return Beliefs(self._data, self._online.predictor, self._source + later)

    @property
    def _data(self) -> DataSet:
        return DataSet(
            name=self._repository.path.stem,
            profiles=tuple(self._profiles),
            measurements=tuple(self._measurements),
        )

    def _read(self) -> None:
        if not self._repository.path.exists():
            return
        for found in self._repository.since(self._sequence):
            self._sequence = found.sequence
            if isinstance(found.record, SoloProfile):
                self._profiles.append(found.record)
            else:
                self._measurements.append(found.record)

    # Fits.

    def _collect(self) -> None:
        """Use the model of a fit that has ended."""
        if self._fit is None or self._into is None or not self._fit.ended:
            return
        fault, self._fit = self._fit.fault, None
        if fault:
            self._fault = f"no model was fitted: {fault}"
        else:
            self._take(self._into)

    def _take(self, path: Path) -> None:
        try:
            self._model = load_model(path)
        except DovetailError as error:
            self._fault = str(error)
            return
        self._fault = ""
        training = self._model.about.training
        self._fitted_on = training.measurements if training else 0
        self._fitted_in = self._model.mode
        self._source = f"model fitted on {self._fitted_on} measurements here"
        self._online = Online(self._model, self._fitted_on)
        self._drifts = Drifts()

    def _begin_where_due(self) -> None:
        if self._into is None or self._fit is not None:
            return
        mode = self._live.devices.cluster.sharing
        if mode != self._fitted_in:
            self._fitted_in, self._fitted_on = mode, 0
        measured = [found for found in self._measurements if found.mode == mode]
        pairs, before = self._pairs(measured), self._pairs(measured[: self._fitted_on])
        models = [one for one in self._live.devices.model_names if _is_enough(pairs, one)]
        if models and len(pairs) >= NEWS * len(before):
            self._fitted_on = len(measured)
            path = self._repository.path
            self._fit = FitProcess(self._kind, mode, path, self._into, models, self._wake)

    def _wake(self) -> None:
        """Wake the service's thread from any other."""
        self._live.requests.ring()

    def _pairs(self, measurements: Sequence[Measurement]) -> set[_Pair]:
        """Return the different pairs measured on the pool's device models."""
        return {
            (found.gpu_model, frozenset(found.workloads))
            for found in measurements
            if len(found.workloads) == 2 and found.gpu_model in self._live.devices.model_names
        }


_Pair = tuple[str, frozenset[str]]


def _is_enough(pairs: set[_Pair], gpu_model: str) -> bool:
    found = [names for model, names in pairs if model == gpu_model]
    workloads = {name for names in found for name in names}
    return len(found) >= LEAST_PAIRS and len(workloads) >= LEAST_WORKLOADS
