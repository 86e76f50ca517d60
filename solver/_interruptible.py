"""Calls into solver libraries that a user can interrupt.

Compiled solvers do not look at Python's signals, or replace the handler by their own. So they
run in a thread of their own, and the calling thread, which gets the signal, waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.05


def interruptible(call: Callable[[], T], stop: Callable[[], object] | None = None) -> T:
    """Return what the call returns, or raise what it raises.

    Parameters
    ----------
    call : callable
        Runs in a daemon thread.
    stop : callable, optional
        Asks the library to end its search after an interrupt; without it the thread is left
        behind, to end with the process.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
    except KeyboardInterrupt:
        if stop is not None:
            stop()
        raise
    if failure:
        raise failure[0]
    return outcome[0]
