"""Built-in objectives by name, and users' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias, get_args

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.groups import Kinds
from dovetail.formulations.completion import Completion
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import (
    EnergyValues,
    FewestValues,
    JctValues,
    JobValues,
    RuleCategory,
    SensitivityValues,
    SlowdownValues,
    ThroughputValues,
    own_name,
)
from dovetail.instances.errors import UnsupportedError, require_call
from dovetail.instances.objectives import ObjectiveName

Objective: TypeAlias = ObjectiveName | Callable[[Round], JobValues]
"""The name of an objective, or a subclass of ``JobValues`` (or a function from a round to one)."""

BUILT_IN: Final[Mapping[ObjectiveName, type[JobValues]]] = {
    "throughput": ThroughputValues,
    "slowdown": SlowdownValues,
    "sensitivity": SensitivityValues,
    "jct": JctValues,
    "energy": EnergyValues,
    "completion": Completion,
    "fewest": FewestValues,
}
"""The built-in objectives by name."""


def objective_name(objective: Objective) -> str:
    """Return the name of an objective in a plan."""
    return own_name(objective) if callable(objective) else objective


def job_values(compiled: Round, objective: Objective) -> JobValues:
    """Return the gains of the jobs of a round under any objective.

    Raises
    ------
    InputError
        When the instance lacks a field that the objective needs.
    UnsupportedError
        When a gain of a user's objective is not finite or increases with the slowdown, when the
        class or its method ``gain`` takes other arguments, or when its class attributes say what
        its gains and values are not.
    """
    if not callable(objective):
        return BUILT_IN[objective](compiled)
    name = own_name(objective)
    require_call(objective, f"{name} must take a round as its one argument", compiled)
    values = objective(compiled)
    if not isinstance(values, JobValues):
        kind = type(values).__name__
        raise UnsupportedError(f"objective must be a subclass of JobValues, got {kind}")
    values.name = name
    rule = f"{name}.gain must take the arguments job, slowdown and model"
    require_call(values.gain, rule, None, None, None)
    for rule in _broken(values, compiled):
        raise UnsupportedError(f"{name}: {rule}")
    return values


def _broken(values: JobValues, compiled: Round) -> Iterator[str]:
    """Find what would silently make bounds wrong."""
    if type(values).value is not JobValues.value and not values.grouped:
        yield "grouped must be True if groups have a value"
    if values.ratio and not values.two_stage:
        yield "two_stage must be True if ratio is"
    if values.cheapest and (values.ratio or not values.two_stage):
        yield "two_stage must be True and ratio False if cheapest is True"
    if values.judged_by not in BUILT_IN:
        yield f"judged_by must be one of {', '.join(BUILT_IN)}, got {values.judged_by!r}"
    if values.category not in (words := get_args(RuleCategory)):
        yield f"category must be one of {', '.join(words)}, got {values.category!r}"
    jobs, kinds = np.arange(len(compiled)), Kinds.of(compiled, values)
    for model in compiled.models:
        gains = [values.gain(jobs, np.full(len(jobs), s), model) for s in _TRIED]
        # Also for other jobs than each once, in their order.
        twice = np.repeat(jobs, 2)
        again = values.gain(twice, np.ones(len(twice)), model)
        if not _is_finite_for(twice, again) or not all(_is_finite_for(jobs, g) for g in gains):
            yield "gain must return an array with a finite number for each job"
        if any((after > before).any() for before, after in pairwise(gains)):
            yield "gain must not rise with the slowdown"
        if values.proportional and not _is_proportional(gains, values.minimised):
            yield "proportional must be False: a gain is not in proportion to the slowdown"
        if not all(_close(gain[kinds.first] - gain, kinds.less, gain) for gain in gains):
            yield "by_kind must be False: equal jobs gain differently"


def _is_proportional(gains: Sequence[Floats], minimised: bool) -> bool:
    """Return whether gains at the tried slowdowns are as ``JobValues.proportional`` says."""
    first = gains[0]
    expected = [first * s if minimised else first / s for s in _TRIED]
    sign = (first <= 0).all() if minimised else (first >= 0).all()
    return bool(sign) and all(map(_close, gains, expected, gains))


def _close(found: Floats, expected: Floats, scale: Floats) -> bool:
    return bool((np.abs(found - expected) <= _ROUNDING * np.abs(scale).max(initial=0.0)).all())


_TRIED: Final = (1.0, 1.25, 2.0, 8.0)
"""Slowdowns at which the gains of a user's objective are checked."""

_ROUNDING: Final = 1e-9
"""Difference between two computations of a gain, relative to the largest."""


def _is_finite_for(jobs: Ints, gain: object) -> bool:
    return (
        isinstance(gain, np.ndarray)
        and gain.shape == jobs.shape
        and gain.dtype.kind in "biuf"
        and bool(np.isfinite(gain).all())
    )
