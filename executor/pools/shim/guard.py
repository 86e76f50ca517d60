"""The guard of one rank: it starts the rank's process, keeps its log, and outlives the service.

``docs/internals/launcher.md`` describes the life of a rank; in short:

- the process is forked, switched to the job's user and directory, and waits at a start barrier.
  The shim writes ``prepared`` to its standard output (or ``refused REASON``, or ``later REASON``
  if the job is not at fault) and reads ``go`` from its standard input; at end of file it starts
  nothing and leaves no trace;
- ``started.json`` is created exclusively, which fails if it exists: a rank never starts twice;
- the start barrier opens. The shim is a subreaper, so every descendant that loses its parent
  becomes its child, and ``waitpid`` failing with ECHILD proves that the rank has no process left;
- SIGTERM asks the job's process group to end, SIGQUIT kills every descendant;
- if the rank runs under a lease, both happen after the lease has lapsed;
- ``exit.json``, whose space was reserved at the start, is renamed into place at the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING

from . import page
from .durable import ExitFile, claim
from .kernel import boot_s, descendants, one_line, send
from .lease import LAPSED, Alarm, Lease, LeaseReader
from .output import OutputLog, readers_of
from .rank import read_spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from .output import Readers
    from .rank import Child

LINGER_S = 2.0
"""Seconds after SIGTERM for processes that outlive the rank's own process."""

_SWEEP_S = 0.1
_CHUNK = 65536


def guard_rank(directory: str, child: Child) -> None:
    """Start the rank that ``spec.json`` in a directory describes, and guard it until its end.

    Parameters
    ----------
    directory : str
        The directory of the rank.
    child : Child
        The process on its way to the start barrier of this rank.
    """
    spec = read_spec(os.fsencode(directory))
    lease = Lease(**spec["lease"]) if "lease" in spec else None
    if _lapsed(lease):
        child.give_up()
        _say(f"later {LAPSED}")
        return
    try:
        # While the child goes to the start barrier.
        readers, ending = readers_of(directory, spec), ExitFile(directory)
    except Exception as error:
        refused = child.prepared()
        child.give_up()
        # An OSError here is not the job's fault.
        later = isinstance(error, OSError) and not refused
        _say(f"{'later' if later else 'refused'} {refused or one_line(error)}")
        return
    refused = child.prepared()
    _say(f"refused {refused}" if refused else "prepared")
    if refused or os.read(0, _CHUNK) != b"go\n" or not _claimed(directory, child, lease):
        child.give_up()
        ending.give_up()
        return
    lapsed = _lapsed(lease)
    refused = LAPSED if lapsed else child.release()
    if refused:
        child.give_up()
        ending.write(None, refused, lapsed)
        if not _say(f"refused {refused}"):
            ending.sync()
        return
    guard = Guard(child, readers)
    if lease is not None:
        guard.heed(lease)
    _say("started")
    status = guard.wait()
    # Before the end is reported, because the service then reads it.
    page.leave(os.path.join(directory, "progress"))
    ending.write(status, lapsed=guard.lapsed)
    if not _say("ended"):
        ending.sync()


def rehearse(directory: str) -> None:
    """Perform once, with the files of a rank that is never started, the steps a rank waits for."""
    with contextlib.suppress(OSError, ValueError):
        read_spec(os.fsencode(directory))
        OutputLog(os.path.join(directory, "log"), 1, 1).close()
        claim(directory, {"at_s": boot_s()}, lasting=False)
        ExitFile(directory).write(0)


def _lapsed(lease: Lease | None) -> bool:
    """Return whether a rank must not be started because its lease has lapsed."""
    if lease is None:
        return False
    lease.look()
    return lease.lapsed


def _claimed(directory: str, child: Child, lease: Lease | None) -> bool:
    try:
        # Without a lease, the journal on this machine already has the start on the disk.
        if claim(directory, {**child.identity, "at_s": boot_s()}, lasting=lease is not None):
            return True
        _say("taken")
    except OSError as error:
        _say(f"later {one_line(error)}")
    return False


