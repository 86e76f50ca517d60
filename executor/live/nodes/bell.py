"""What several threads wait on until there is something new."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Bell:
    """Rung from any thread; nobody who waits misses a ring."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rings = 0

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    @property
    def rings(self) -> int:
        """How often it has been rung."""
        return self._rings

    def wait(self, since: int, within_s: float) -> int:
        """Return how often it has been rung, at once if that is more than ``since``."""
        with self._changed:
            self._changed.wait_for(lambda: self._rings > since, within_s)
            return self._rings

    def wait_for(self, condition: Callable[[], bool], until_s: Callable[[], float]) -> bool:
        """Wait until a condition holds, which is looked at after every ring.

        Parameters
        ----------
        condition : callable
            Called without any lock of the bell's.
        until_s : callable
            How many seconds are left.
        """
        rings = self.rings
        while not condition():
            left_s = until_s()
            if left_s <= 0:
                return False
            rings = self.wait(rings, left_s)
        return True
