"""The groups of commands ``dovetail import`` and ``dovetail dataset``."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import Command

IMPORT: Final = Command(
    "import", "Make an instance from measured slowdowns; describe kernels by a profiler's file."
)
DATASET: Final = Command(
    "dataset", "Keep measured profiles and pairs, in a folder or a repository."
)
