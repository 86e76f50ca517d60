"""Built-in objectives by name, and users' own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.completion import Completion
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.instances.errors import UnsupportedError, require_call
from dovetail.instances.objectives import ObjectiveName

Objective: TypeAlias = ObjectiveName | Callable[[Round], JobValues]
"""The name of an objective, or a subclass of ``JobValues`` (or a function from a round to one)."""


def objective_name(objective: Objective) -> str:
    """Return the name of an objective in a plan."""
    if not callable(objective):
        return objective
    return f"python:{objective.__module__}.{getattr(objective, '__qualname__', '')}"


def job_values(compiled: Round, objective: Objective) -> JobValues:
    """Return the gains of the jobs of a round under any objective.

    Raises
    ------
    InputError
        When the instance lacks a field that the objective needs.
    UnsupportedError
        When a gain of a user's objective is not finite or increases with the slowdown, when the
        class or its method ``gain`` takes other arguments, or when groups have a value though
        ``grouped`` is False.
    """
    if objective == "completion":
        return Completion(compiled)
    if not callable(objective):
        return JobValues(compiled, objective)
    name = objective_name(objective)
    require_call(objective, f"{name} must take a round as its one argument", compiled)
    values = objective(compiled)
    if not isinstance(values, JobValues):
        kind = type(values).__name__
        raise UnsupportedError(f"objective must be a subclass of JobValues, got {kind}")
    values.name = name
    rule = f"{name}.gain must take the arguments job, slowdown and model"
    require_call(values.gain, rule, None, None, None)
    _require_falling(values, compiled)
    if type(values).value is not JobValues.value and not values.grouped:
        raise UnsupportedError(f"{name}: grouped must be True if groups have a value")
    return values


_TRIED: Final = (1.0, 1.25, 2.0, 8.0)
"""Slowdowns at which the gains of a user's objective are checked."""


def _require_falling(values: JobValues, compiled: Round) -> None:
    """Refuse gains that would silently make bounds wrong."""
    jobs = np.arange(len(compiled))
    for model in compiled.models:
        gains = [values.gain(jobs, np.full(len(jobs), s), model) for s in _TRIED]
        if not all(_is_finite_for(jobs, gain) for gain in gains):
            rule = "gain must return an array with a finite number for each job"
            raise UnsupportedError(f"{values.name}: {rule}")
        if any((after > before).any() for before, after in pairwise(gains)):
            raise UnsupportedError(f"{values.name}: gain must not rise with the slowdown")


def _is_finite_for(jobs: Ints, gain: object) -> bool:
    return (
        isinstance(gain, np.ndarray)
        and gain.shape == jobs.shape
        and gain.dtype.kind in "biuf"
        and bool(np.isfinite(gain).all())
    )
