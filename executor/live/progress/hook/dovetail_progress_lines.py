"""Progress from what a job prints, for who passes its output on. Needs only Python itself."""

from __future__ import annotations

import math
import re

from dovetail_progress import Counter  # type: ignore[import-not-found]

_LONGEST_LINE = 4096


class Lines:
    """Finds the count of iterations in a job's output and writes it to the progress file.

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
        """Take the next part of the output, cut anywhere."""
        # Progress bars go back to the beginning of their line instead of ending it.
        text = self._rest + output.decode("utf-8", "replace").replace("\r", "\n")
        *lines, rest = text.split("\n")
        self._rest = rest[-_LONGEST_LINE:]
        counts = (self._count(line[-_LONGEST_LINE:]) for line in reversed(lines))
        last = next((count for count in counts if count is not None), None)
        if last is not None:
            self._counter.set(last, None)

    def _count(self, line: str) -> float | None:
        found = self._pattern.search(line)
        return _number(found.group(1)) if found else None


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
