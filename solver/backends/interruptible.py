"""Calls into solver libraries that end on a user's interrupt, or soon after the time is up.

Compiled solvers ignore Python's signals or replace the handler by their own, and some check the
clock only rarely. So they run in a separate thread, and the calling thread, which gets the signal,
waits for it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import TypeVar

from dovetail.formulations.budget import Budget

T = TypeVar("T")

_POLL_S = 0.05

_LATE = 0.25
"""A library may exceed its time by this fraction: a fifth of the whole time is kept for reasons,
and its result is worth more than they are."""


def interruptible(
    call: Callable[[], T], budget: Budget, stop: Callable[[], object] | None = None
) -> T | None:
    """Return the call's result, or raise its exception; None if it does not end in time.

    Parameters
    ----------
    call : callable
        Runs in a daemon thread.
    budget : Budget
        When it should end.
    stop : callable, optional
        Asks the library to end its search, which it then does immediately. Without it the thread is
        left running, and the process waits for it at exit, because compiled code must not outlive
        the interpreter.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)

    due = budget.earlier(-_LATE * budget.left_s)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            late = not budget.counts_work and due.passed
            if late and thread.is_alive():
                if stop is None:
                    atexit.register(thread.join)
                    return None
                stop()
    except KeyboardInterrupt:
        if stop is not None:
            stop()
        raise
    if failure:
        raise failure[0]
    return outcome[0]
