"""The ways in which clients share the simulated GPU."""

from __future__ import annotations

from typing import Final, Literal, get_args

Way = Literal[
    "alone",
    "mps",
    "mps-priority",
    "mps-cap",
    "time-slicing",
    "tgs",
    "blocking",
    "blocking-forms",
    "gate",
    "gate-due",
    "gate-slices",
    "gate-workers",
]
WAYS: Final[tuple[Way, ...]] = get_args(Way)
