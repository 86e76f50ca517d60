"""What is told of jobs that a file has and a trace cannot have."""

from __future__ import annotations


def left_out(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note on ``count`` jobs of ``jobs`` that ran on no GPU or for no time."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs left out: no GPUs or no run time",)
