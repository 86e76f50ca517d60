"""Long work in a terminal: progress after two seconds, and Ctrl-C that keeps the result so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Event
    from types import FrameType

    from dovetail.formulations.budget import InterruptibleClock

PATIENCE_S = 2.0


class ProgressLine:
    """The text of the line, which may change at any time."""

    def __init__(self, text: str) -> None:
        self.text = text


@contextmanager
def working(what: str, time_limit: float | None = None) -> Iterator[ProgressLine]:
    """Show elapsed time on standard error, with a bar towards the time limit if there is one.

    Nothing is shown if standard error is not a terminal.
    """
    line = ProgressLine(what)
    if not sys.stderr.isatty():
        yield line
        return
    import threading

    done = threading.Event()
    thread = threading.Thread(target=_show, args=(line, time_limit, done), daemon=True)
    thread.start()
    try:
        yield line
    finally:
        done.set()
        thread.join()


def compiled_ahead(jobs: int) -> None:
    """Compile the matching engine once for all processes, if rounds of ``jobs`` jobs need it."""
    from dovetail.solver.pairing.compilation import is_worth_compiling
    from dovetail.solver.pairing.matching import compile_kernels

    if is_worth_compiling(jobs):
        with working("compiling the engine, once"):
            compile_kernels()


def _show(line: ProgressLine, time_limit: float | None, done: Event) -> None:
    if done.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    if time_limit is not None:
        columns += [BarColumn(), TextColumn(f"at most {time_limit:g} s")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(line.text, total=time_limit)
        progress.advance(task, PATIENCE_S)
        while not done.wait(0.1):
            progress.update(task, advance=0.1, description=line.text)


@contextmanager
def counting(what: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show steps on standard error: yield a function of a step's name, its number and the total.

    Yield None, and show nothing, if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    screen = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=screen, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def text(step: str, done: int, total: int) -> None:
            progress.update(task, description=f"{what}: {step}", completed=done, total=total)

        yield text


@contextmanager
def interrupting(clock: InterruptibleClock) -> Iterator[None]:
    """Let the first Ctrl-C end all searches on a clock, and the second end the process."""
    import signal
    import threading

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
