"""Checks of arrays from a file."""

from __future__ import annotations

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import FloatArray


def finite(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> FloatArray:
    """Return the array as floats if it has the shape; None means any length except 0.

    Raises
    ------
    InputError
        When it is missing, not numeric, of another shape, or not finite.
    """
    require(name in arrays, name, "is required")
    found = np.asarray(arrays[name])
    require(found.dtype.kind in "fiub", name, f"must hold numbers, got {found.dtype}")
    wanted = tuple("n" if length is None else length for length in shape)
    fits = found.ndim == len(shape) and all(
        have == want if want is not None else have > 0
        for have, want in zip(found.shape, shape, strict=True)
    )
    require(fits, name, f"must have shape {wanted}, got {found.shape}")
    require(bool(np.isfinite(found).all()), name, "must be finite")
    return found.astype(np.float64)


def require(condition: bool, name: str, rule: str) -> None:
    """Raise InputError with the rule unless the condition holds."""
    if not condition:
        raise InputError(rule, name)
