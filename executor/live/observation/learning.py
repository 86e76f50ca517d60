"""What the service learns: from the journal to the repository, and from there to beliefs.

The journal is the outbox: records in ``StateMachine.unrecorded`` are appended to the repository,
and only then is ``Recorded`` written to the journal. If the service is killed in between, the next
service finds the records in the repository and does not append them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent, Measured, Profiled
from dovetail.executor.live.beliefs import Beliefs
from dovetail.executor.live.live import Live
from dovetail.executor.live.observation.fitting import FitProcess
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError
from dovetail.predictors.fitted.model_file import load_model
from dovetail.predictors.fitted.online import Drifts, Online
from dovetail.predictors.fitted.trained import TrainedPredictor

_Record = SoloProfile | Measurement
_MOST: Final = 1000

LEAVE_S: Final = 5.0
"""Seconds to wait for an append at the end; the next service appends missing records."""


class Recorder:
    """Appends records in a separate thread: other processes may lock a repository for a minute.

    Parameters
    ----------
    repository : Repository
        The repository.
    wake : callable
        Called from that thread when an append has succeeded or failed.
    rest_s : float
        Pause in seconds after an append that failed.

    Attributes
    ----------
    trouble : str
        Why the last append failed, empty if it did not; the next offer tries again.
    """

    def __init__(
        self,
        repository: Repository,
        wake: Callable[[], None] = lambda: None,
        rest_s: float = 2.0,
    ) -> None:
        self.trouble = ""
        self._repository = repository
        self._wake = wake
        self._rest_s = rest_s
        self._closed = threading.Event()
        self._under_way: Future[int | None] | None = None
        self._last = 0
        self._caught_up = False

    def offer(self, unrecorded: Mapping[int, Profiled | Measured]) -> None:
        """Begin to append new records, unless an append is under way; do not wait."""
        if self._under_way is not None:
            return
        new = sorted(sequence for sequence in unrecorded if sequence > self._last)[:_MOST]
        if new:
            chosen = {sequence: unrecorded[sequence] for sequence in new}
            done = self._under_way = Future()
            done.add_done_callback(lambda _: self._wake())
            # A daemon thread, as another process may lock the repository for a minute at the end.
            threading.Thread(
                target=self._run, args=(done, chosen), name="recorder", daemon=True
            ).start()

    def recorded(self) -> int | None:
        """Return once per append the number up to which all is in the repository, else None."""
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        sequence = done.result()
        if sequence is not None:
            self._last = sequence
        return sequence

    def close(self) -> None:
        """Wait for an append that is under way, at most ``LEAVE_S``."""
        self._closed.set()
        if self._under_way is not None:
            wait([self._under_way], LEAVE_S)

    def _run(self, done: Future[int | None], events: Mapping[int, Profiled | Measured]) -> None:
        """Append; the result is the last event's number, or None if the append failed."""
        try:
            self._append(events)
        except DovetailError as error:
            self.trouble = str(error)
            self._closed.wait(self._rest_s)
            done.set_result(None)
        except Exception as error:  # raised again by ``recorded``
            done.set_exception(error)
        else:
            self.trouble = ""
            done.set_result(max(events))

    def _append(self, events: Mapping[int, Profiled | Measured]) -> None:
        records = [_record(event) for event in events.values()]
        # An append that reported a failure may still have been made: look again after it.
        caught_up, self._caught_up = self._caught_up, False
        if not caught_up:
            records = self._absent(records)
        self._repository.append(
            [record for record in records if isinstance(record, SoloProfile)],
            [record for record in records if isinstance(record, Measurement)],
        )
        self._caught_up = True

    def _absent(self, records: list[_Record]) -> list[_Record]:
        """Return the records that are not in the repository yet."""
        self._repository.append()  # makes the file
        there = {_text(found.record) for found in self._repository.since(0)}
        return [record for record in records if _text(record) not in there]


def _record(event: Profiled | Measured) -> _Record:
    return event.profile if isinstance(event, Profiled) else event.measurement


def _text(record: _Record) -> str:
    """Return a text that identifies a record, since it includes the time of the record."""
    return record.model_dump_json()


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
