"""Jobs that ask for fractions of GPUs, in published traces."""

from __future__ import annotations

import math


def whole(gpus: float) -> tuple[int, bool]:
    """Return GPUs rounded up, capped above what a trace accepts, and whether they were rounded."""
    asked = round(min(gpus, 1e9), 6)
    return math.ceil(asked), asked % 1 > 0


def rounded_up(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note that ``count`` of ``jobs`` jobs asked for fractions of GPUs."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs asked for parts of GPUs: rounded up to whole ones",)
