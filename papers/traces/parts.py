"""Jobs that ask for parts of GPUs, in traces of others."""

from __future__ import annotations

import math


def whole(gpus: float) -> tuple[int, bool]:
    """Return GPUs rounded up, at most what a trace will refuse, and whether they were parts."""
    asked = round(min(gpus, 1e9), 6)
    return math.ceil(asked), asked % 1 > 0


def rounded_up(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note on ``count`` jobs of ``jobs`` that asked for parts of GPUs."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs asked for parts of GPUs: rounded up to whole ones",)