def _say(text: str) -> bool:
    """Report to the service; return False if it is gone."""
    try:
        os.write(1, f"{text}\n".encode(errors="replace"))
    except OSError:
        return False
    return True


class Guard:
    """Waits for a rank's process and all its descendants, and copies their output.

    Attributes
    ----------
    lapsed : bool
        Whether the rank was ended because its lease lapsed.
    """

    def __init__(self, child: Child, readers: list[Readers]) -> None:
        self._pid = child.pid
        # Without a file of its own, standard error goes with standard output.
        self._outputs = list(zip(child.outputs, readers, strict=False))
        self._status: int | None = None
        self._alone = False
        self._asked = self._killing = False
        self._linger_until: float | None = None
        self.lapsed = False
        self._woken = _wake_on_signals(self._on_signal)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        for output, _ in self._outputs:
            self._poll.register(output, select.POLLIN)

    def wait(self) -> int:
        """Return the exit status, negative for a signal, once no process of the rank is left."""
        # Check before sleeping: a process that ended before signals were watched woke nothing.
        while True:
            self._copy_output()
            self._execute_commands()
            self._reap()
            if self._alone:
                break
            self._sleep()
        self._copy_output()
        assert self._status is not None
        return self._status

    def heed(self, lease: Lease) -> None:
        """End the rank once its lease has lapsed: ask, and kill some seconds later.

        This runs in a separate thread, so that a disk that blocks ``wait`` does not delay it. If
        the lapse is noticed late, less time passes until the kill.
        """
        try:
            parts = lease, Alarm(), LeaseReader(lease.look)
            threading.Thread(target=self._end_after, args=parts, daemon=True).start()
        except (OSError, RuntimeError):
            # A rank that could not be ended in time must not run at all.
            traceback.print_exc()
            self.lapsed = self._killing = True

    def _end_after(self, lease: Lease, alarm: Alarm, reader: LeaseReader) -> None:
        lease.outlast(alarm, reader)
        if self._status is None:
            self.lapsed = True
            self._ask()
        alarm.sleep_until(lease.deadline_s + lease.kill_s)
        while True:
            self._signal_all(signal.SIGKILL)
            time.sleep(_SWEEP_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._asked |= number == signal.SIGTERM
        self._killing |= number == signal.SIGQUIT

    def _sleep(self) -> None:
        sweeping = self._killing or self._status is not None
        self._poll.poll(_SWEEP_S * 1000 if sweeping else None)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)

    def _copy_output(self) -> None:
        for output, readers in self._outputs:
            # Bounded, so that a job that prints without end can still be stopped.
            for _ in range(64):
                try:
                    data = os.read(output, _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(output)
                    break
                for read in list(readers):
                    _hand(read, data, readers)

    def _execute_commands(self) -> None:
        if self._asked and self._status is None:
            self._ask()
            self._asked = False
        if self._killing:
            self._signal_all(signal.SIGKILL)
        elif self._status is not None:
            self._clear_up()

    def _ask(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGTERM)
        # Stopped processes do not handle SIGTERM, and all processes of a paused job are stopped.
        self._signal_all(signal.SIGCONT)

    def _clear_up(self) -> None:
        """End the processes that outlive the rank's own process."""
        now = time.monotonic()
        if self._linger_until is None:
            self._linger_until = now + LINGER_S
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)
        elif now >= self._linger_until:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        # Processes that cannot be read now are tried again in the next sweep.
        with contextlib.suppress(OSError):
            for stat in descendants(os.getpid()):
                send(stat.pid, stat.started, number)

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == self._pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            self._alone = True


def _hand(read: Callable[[bytes], object], data: bytes, readers: Readers) -> None:
    """Pass output to a reader; remove a reader that fails, without affecting the job."""
    try:
        read(data)
    except Exception:
        readers.remove(read)
        traceback.print_exc()


def _wake_on_signals(react: Callable[[int, FrameType | None], None]) -> int:
    """Have signals end a poll; return the descriptor that they make readable."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, react)
    return woken
