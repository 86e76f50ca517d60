"""What several threads wait on until there is something new."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dovetail.executor.system.clock import boot_s


class Condition:
    """Rung from any thread, whatever locks that holds; nobody who waits misses a ring."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rings = 0

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait until a condition holds, which is looked at after every ring, with no lock held."""
        until_s = boot_s() + within_s
        while True:
            before = self._rings
            if condition():
                return True
            left_s = until_s - boot_s()
            if left_s <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda before=before: self._rings > before, left_s)  # type: ignore[misc]
