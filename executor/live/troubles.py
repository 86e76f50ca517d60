"""What goes wrong while a service runs, and when it is tried again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from dovetail.instances.errors import DovetailError

AGAIN_S: Final = 2.0
"""Seconds after which what the disk, a pool or a policy refused is tried again."""

_LOG: Final = logging.getLogger("dovetail.live")


class Troubles:
    """The present troubles, one of each kind; each is logged once.

    Parameters
    ----------
    now_s : callable
        The service's clock.

    Attributes
    ----------
    again_s : float
        When what failed is to be tried again, on that clock; infinite if nothing failed lately.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._texts: dict[str, str] = {}
        self.again_s = math.inf

    def report(self, kind: str, error: Exception) -> None:
        """Take in that something failed, and have it tried again."""
        text = str(error) or type(error).__name__
        if self._texts.get(kind) != text:
            unforeseen = None if isinstance(error, DovetailError) else error
            _LOG.error("%s: %s", kind, text, exc_info=unforeseen)
        self._texts[kind] = text
        self.again_s = min(self.again_s, self._now_s() + AGAIN_S)

    def clear(self, kind: str) -> None:
        """Take in that something succeeded."""
        self._texts.pop(kind, None)

    def try_again(self) -> None:
        """Begin another try of everything if it is due."""
        if self.again_s <= self._now_s():
            self.again_s = math.inf

    def __contains__(self, kind: str) -> bool:
        return kind in self._texts

    @property
    def texts(self) -> list[str]:
        """One line for each, from any thread."""
        return [*self._texts.copy().values()]
