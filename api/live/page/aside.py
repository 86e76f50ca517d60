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

MOST_OF_USER: Final = 4
"""Answers that are worked out for a user at a time, so that others have their turn."""

PATIENCE_S: Final = 0.3
"""Seconds for which a page waits for its first answer."""


Key = tuple[Hashable, ...]


@dataclass
class _SlowAnswer:
    making: Future[object]
    began_s: float
    value: object = None

    @property
    def is_first(self) -> bool:
        """Whether there was none before."""
        return self.value is None

    def begun_for(self, user: Hashable, key: Key) -> bool:
        """Return whether it is being worked out for a user; ``key`` is its own."""
        return key[-1] == user and not self.making.done()


class Aside:
    """Works out slow answers one after the other, each at most once in a while; thread-safe.

    Parameters
    ----------
    ending : callable
        Returns whether nothing more is to be worked out.
    """

    def __init__(self, ending: Callable[[], bool]) -> None:
        self._ending = ending
        self._lock = threading.Lock()
        self._one = ThreadPoolExecutor(1, "page-aside")
        self._answers: dict[Key, _SlowAnswer] = {}

    def get(self, key: Key, make: Callable[[], object], fresh_s: float) -> object:
        """Return the last answer for a key; None if there is none yet.

        Parameters
        ----------
        key : tuple
            Which answer; the number of the user who asks is its last part.
        make : callable
            Works it out; what it raises is raised here, once.
        fresh_s : float
            Seconds for which an answer is good; an older one is returned while it is worked out
            again.
        """
        answer = self._answer(key, make, fresh_s)
        if answer is None:
            return None
        try:
            if answer.making.done() or answer.is_first:
                answer.value = answer.making.result(PATIENCE_S)
        except TimeoutError:
            return None
        except BaseException:
            with self._lock:
                self._answers.pop(key, None)
            raise
        return answer.value

    def _answer(self, key: Key, make: Callable[[], object], fresh_s: float) -> _SlowAnswer | None:
        """Return the present answer, or one that is being made, with the value before.

        None if too much is being worked out for the user already.
        """
        with self._lock:
            known = self._answers.get(key)
            if known is not None:
                fresh = time.monotonic() < known.began_s + fresh_s
                if fresh or not known.making.done() or known.making.exception() is not None:
                    return known
            value = None if known is None else known.making.result()
            if sum(a.begun_for(key[-1], k) for k, a in self._answers.items()) >= MOST_OF_USER:
                return known
            made = _SlowAnswer(self._one.submit(self._made, make), time.monotonic(), value)
            self._answers.pop(key, None)
            self._answers[key] = made
            if len(self._answers) > MOST_KEPT:
                del self._answers[next(iter(self._answers))]
            return made

    def _made(self, make: Callable[[], object]) -> object:
        return None if self._ending() else make()
