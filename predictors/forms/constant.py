"""One number for every pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from dovetail.predictors.forms._checks import finite, require
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import FloatArray, IntArray


@dataclass(frozen=True)
class Constant:
    """The same slowdown for every pair."""

    kind: ClassVar[str] = "constant"

    slowdown: float

    def predict(self, states: FloatArray, own: IntArray, other: IntArray) -> FloatArray:
        """Return the slowdown for each row; see ``Form.predict``."""
        return np.full(len(own), self.slowdown)

    def arrays(self) -> Arrays:
        """Return the slowdown, shape (1,)."""
        return {"slowdown": np.array([self.slowdown])}

    @classmethod
    def from_arrays(cls, arrays: Arrays, features: int) -> Self:
        """Rebuild the form; see ``Form.from_arrays``."""
        slowdown = float(finite(arrays, "slowdown", (1,))[0])
        require(slowdown > 0, "slowdown", "must be > 0")
        return cls(slowdown)
