"""Failures while a service runs, and when the failed actions are retried."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from dovetail.instances.errors import DovetailError

AGAIN_S: Final = 2.0
"""Seconds after which a failed action of the disk, the pool or the policy is retried."""

_LOG: Final = logging.getLogger("dovetail.live")


class Troubles:
    """The present failures, one of each kind; each is logged once.

    Parameters
    ----------
    now_s : callable
        The service's clock.

    Attributes
    ----------
    again_s : float
        When the failed actions are retried, on that clock; infinity if nothing failed recently.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._texts: dict[str, str] = {}
        self.again_s = math.inf

    def report(self, kind: str, error: Exception) -> None:
        """Record a failure, and plan a retry."""
        text = str(error) or type(error).__name__
        if self._texts.get(kind) != text:
            unforeseen = None if isinstance(error, DovetailError) else error
            _LOG.error("%s: %s", kind, text, exc_info=unforeseen)
        self._texts[kind] = text
        self.again_s = min(self.again_s, self._now_s() + AGAIN_S)

    def clear(self, kind: str) -> None:
        """Record a success."""
        self._texts.pop(kind, None)

    def try_again(self) -> None:
        """Begin a retry of everything if it is due."""
        if self.again_s <= self._now_s():
            self.again_s = math.inf

    def __contains__(self, kind: str) -> bool:
        return kind in self._texts

    @property
    def texts(self) -> list[str]:
        """One line for each failure; thread-safe."""
        return [*self._texts.copy().values()]
