"""When the engine has to stop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


class OutOfTimeError(Exception):
    """The deadline passed between two steps."""


@dataclass(frozen=True)
class Deadline:
    """A point on the clock of ``time.monotonic``; inf for none."""

    at: float = math.inf

    def check(self) -> None:
        """Raise ``OutOfTimeError`` if it has passed."""
        if time.monotonic() > self.at:
            raise OutOfTimeError

    def earlier(self, seconds: float) -> Deadline:
        """Return a deadline that leaves so many seconds of this one."""
        return Deadline(self.at - seconds)
