"""Brings profiles and measurements from the journal to the repository, each exactly once.

The journal is the outbox: what is in ``StateMachine.unrecorded`` is appended to the repository, and
only then journalled as ``Recorded``. A service that was killed in between finds the records in the
repository when it starts again, and does not append them a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Final

from dovetail.executor.jobs.events import Measured, Profiled
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository
from dovetail.instances.errors import DovetailError

_Record = SoloProfile | Measurement
_MOST: Final = 1000

LEAVE_S: Final = 5.0
"""Seconds that an append has at the end; the next service appends what is missing."""


class Recorder:
    """Appends in a thread of its own, since other processes may hold a repository for a minute.

    Parameters
    ----------
    repository : Repository
        Where records go.
    wake : callable
        Called from that thread when an append has ended, well or not.
    rest_s : float
        Seconds that an append takes longer if it fails, so that it is not tried without a break.

    Attributes
    ----------
    trouble : str
        Why the last append failed, empty if it did not; it is tried again at the next offer.
    """

    def __init__(
        self,
        repository: Repository,
        wake: Callable[[], None] = lambda: None,
        rest_s: float = 2.0,
    ) -> None:
        self.trouble = ""
        self._repository = repository
        self._wake = wake
        self._rest_s = rest_s
        self._closed = threading.Event()
        self._under_way: Future[int | None] | None = None
        self._last = 0
        self._caught_up = False

    def offer(self, unrecorded: Mapping[int, Profiled | Measured]) -> None:
        """Begin to append what is new of it, unless an append is under way; returns at once."""
        if self._under_way is not None:
            return
        new = sorted(sequence for sequence in unrecorded if sequence > self._last)[:_MOST]
        if new:
            chosen = {sequence: unrecorded[sequence] for sequence in new}
            done = self._under_way = Future()
            done.add_done_callback(lambda _: self._wake())
            # A daemon, as another process may hold the repository for a minute at the end.
            threading.Thread(
                target=self._run, args=(done, chosen), name="recorder", daemon=True
            ).start()

    def recorded(self) -> int | None:
        """Return, once, the number up to which all is in the repository; None if not new."""
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        sequence = done.result()
        if sequence is not None:
            self._last = sequence
        return sequence

    def close(self) -> None:
        """Wait for the append that is under way, ``LEAVE_S`` at most."""
        self._closed.set()
        if self._under_way is not None:
            wait([self._under_way], LEAVE_S)

    def _run(self, done: Future[int | None], events: Mapping[int, Profiled | Measured]) -> None:
        """Append; the result is the last number, or None if that failed."""
        try:
            self._append(events)
        except DovetailError as error:
            self.trouble = str(error)
            self._closed.wait(self._rest_s)
            done.set_result(None)
        except Exception as error:  # raised again by ``recorded``
            done.set_exception(error)
        else:
            self.trouble = ""
            done.set_result(max(events))

    def _append(self, events: Mapping[int, Profiled | Measured]) -> None:
        records = [_record(event) for event in events.values()]
        # An append that failed may have been made all the same: look again after it.
        caught_up, self._caught_up = self._caught_up, False
        if not caught_up:
            records = self._absent(records)
        self._repository.append(
            [record for record in records if isinstance(record, SoloProfile)],
            [record for record in records if isinstance(record, Measurement)],
        )
        self._caught_up = True

    def _absent(self, records: list[_Record]) -> list[_Record]:
        """Return the records that an earlier service has not appended before it was killed."""
        self._repository.append()  # makes the file
        there = {_text(found.record) for found in self._repository.since(0)}
        return [record for record in records if _text(record) not in there]


def _record(event: Profiled | Measured) -> _Record:
    return event.profile if isinstance(event, Profiled) else event.measurement


def _text(record: _Record) -> str:
    """Return a text that identifies a record: it has the moment of the record."""
    return record.model_dump_json()
