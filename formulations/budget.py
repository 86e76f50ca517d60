"""How long a search may run, for a time or for an amount of work, and in how much memory.

A user's wait is limited by time. If results are compared, in simulations and tests, the same search
has to end at the same point on every machine: its clock counts steps of work instead, and shows how
many seconds they take on a nominal processor. All searches of a round share one budget.
"""

from __future__ import annotations

import math
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dovetail.instances.errors import ArgumentError, UnsupportedError

STEPS_PER_S: Final = 1e9
"""Steps that the nominal processor does in a second: a step is a nanosecond of compiled code.
Searches estimate their steps, so that a second of work takes a few seconds at most."""


class OutOfTimeError(Exception):
    """The budget ran out between two steps."""


class Clock(Protocol):
    """The clock that limits searches."""

    def now(self) -> float:
        """Return the current time in seconds."""
        ...

    def spend(self, steps: float) -> None:
        """Count completed work."""
        ...


class WallClock:
    """The time of ``time.monotonic``."""

    def now(self) -> float:
        """Return the time."""
        return time.monotonic()

    def spend(self, steps: float) -> None:
        """Do nothing: real time passes without being counted."""


class InterruptibleClock(WallClock):
    """Shows the time until it is interrupted, and then that the time of every budget is up."""

    def __init__(self) -> None:
        self._interrupted = False

    def now(self) -> float:
        """Return the time; inf once it is interrupted."""
        return math.inf if self._interrupted else super().now()

    def interrupt(self) -> None:
        """End all budgets on this clock, also those without an end."""
        self._interrupted = True


class WorkClock:
    """Shows the time that the counted work takes on the nominal processor."""

    def __init__(self) -> None:
        self._steps = 0.0

    def now(self) -> float:
        """Return the seconds that all steps so far take."""
        return self._steps / STEPS_PER_S

    def spend(self, steps: float) -> None:
        """Count completed work."""
        self._steps += steps


WALL: Final = WallClock()


@dataclass(frozen=True)
class Budget:
    """The time until which a search may run.

    Attributes
    ----------
    end : float
        Seconds on the clock; inf for no end.
    clock : Clock
        A wall clock, or a clock that counts work.
    """

    end: float = math.inf
    clock: Clock = WALL

    @classmethod
    def of(cls, seconds: float | None, clock: Clock = WALL) -> Budget:
        """Return a budget of ``seconds`` from now, without an end for None.

        Raises
        ------
        ArgumentError
            If the seconds are negative or not a number.
        """
        if seconds is None:
            return cls(math.inf, clock)
        seconds = float(seconds)  # a NumPy number of 32 bits would round the clock
        if not seconds >= 0:
            raise ArgumentError(f"time_limit must be >= 0 or None, got {seconds!r}")
        return cls(clock.now() + seconds, clock)

    @property
    def is_limited(self) -> bool:
        """Whether there is an end."""
        return self.end < math.inf

    @property
    def counts_work(self) -> bool:
        """Whether the end is a number of steps, the same on every machine."""
        return not isinstance(self.clock, WallClock)

    @property
    def left_s(self) -> float:
        """Seconds until the end, never negative."""
        return max(0.0, self.end - self.clock.now())

    @property
    def timeout_s(self) -> float | None:
        """Seconds of real time that are left; None if they are not limited."""
        return self.left_s if self.is_limited and not self.counts_work else None

    @property
    def is_interrupted(self) -> bool:
        """Whether the clock was interrupted."""
        return self.clock.now() == math.inf

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        # The difference of two times of an interrupted clock is NaN, and so is such an end.
        return not self.clock.now() < self.end

    def now(self) -> float:
        """Return the seconds on the clock."""
        return self.clock.now()

    def spend(self, steps: float) -> None:
        """Count completed work."""
        self.clock.spend(steps)

    def check(self) -> None:
        """Raise ``OutOfTimeError`` if the time is up."""
        if self.passed:
            raise OutOfTimeError

    def part(self, share: float) -> Budget:
        """Return a budget of this share of the seconds left."""
        return Budget(self.clock.now() + share * (self.end - self.clock.now()), self.clock)

    def earlier(self, seconds: float) -> Budget:
        """Return a budget that ends ``seconds`` earlier than this one."""
        return Budget(self.end - seconds, self.clock)


UNLIMITED: Final = Budget()

_GIB = 2.0**30
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def room_bytes() -> float:
    """Return the bytes that a round's arrays may take: half the memory of the process.

    That memory is the least of the machine's memory, the limits of the process (``ulimit -v``,
    ``-d``) and the limit of its container. The use by other processes is ignored, so that the same
    machine gives the same plan.
    """
    limits = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(float(soft))
    for path in _CGROUP_LIMITS:
        try:
            limits.append(float(path.read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return min(limits) / 2


def require_room(needed: float, what: str) -> None:
    """Refuse arrays that would take more bytes than there is room for.

    Raises
    ------
    UnsupportedError
        If they would; the message has what they are and how much they need.
    """
    room = room_bytes()
    if needed > room:
        need = f"need about {needed / _GIB:.3g} GiB"
        raise UnsupportedError(f"{what} {need}, half the memory is {room / _GIB:.3g} GiB")
