"""A small form and a small bound, real ones, with which fitted predictors can be made by hand."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.instances.plugins import Plugin
from dovetail.predictors.features import Features
from dovetail.predictors.fitted.fits import FittedForm, ModelFit
from dovetail.predictors.fitted.trained import TrainedPredictor


@dataclass(frozen=True)
class Linear:
    """base + own state . weights[0] + other state . weights[1]."""

    weights: np.ndarray
    base: float = 1.0
    kind: ClassVar[str] = "linear"

    def predict(self, states, own, other):
        mine, theirs = (states * self.weights[0]).sum(1), (states * self.weights[1]).sum(1)
        return self.base + mine[own] + theirs[other]

    def arrays(self):
        return {"weights": self.weights, "base": np.array(self.base)}

    @classmethod
    def from_arrays(cls, arrays, features):
        if set(arrays) != {"weights", "base"}:
            raise InputError("must be weights and base")
        for name, shape in (("weights", (2, features)), ("base", ())):
            found = arrays[name]
            if found.shape != shape or found.dtype != np.float64:
                raise InputError(f"must have shape {shape}, got {found.shape}", name)
            if not np.isfinite(found).all():
                raise InputError("must be finite", name)
        return cls(arrays["weights"], float(arrays["base"]))


@dataclass(frozen=True)
class Margin:
    """Adds ``step * workers * (1 + standing) * confidence``."""

    step: float = 0.1

    def upper(self, slowdown, standing, confidence, workers=1, error=None):
        return slowdown + self.step * workers * (1 + standing) * confidence

    def at_new_split(self, confidence):
        return 2.0

    def largest_confidence(self, standing, workers=1):
        return 1.0

    def arrays(self):
        return {"step": np.array([self.step])}

    @classmethod
    def from_arrays(cls, arrays):
        if set(arrays) != {"step"} or arrays["step"].shape != (1,):
            raise InputError("must be one number", "step")
        return cls(float(arrays["step"][0]))


class Spy:
    """Counts the rows that a form is asked for."""

    kind = "linear"

    def __init__(self, form):
        self.form = form
        self.rows = 0

    def predict(self, states, own, other):
        self.rows += len(own)
        return self.form.predict(states, own, other)


def register(monkeypatch):
    """Make the form and the bound known to model files."""
    plugin = Plugin("form", "linear", "some-package", f"{__name__}:Linear")
    monkeypatch.setattr("dovetail.predictors.forms.plugins", {"form": {"linear": plugin}}.get)
    monkeypatch.setattr("dovetail.predictors.fitted.model_file.Calibration", Margin)


def linear(*weights, base=1.0):
    """Return the form of (own, other) weights, one pair a feature."""
    return Linear(np.array(weights, dtype=np.float64).T.reshape(2, -1), base)


def member(form, *names, known=(), model="linear"):
    return FittedForm(model, Features(names, tuple(known)), form)


def fit(one, measured=("a", "b"), splits=((0, 0),), limits=(0.5, 4.0), **more):
    return ModelFit(one, tuple(measured), tuple(splits), limits, **more)


def busy(sm, memory=1000.0, **more):
    return Workload(memory_mib=memory, metrics=Metrics(sm_active=sm), **more)


def simple(bound=None, power=None, **more):
    """slowdown = 1 + 0.1 own + other activity, on V100."""
    one = fit(member(linear((0.1, 1.0)), "sm_active"), bound=bound, power=power, **more)
    return TrainedPredictor({"V100": one}, confidence=0.9)
