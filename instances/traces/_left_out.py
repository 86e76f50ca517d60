"""The note on jobs of a file that a trace cannot have."""

from __future__ import annotations


def left_out(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note that ``count`` of ``jobs`` jobs ran on no GPU or for no time."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs left out: no GPUs or no run time",)
