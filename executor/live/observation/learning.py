"""Beliefs from a growing repository, and a model fitted on it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from dovetail.executor.live.beliefs import Beliefs
from dovetail.instances._children import module_command
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError
from dovetail.instances.slowdowns.entry import SharingMode
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
    """Reads a repository, and fits a model on it once there are enough measurements.

    Between two fits the model is updated with each measurement.

    The fit runs in a separate process at low priority, so that it costs the service neither time
    nor memory. The model is stored in a file, which the next service reads at its start.

    Parameters
    ----------
    repository : Repository
        The repository; its file may not exist yet.
    gpu_models : collection of str
        The pool's device models, read before each fit.
    model : TrainedPredictor, optional
        A model given by the user (``--model``); if given, none is fitted.
    into : path, optional
        The file of the fitted model, with which the next learner begins; without it no model is
        fitted.
    wake : callable
        Called from another thread when a fit has ended.
    kind : str
        The kind of model, as in ``predictors.training.fit``.
    sharing : callable
        Returns how runs share a device of the pool now; a model is fitted on measurements of this
        mode only.

    Attributes
    ----------
    trouble : str
        Why there is no fitted model, or no newer one; empty if nothing went wrong.
    """

    def __init__(
        self,
        repository: Repository,
        gpu_models: Collection[str],
        model: TrainedPredictor | None = None,
        into: Path | None = None,
        wake: Callable[[], None] = lambda: None,
        kind: str = "auto",
        sharing: Callable[[], SharingMode] = lambda: "mps",
    ) -> None:
        self.trouble = ""
        self._repository = repository
        self._gpu_models = gpu_models
        self._into = into if model is None else None
        self._wake = wake
        self._kind = kind
        self._sharing = sharing
        self._sequence = 0
        self._profiles: list[SoloProfile] = []
        self._measurements: list[Measurement] = []
        self._fit: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self._said: str | None = None
        self._fitted_on, self._fitted_in = 0, self._sharing()
        self._model, self._source = model, _GIVEN
        self._online: Online | None = None
        self._drifts = Drifts()
        if self._into is not None and self._into.exists():
            self._take(self._into)
        self._told = self._sequence, self._model

    @property
    def drifts(self) -> list[str]:
        """One line for each pair whose recent measurements differ from the believed slowdowns."""
        return self._drifts.texts

    def news(self) -> Beliefs | None:
        """Read new records, and return `beliefs` if they have changed, else None.

        Raises
        ------
        InputError
            If the repository cannot be read.
        """
        self._read()
        self._collect()
        self._learn()
        self._begin_where_due()
        known = self._sequence, self._model
        if known == self._told:
            return None
        self._told = known
        return self.beliefs

    @property
    def beliefs(self) -> Beliefs:
        """The beliefs from the records read so far; before the first `news` there are none."""
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

    @property
    def fitting(self) -> bool:
        """Whether a model is being fitted."""
        return self._fit is not None

    def close(self) -> None:
        """End a fit that is under way."""
        if self._fit is not None:
            self._fit.kill()
            self._reader.join()
            self._fit = None

    def _read(self) -> None:
        if not self._repository.path.exists():
            return
        for found in self._repository.since(self._sequence):
            self._sequence = found.sequence
            if isinstance(found.record, SoloProfile):
                self._profiles.append(found.record)
            else:
                self._measurements.append(found.record)

    def _learn(self) -> None:
        """Update the fitted model with later measurements, without a new fit."""
        if self._online is not None:
            self._drifts.add(self._online.learn(self._data))

    def _collect(self) -> None:
        """Use the model of a fit that has ended."""
        if self._fit is None or self._said is None:
            return
        said, status, self._fit = self._said, self._fit.returncode, None
        if status == 0 and self._into is not None:
            self._take(self._into)
        else:
            lines = said.strip().splitlines() or [f"it ended with status {status}"]
            self.trouble = f"no model was fitted: {lines[-1]}"

    def _take(self, path: Path) -> None:
        try:
            self._model = load_model(path)
        except DovetailError as error:
            self.trouble = str(error)
            return
        self.trouble = ""
        training = self._model.about.training
        self._fitted_on = training.measurements if training else 0
        self._fitted_in = self._model.mode
        self._source = f"model fitted on {self._fitted_on} measurements here"
        self._online = Online(self._model, self._fitted_on)
        self._drifts = Drifts()

    def _begin_where_due(self) -> None:
        if self._into is None or self._fit is not None:
            return
        mode = self._sharing()
        if mode != self._fitted_in:
            self._fitted_in, self._fitted_on = mode, 0
        measured = [found for found in self._measurements if found.mode == mode]
        pairs = self._pairs(measured)
        enough = [model for model in dict.fromkeys(self._gpu_models) if _is_enough(pairs, model)]
        before = self._pairs(measured[: self._fitted_on])
        if not enough or len(pairs) < NEWS * len(before):
            return
        self._fitted_on = len(measured)
        program = module_command("dovetail.executor.live.observation.fitting")
        self._fit = subprocess.Popen(
            [*program, self._kind, mode, self._repository.path, self._into, *enough],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said = None
        self._reader = threading.Thread(target=self._read_out, args=(self._fit,), daemon=True)
        self._reader.start()

    def _read_out(self, fit: subprocess.Popen[str]) -> None:
        """Read the output of a fit until it ends: a full pipe would block it."""
        _, self._said = fit.communicate()
        self._wake()

    def _pairs(self, measurements: Sequence[Measurement]) -> set[_Pair]:
        """Return the different pairs measured on the pool's device models."""
        models = {*self._gpu_models}
        return {
            (found.gpu_model, frozenset(found.workloads))
            for found in measurements
            if len(found.workloads) == 2 and found.gpu_model in models
        }


_Pair = tuple[str, frozenset[str]]


def _is_enough(pairs: set[_Pair], gpu_model: str) -> bool:
    found = [names for model, names in pairs if model == gpu_model]
    workloads = {name for names in found for name in names}
    return len(found) >= LEAST_PAIRS and len(workloads) >= LEAST_WORKLOADS
