"""The names of the objectives; ``docs/explanation/concepts.md`` explains each."""

from __future__ import annotations

from typing import Literal, get_args

ObjectiveName = Literal[
    "throughput", "slowdown", "sensitivity", "jct", "energy", "completion", "fewest"
]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
