"""Commands of whoever started this process, and the signals that ask it to end."""

from __future__ import annotations

import json
import queue
import signal
import threading

RUN, STOP, QUIT = "run", "stop", "quit"


class Commands:
    """Lines of a file that a thread reads, standard input by default.

    A signal to end, and the end of the input, count as ``quit``: who works on a device comes to
    an end between two pieces of work, as MPS does not survive everything else.
    """

    def __init__(self, source: int = 0) -> None:
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ending: str | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._said.put(QUIT))
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def next(self) -> str:
        """Wait for the next command, and return it.

        Raises
        ------
        ValueError
            A line is no command.
        """
        found, self._ending = self._ending or self._said.get(), None
        return _checked(found)

    def end(self, within_s: float = 0) -> bool:
        """Tell whether a run is to end, as soon as it is to or after ``within_s`` seconds.

        The command that ends it is the next one.
        """
        if self._ending is None:
            try:
                self._ending = self._said.get(timeout=max(0.0, within_s))
            except queue.Empty:
                return False
        if _checked(self._ending) == RUN:
            raise ValueError("told to run while it runs")
        return True

    def _read(self, source: int) -> None:
        with open(source, errors="replace", closefd=False) as lines:
            for line in lines:
                self._said.put(line.rstrip("\n"))
        self._said.put(QUIT)


def _checked(line: str) -> str:
    """Return the command of a line; the one that counts as ``quit`` is no JSON."""
    try:
        found = line if line == QUIT else json.loads(line)["do"]
    except (ValueError, TypeError, KeyError):
        found = None
    if found not in (RUN, STOP, QUIT):
        raise ValueError(f"no command: {line!r}")
    return str(found)
