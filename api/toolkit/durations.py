"""Times as people write and read them."""

from __future__ import annotations

import math
import re
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def lasting(time_s: float) -> str:
    """Return a time in its two largest units: ``2 h 5 min``."""
    left = max(int(time_s), 0)
    for k, (name, size) in enumerate(_UNITS[:-1]):
        if left >= size:
            unit, smaller = _UNITS[k + 1]
            rest = left % size // smaller
            return f"{left // size} {name}" + (f" {rest} {unit}" if rest else "")
    return f"{left} s"


def parsed_duration(text: str) -> float | None:
    """Return the seconds of ``90``, ``90s``, ``15m``, ``2h`` or ``1d``; None for other texts."""
    found = _WRITTEN.fullmatch(text)
    time_s = float(found[1]) * _SECONDS[found[2] or "s"] if found else math.inf
    return time_s if time_s < math.inf else None
