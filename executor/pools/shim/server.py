"""The fork server of a pool, which keeps a spare shim ready for the next rank.

It serves one service over the socket that is its standard input, and ends when that closes, for
example because the service ended. The spare shim takes the next request itself; then another one is
forked. Neither holds state of a rank or user, so they are replaced if killed.

A spare shim and its child rehearse with the files of a rank that never starts. A forked process
shares its parent's memory until it writes to it, and Python's reference counting writes to every
object that it uses, so any action takes five times as long the first time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

from . import page
from .durable import write_new
from .guard import guard_rank, rehearse
from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_NAME, EnvironmentEntry, prctl
from .output import ErrorLog
from .rank import Child

_REQUEST_BYTES = 8192
_AGAIN_S = 1.0
_REST_S = 0.01
_REHEARSAL = {
    "command": ["sh"],
    "cwd": "/",
    "env": {"PATH": os.defpath},
    "user": None,
    "descriptors": 1024,
    "cpus": [],
    "cgroups": [],
    "copies": [None],
}


def serve(variable: str, directory: str, page_bytes: int, group: str) -> None:
    """Keep a shim ready for each request, until the service is gone.

    Parameters
    ----------
    variable : str
        The variable by which the processes of a rank are found; its value, as long as the longest
        token, is overwritten in each shim.
    directory : str
        The directory for the files of the rehearsals.
    page_bytes : int
        The size of the page in which a rank reports its progress.
    group : str
        The file by which this process leaves the control group of the service; empty if it stays.
    """
    os.chdir("/")
    if group:
        with contextlib.suppress(OSError), open(group, "w", encoding="ascii") as entry:
            entry.write("0")
    rehearsal = os.path.join(directory, "rehearsal")
    with contextlib.suppress(OSError):
        os.mkdir(rehearsal, 0o700)
    with contextlib.suppress(OSError):
        spec = json.dumps(_REHEARSAL).encode()
        os.close(write_new(os.path.join(rehearsal, "spec.json"), spec))
    _keep_errors(os.path.join(rehearsal, "errors.log"))
    _close_inherited()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    requests, token = socket.socket(fileno=0), EnvironmentEntry(variable)
    # Objects that the garbage collector does not touch are not copied into a shim.
    gc.freeze()
    while not _closes(requests):
        spare, free = os.pipe()
        try:
            if os.fork() == 0:
                os.close(spare)
                page.make(page_bytes)
                _become_shim(requests, free, token, rehearsal)
        except OSError:
            time.sleep(_AGAIN_S)
        os.close(free)
        _closes(requests, spare)
        os.close(spare)
        # Leave the cores to the rank that is being started, unless another waits for a shim.
        select.select([requests], [], [], _REST_S)


def _closes(requests: socket.socket, spare: int | None = None) -> bool:
    """Return whether the service is gone; with a spare, wait until it is or the spare is used."""
    poll = select.poll()
    poll.register(requests, 0)
    if spare is not None:
        poll.register(spare, select.POLLIN)
    woken = dict(poll.poll(0 if spare is None else None))
    return requests.fileno() in woken


def _become_shim(
    requests: socket.socket, free: int, token: EnvironmentEntry, rehearsal: str
) -> NoReturn:
    """Wait for a rank and guard it; the socket received with it is its start barrier."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        child = Child(token, os.fsencode(rehearsal))
        rehearse(rehearsal)
        me = os.pidfd_open(os.getpid())
        # A spare without its child is useless, so it ends and is replaced.
        ready, _, _ = select.select([requests, child.line], [], [])
        if child.line in ready:
            time.sleep(_AGAIN_S)
            os._exit(1)
        request, barriers, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 1)
        if barriers:
            directory, held = request.split(b"\0")
            child.prepare(directory, held)
            _take_streams(os.fsdecode(directory), barriers[0])
            token.write(held)
            # The name that ``ps`` and ``top`` show.
            prctl(PR_SET_NAME, b"shim " + held.partition(b"/")[2])
            # So that it can be awaited and killed, even if its PID is reused later.
            with socket.socket(fileno=barriers[0]) as line:
                socket.send_fds(line, [b"\n"], [me])
            os.close(me)
            # The fork server may be gone, which does not matter to this rank.
            with contextlib.suppress(OSError):
                os.write(free, b"\n")
            guard_rank(os.fsdecode(directory), child)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _keep_errors(path: str) -> None:
    """Let a file take what compiled code of all shims reports, instead of the service's stream."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError:
        file = 1  # /dev/null
    os.dup2(file, 2)


def _take_streams(directory: str, barrier: int) -> None:
    os.dup2(barrier, 0)
    os.dup2(barrier, 1)
    sys.stderr = ErrorLog(os.path.join(directory, "shim.log"))


def _close_inherited() -> None:
    """Close the descriptors inherited from the service: no job may have them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            # The listing's own descriptor is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))
