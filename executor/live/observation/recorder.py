"""Copies profiles and measurements from the journal to the repository, each exactly once.

The journal is the outbox: records in ``StateMachine.unrecorded`` are appended to the repository,
and only then is ``Recorded`` written to the journal. If the service is killed in between, the next
service finds the records in the repository and does not append them again.
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
"""Seconds to wait for an append at the end; the next service appends missing records."""


class Recorder:
    """Appends in a separate thread, since other processes may lock a repository for a minute.

    Parameters
    ----------
    repository : Repository
        The repository.
    wake : callable
        Called from that thread when an append has succeeded or failed.
    rest_s : float
        Pause in seconds after an append that failed.

    Attributes
    ----------
    trouble : str
        Why the last append failed, empty if it did not; the next offer tries again.
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
        """Begin to append new records, unless an append is under way; do not wait."""
        if self._under_way is not None:
            return
        new = sorted(sequence for sequence in unrecorded if sequence > self._last)[:_MOST]
        if new:
            chosen = {sequence: unrecorded[sequence] for sequence in new}
            done = self._under_way = Future()
            done.add_done_callback(lambda _: self._wake())
            # A daemon thread, as another process may lock the repository for a minute at the end.
            threading.Thread(
                target=self._run, args=(done, chosen), name="recorder", daemon=True
            ).start()

    def recorded(self) -> int | None:
        """Return once per append the number up to which all is in the repository, else None."""
        if self._under_way is None or not self._under_way.done():
            return None
        done, self._under_way = self._under_way, None
        sequence = done.result()
        if sequence is not None:
            self._last = sequence
        return sequence

    def close(self) -> None:
        """Wait for an append that is under way, at most ``LEAVE_S``."""
        self._closed.set()
        if self._under_way is not None:
            wait([self._under_way], LEAVE_S)

    def _run(self, done: Future[int | None], events: Mapping[int, Profiled | Measured]) -> None:
        """Append; the result is the last event's number, or None if the append failed."""
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
        # An append that reported a failure may still have been made: look again after it.
        caught_up, self._caught_up = self._caught_up, False
        if not caught_up:
            records = self._absent(records)
        self._repository.append(
            [record for record in records if isinstance(record, SoloProfile)],
            [record for record in records if isinstance(record, Measurement)],
        )
        self._caught_up = True

    def _absent(self, records: list[_Record]) -> list[_Record]:
        """Return the records that are not in the repository yet."""
        self._repository.append()  # makes the file
        there = {_text(found.record) for found in self._repository.since(0)}
        return [record for record in records if _text(record) not in there]


def _record(event: Profiled | Measured) -> _Record:
    return event.profile if isinstance(event, Profiled) else event.measurement


def _text(record: _Record) -> str:
    """Return a text that identifies a record, since it includes the time of the record."""
    return record.model_dump_json()
