"""The environment with which a job's progress is counted, and the reading of its progress."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.progress_hook.dovetail_progress import (
    LATENCIES_SIZE,
    SIZE,
    VARIABLE,
    decode,
    decode_latencies,
)
from dovetail.executor.pools.runs.files import RankFiles
from dovetail.executor.pools.runs.processes import ProcessId
from dovetail.executor.pools.shim.page import NUMBER
from dovetail.executor.system.clock import boot_s

HOOK_DIRECTORY: Final = str(Path(__file__).parents[1] / "progress_hook")
"""The folder that must come first on the module path (``PYTHONPATH``) of a job."""

PAGE_BYTES: Final = SIZE + LATENCIES_SIZE
"""The size of a rank's progress page."""

_TRIES: Final = 3


def hook_environment(path: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the iterations of a rank are counted.

    Parameters
    ----------
    path : str or None
        The rank's progress file, which the rank's user can write; None: its output is counted
        instead, and reports of the rank are ignored.
    env : mapping of str to str
        The rank's environment so far.
    """
    before = env.get("PYTHONPATH")
    paths = HOOK_DIRECTORY if not before else f"{HOOK_DIRECTORY}{os.pathsep}{before}"
    return {"PYTHONPATH": paths} if path is None else {"PYTHONPATH": paths, VARIABLE: path}


def read_progress(path: str) -> Progress | None:
    """Return the progress that a rank has written, or None if there is nothing reliable.

    Only plain files are read, and a count from the future is ignored.
    """
    return _progress(lambda: _content(path))


def rank_progress(files: RankFiles, shim: ProcessId | None) -> Progress | None:
    """Return the progress that a rank has written, now or before its end, or None.

    While its shim lives, the progress is in a page of memory of the shim, afterwards in a file.
    """
    if shim is not None:
        found = _progress(lambda: _page(shim))
        if found is not None:
            return found
    return read_progress(str(files.progress))


def _progress(read: Callable[[], bytes]) -> Progress | None:
    for _ in range(_TRIES):
        content = read()
        if not content.strip(b"\0"):
            return None
        found, latencies = decode(content[:SIZE]), decode_latencies(content[SIZE:])
        if found is not None and latencies is not None:
            counts = tuple((bucket, count) for bucket, count in enumerate(latencies) if count)
            progress = Progress(*found, counts)
            return progress if progress.at_s <= boot_s() else None
    return None


def _page(shim: ProcessId) -> bytes:
    """Return the page that a shim holds; empty if the shim has ended."""
    try:
        page = os.open(f"/proc/{shim.pid}/fd/{NUMBER}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # Its PID may have been reused.
        mine = shim.alive and os.fstat(page).st_size == PAGE_BYTES
        return os.pread(page, PAGE_BYTES, 0) if mine else b""
    except OSError:
        return b""
    finally:
        os.close(page)


def _content(path: str) -> bytes:
    """Return the beginning of a plain file; a pipe in its place does not block the reader."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        plain = stat.S_ISREG(os.fstat(fd).st_mode)
        return os.pread(fd, PAGE_BYTES, 0) if plain else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
