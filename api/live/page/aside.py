"""Answers that may take seconds: worked out in another thread, shown when they are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

MOST_KEPT: Final = 256
"""Answers that are kept; the oldest are forgotten first."""

PATIENCE_S: Final = 0.3
"""Seconds for which a page waits for its first answer."""


@dataclass
class _Answer:
    making: Future[object]
    began_s: float
    value: object = None


class Aside:
    """Works out slow answers one after the other, each at most once in a while; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._one = ThreadPoolExecutor(1, "page-aside")
        self._answers: dict[Hashable, _Answer] = {}

    def get(self, key: Hashable, make: Callable[[], object], fresh_s: float) -> object:
        """Return the last answer for a key; None if there is none yet.

        Parameters
        ----------
        key : hashable
            Which answer.
        make : callable
            Works it out; what it raises is raised here.
        fresh_s : float
            Seconds for which an answer is good; an older one is returned while it is worked out
            again.
        """
        with self._lock:
            known = self._answers.get(key)
            first = known is None
            if known is not None and known.making.done():
                known.value = known.making.result()
            if known is None or (
                known.making.done() and time.monotonic() > known.began_s + fresh_s
            ):
                value = None if known is None else known.value
                known = _Answer(self._one.submit(make), time.monotonic(), value)
                self._answers.pop(key, None)
                self._answers[key] = known
                if len(self._answers) > MOST_KEPT:
                    self._answers.pop(next(iter(self._answers))).making.cancel()
        if first:
            try:
                return known.making.result(PATIENCE_S)
            except TimeoutError:
                return None
        return known.value

    def close(self) -> None:
        """Work out nothing more."""
        self._one.shutdown(wait=False, cancel_futures=True)
