"""Ctrl-C that ends a search and keeps its result so far."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dovetail.formulations.budget import InterruptibleClock


@contextmanager
def interrupting(clock: InterruptibleClock) -> Iterator[None]:
    """Let the first Ctrl-C end all searches on a clock, and the second end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        clock.interrupt()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("dovetail: interrupted: the best plan so far follows", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)
