"""Jobs that ask for fractions of GPUs, in published traces."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def whole(gpus: float) -> tuple[int, bool]:
    """Return GPUs rounded up, capped above what a trace accepts, and whether they were rounded."""
    asked = round(min(gpus, 1e9), 6)
    return math.ceil(asked), asked % 1 > 0


def whole_gpus(gpus: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return columns of what `whole` returns."""
    asked = np.minimum(gpus, 1e9)
    in_parts = asked % 1 > 0
    asked[in_parts] = [round(part, 6) for part in asked[in_parts].tolist()]
    return np.ceil(asked), asked % 1 > 0


def rounded_up(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note that ``count`` of ``jobs`` jobs asked for fractions of GPUs."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs asked for parts of GPUs: rounded up to whole ones",)
