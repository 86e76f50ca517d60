"""A model of the gate of ``dovetail.isolation`` in pure logic, for the simulated GPU.

It is written from the description of the gate alone and shares no code with the library. A best-
effort kernel waits on the GPU until the *level* of its process's gate is at least its *class*: the
least c with a time of at most 2^c microseconds. Level 0 is closed, ``TOP`` lets all begin. Kernels
share one wait while their times sum to at most the bound (``Groups``). While the latency-critical
client is idle, the level follows from how long its idle times used to be (``IdleTimes``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

TOP: Final = 24
"""The level that lets every kernel begin; 2^24 microseconds are 16.8 s."""

DUE: Final = 0.1
"""How likely the next request may be within a kernel that is let in."""

NO_BETTER: Final = 1.5
"""How much likelier than at the best time, where it is likelier than that at all times."""

EVIDENCE: Final = 1 / 16
"""How many of the idle times must be longer, for a moment to count as the best one."""

KEPT: Final = 1 - 1 / 512
"""What is left of an idle time's weight at each later one."""


def class_of(seconds: float) -> int:
    """Return the class of a kernel by its time."""
    return min(TOP, max(1, math.ceil(math.log2(seconds * 1e6) - 1e-9))) if seconds > 0 else 1


class IdleTimes:
    """How long the latency-critical client was idle between launches, and the levels thereby.

    Idle times are counted in buckets: bucket b holds those from 2^b to 2^(b+1) microseconds, bucket
    0 all below 2. Within a bucket the chance to end is taken to be the same at every moment.
    """

    def __init__(self) -> None:
        self._weights = [0.0] * (TOP + 1)
        self._levels: list[int] | None = None

    def add(self, seconds: float) -> None:
        """Count an idle time that has ended."""
        bucket = min(TOP, max(0, int(math.log2(max(1.0, seconds * 1e6)))))
        self._weights = [weight * KEPT for weight in self._weights]
        self._weights[bucket] += 1.0
        self._levels = None

    def level(self, border: int) -> int:
        """Return the level from 2^border microseconds of idleness on; border 0 is its begin."""
        if self._levels is None:
            self._levels = self._computed()
        return self._levels[min(border, TOP)]

    def _computed(self) -> list[int]:
        longer = [0.0] * (TOP + 2)
        for bucket in range(TOP, -1, -1):
            longer[bucket] = longer[bucket + 1] + self._weights[bucket]

        def survives(microseconds: float) -> float:
            """Return the weight of idle times that are longer."""
            if microseconds < 1:
                return longer[0]
            bucket = min(TOP, int(math.log2(microseconds)))
            part = min(1.0, microseconds / 2**bucket - 1)
            if longer[bucket + 1] <= 0:
                return longer[bucket] * (1 - part)
            return float(longer[bucket] ** (1 - part) * longer[bucket + 1] ** part)

        borders = [0.0, *(2.0**border for border in range(1, TOP + 1))]
        known = [at for at in borders if survives(at) >= 1.0]
        if not known:
            return [TOP] * (TOP + 1)
        usual = sum(survives(at) >= EVIDENCE * longer[0] for at in known)
        levels = [0] * (TOP + 1)
        barred = [False] * (TOP + 1)
        for c in range(1, TOP):
            shares = [1 - survives(at + 2.0**c) / survives(at) for at in known]
            allowed = max(DUE, NO_BETTER * min(shares[:usual]))
            for border in range(TOP + 1):
                # Beyond what is known, nothing is expected.
                barred[border] |= border < len(shares) and shares[border] > allowed
                if not barred[border]:
                    levels[border] = c
        return [TOP if level == TOP - 1 else level for level in levels]


@dataclass
class Groups:
    """Which kernels of a stream share a wait: those whose times sum to at most the bound."""

    bound_s: float
    left_s: float = field(default=0.0, init=False)

    def wait(self, seconds: float | None, *, apart: bool = False) -> int | None:
        """Return the class of the wait before a kernel, or None if it needs none.

        Parameters
        ----------
        seconds : float or None
            What it takes; None if that is not known.
        apart : bool
            Whether it may not share a wait.
        """
        if seconds is None or seconds > self.bound_s or apart:
            self.left_s = 0.0
            return TOP if seconds is None else class_of(seconds)
        if seconds <= self.left_s:
            self.left_s -= seconds
            return None
        self.left_s = self.bound_s - seconds
        return class_of(self.bound_s)
