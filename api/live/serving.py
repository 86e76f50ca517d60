"""What runs around a service: signals that end it, the file that names it, the engine compiled."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socketpair
from typing import Final

from dovetail.executor.system.small_files import write_kept
from dovetail.instances._children import module_command
from dovetail.instances.errors import InputError
from dovetail.live.places import SERVICE_FILE

COMPILE_AFTER_S: Final = 10.0
"""Seconds from the start of a service until the matching engine is compiled."""
_LOOK_S: Final = 0.5
_LOWEST_PRIORITY: Final = 19
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOG: Final = logging.getLogger("dovetail.live")


@contextmanager
def compiling_ahead(after_s: float = COMPILE_AFTER_S) -> Iterator[None]:
    """Compile the matching engine while the block runs, so that no large round waits for it.

    A process of low priority compiles it, unless machine code of an earlier run is cached; a
    failure is logged. It starts after ``after_s`` seconds: a service that ends soon compiles
    nothing.
    """
    ending = threading.Event()

    def compiled() -> None:
        if ending.wait(after_s):
            return
        program, quiet = module_command("dovetail.solver.pairing"), subprocess.DEVNULL
        process = subprocess.Popen(program, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE)
        os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        while process.poll() is None and not ending.wait(_LOOK_S):
            pass
        status = process.poll()
        process.kill()
        _, text = process.communicate()
        if status:
            lines = text.decode(errors="replace").strip().splitlines() or [f"status {status}"]
            _LOG.warning("the matching engine is not compiled: %s", lines[-1])

    thread = threading.Thread(target=compiled, name="compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT while the block runs."""
    # Python runs handlers only in this thread, once it is awake; a signal that arrives as it falls
    # asleep, or in another thread, would wait for that. Its number is written immediately.
    reading, writing = socketpair()
    writing.setblocking(False)

    def listen() -> None:
        while number := reading.recv(1):
            if number[0] in _SIGNALS:
                stop()

    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    earlier = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    listening = threading.Thread(target=listen, name="signals", daemon=True)
    listening.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        writing.close()
        listening.join()
        reading.close()


@contextmanager
def announced(directory: Path, socket: Path) -> Iterator[None]:
    """Let clients of a directory find its service while the block runs.

    If its file cannot be written, they still find the service at its default socket.
    """
    note = directory / SERVICE_FILE
    try:
        write_kept({"pid": os.getpid(), "socket": str(socket)}, note)
    except InputError as error:
        _LOG.warning("%s", error)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)
