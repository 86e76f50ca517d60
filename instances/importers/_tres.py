"""The GPUs in Slurm's lists of resources, as in ``cpu=8,gres/gpu:a100=2,gres/gpu=2``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

UNKNOWN: Final = ("", "None", "Unknown", "N/A")
"""Slurm's words for times that it does not have."""

_DIGITS: Final = 12


def gpus_in(text: str) -> Iterator[tuple[str | None, int]]:
    """Yield the types (None: any) and counts of GPUs in a list like ``gres:gpu:a100:2,nvme:1``.

    Counts are cut to 12 digits, more than the GPUs of any cluster.
    """
    for part in text.split(","):
        words = re.split(r"[:=]", part.removeprefix("gres:").removeprefix("gres/"))
        if words[0] == "gpu":
            count = int(words.pop()[:_DIGITS]) if words[-1].isdecimal() else 1
            yield (words[1] if len(words) > 1 else None), count


def gpus_by_type(text: str) -> dict[str | None, int]:
    """Return the GPUs of a list by type; those listed with and without their type count once."""
    found: dict[str | None, int] = {}
    for model, count in gpus_in(text):
        found[model] = found.get(model, 0) + count
    untyped = found.pop(None, 0) - sum(found.values())
    return {**found, None: untyped} if untyped > 0 else found
