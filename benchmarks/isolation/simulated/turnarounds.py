"""How soon the simulated GPU is given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .blocking import BlockingPasses
    from .gated import GatedPasses


class Turnarounds:
    """How long best-effort blocks still run after a request came."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.bounded: list[bool] = []
        self._counts = False
        self._keeps = True
        self._ran_s = 0.0
        self._since_s: float | None = None
        """Since when such blocks run, if they do."""

    def came(self, now_s: float, active: Sequence[GatedPasses | BlockingPasses]) -> None:
        """Note a request, and the clients of which something is in flight."""
        self.over(active=False)
        if active:
            self._counts, self._ran_s = True, 0.0
            self._keeps = all(one.keeps_bound for one in active)
            if self._since_s is not None:
                self._since_s = now_s

    def began(self, *, keeps_bound: bool) -> None:
        """Note that a launch of those clients begins."""
        self._keeps &= keeps_bound

    def runs(self, now_s: float) -> None:
        """Note that the first best-effort block begins."""
        self._since_s = now_s

    def rests(self, now_s: float) -> None:
        """Note that the last one has ended."""
        assert self._since_s is not None
        self._ran_s += now_s - self._since_s
        self._since_s = None

    def over(self, *, active: bool) -> None:
        """Note whether anything is still in flight."""
        if self._counts and not active:
            self.seconds.append(self._ran_s)
            self.bounded.append(self._keeps)
            self._counts = False
