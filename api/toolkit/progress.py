"""Progress shown on a terminal while something takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE_S = 2.0


@dataclass
class Line:
    """The text of the line, which may change at any time."""

    text: str


@contextmanager
def working(what: str, time_limit: float | None = None) -> Iterator[Line]:
    """Show elapsed time on standard error, with a bar towards the time limit if there is one.

    Nothing is shown if standard error is not a terminal.
    """
    line = Line(what)
    if not sys.stderr.isatty():
        yield line
        return
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


def _show(line: Line, time_limit: float | None, done: threading.Event) -> None:
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
