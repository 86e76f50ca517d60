"""Progress from the output of a job. Uses only the standard library."""

from __future__ import annotations

import contextlib
import math
import re
import signal

from dovetail_progress import Counter  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_LINE = 4096
_LONGEST_S = 1.0
"""Seconds of processor time that a pattern may take for a part of the output."""


class Lines:
    """Finds the count of iterations in a job's output and writes it to the progress file.

    Must be used in a program's main thread, as no other thread gets the timeout's signal.

    Parameters
    ----------
    pattern : str
        A regular expression whose first group is the number of iterations done.
    path : str
        The progress file.
    """

    def __init__(self, pattern: str, path: str) -> None:
        self._pattern = re.compile(pattern)
        self._counter = Counter(path)
        self._rest = ""

    def feed(self, output: bytes) -> None:
        """Process the next part of the output, which may end anywhere in a line.

        Raises
        ------
        TimeoutError
            When the pattern takes too long: some patterns would take years.
        """
        # Progress bars return to the beginning of their line instead of ending it.
        text = self._rest + output.decode("utf-8", "replace").replace("\r", "\n")
        *lines, rest = text.split("\n")
        self._rest = rest[-_LONGEST_LINE:]
        counts = (self._count(line[-_LONGEST_LINE:]) for line in reversed(lines))
        with _at_most(_LONGEST_S):
            last = next((count for count in counts if count is not None), None)
        if last is not None:
            self._counter.set(last, None)

    def _count(self, line: str) -> float | None:
        found = self._pattern.search(line)
        return _number(found.group(1)) if found else None


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupt the block after this processor time; regular expressions check for signals."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"the progress pattern took over {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
