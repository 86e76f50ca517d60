"""Run the administrator's command for every job that is over; the service never waits for it."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from dovetail.executor.jobs.live_jobs import LiveJob

LONGEST_S: Final = 30.0
"""Seconds after which a command that has not ended is killed."""

MOST_WAITING: Final = 10_000
"""Notifications that may wait; further ones are dropped."""

_LOG: Final = logging.getLogger("dovetail.live")


class Notifier:
    """Runs a command for each job that is over, one after the other, in a separate thread.

    The command runs as the service's user, without a shell. The job is described only in the
    environment, because names and reasons are other users' texts: ``DOVETAIL_JOB``, ``_NAME``,
    ``_USER``, ``_STATE`` and ``_WHY``.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.

    Attributes
    ----------
    trouble : str
        What went wrong with the last notification; empty if nothing did.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.trouble = ""
        self._command = [*command]
        self._ended: queue.Queue[dict[str, str] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._serve, name="notifier", daemon=True)
        self._thread.start()

    def notify(self, job: LiveJob) -> None:
        """Queue the notification of a job, without waiting."""
        spec = job.spec
        variables = {
            "DOVETAIL_JOB": job.id,
            "DOVETAIL_NAME": spec.name or spec.workload,
            "DOVETAIL_USER": spec.owner.name,
            "DOVETAIL_STATE": job.state.value,
            "DOVETAIL_WHY": job.why.replace("\0", ""),
        }
        try:
            self._ended.put_nowait(variables)
        except queue.Full:
            self._fail("too many jobs have ended: some notifications are dropped")

    def close(self) -> None:
        """Stop notifying; do not wait for a running command."""
        with suppress(queue.Full):
            self._ended.put_nowait(None)

    def _serve(self) -> None:
        while (variables := self._ended.get()) is not None:
            try:
                self._run(variables)
            except Exception as error:  # later jobs must still be notified
                self._fail(str(error))

    def _run(self, variables: dict[str, str]) -> None:
        with subprocess.Popen(
            self._command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                status = process.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self._fail(f"took longer than {LONGEST_S:g} s and was killed")
                return
        if status:
            self._fail(f"ended with status {status}")
        else:
            self.trouble = ""

    def _fail(self, why: str) -> None:
        trouble = f"--notify: {self._command[0]}: {why}"
        if trouble != self.trouble:
            _LOG.warning("%s", trouble)
        self.trouble = trouble
