"""Limits on the disk space of the runs of a pool: by age, per user and in total, oldest first.

Nearly all of the space is output. The files of an ended run no longer change, so they are measured
only once.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.pools.runs.files import owner_of
from dovetail.instances.errors import InputError

MOST_OF_A_USER: Final = 0.1
"""The fraction of the disk that all runs of one user may take."""

MOST_IN_ALL: Final = 0.3
"""The fraction of the disk that all runs may take."""

MOST_RUNS: Final = 100_000
"""The most ended runs that are kept."""

FREE_BYTES: Final = 64 * 2**20
"""The least free space on the disk: below it, runs are removed."""


class Use(NamedTuple):
    """The disk space of a run.

    ``since_s``: the last time that a file was created or removed there, in seconds since 1970.
    """

    run: str
    user: int
    bytes: int
    since_s: float


class RunRoom:
    """Removes ended runs, and old output of running ones, to stay within the limits.

    Called from one thread at a time.

    Parameters
    ----------
    folder : path
        The folder of the runs, each in a folder named by its id.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: dict[str, Use] = {}

    def make(self, keep_s: float, is_kept: Callable[[str], bool]) -> None:
        """Remove runs that ended more than ``keep_s`` seconds ago, or exceed the limits.

        Parameters
        ----------
        keep_s : float
            Seconds.
        is_kept : callable
            Returns whether a run has not ended: then at most older parts of its output are removed.
        """
        names = set(os.listdir(self._folder)) if self._folder.exists() else set()
        self._ended = {run: use for run, use in self._ended.items() if run in names}
        running = []
        for run in names - self._ended.keys():
            with suppress(OSError, InputError):
                # Asked before its files are measured, as it may end meanwhile.
                kept = is_kept(run)
                use = _use(self._folder, run)
                if kept:
                    running.append(use)
                else:
                    self._ended[run] = use
        before_s = time.time() - keep_s
        for use in [use for use in self._ended.values() if use.since_s < before_s]:
            self._remove(use)
        self._keep_limits(running)

    def _keep_limits(self, running: list[Use]) -> None:
        of_users: defaultdict[int, int] = defaultdict(int)
        for use in (*self._ended.values(), *running):
            of_users[use.user] += use.bytes
        oldest: defaultdict[int, list[Use]] = defaultdict(list)
        for use in sorted(self._ended.values(), key=lambda one: -one.since_s):
            oldest[use.user].append(use)
        parts = {use.user: _older_parts(self._folder, running, use.user) for use in running}
        shared = True
        while (user := self._over(of_users, shared)) is not None:
            if oldest[user]:
                use = oldest[user].pop()
                self._remove(use)
                of_users[user] -= use.bytes
            elif parts.get(user):
                of_users[user] -= _emptied(parts[user].pop())
            else:
                # Only output of running jobs is left, which has its own limits. Other users do not
                # lose runs for it, only what exceeds their own limit.
                del of_users[user]
                shared = False

    def _over(self, of_users: dict[int, int], shared: bool) -> int | None:
        """Return the user with the most disk space if files must be removed, otherwise None.

        ``shared``: whether the limits of all users together apply, too.
        """
        if not of_users:
            return None
        disk = os.statvfs(self._folder)
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        user = max(of_users, key=lambda one: of_users[one])
        together = (
            sum(of_users.values()) > MOST_IN_ALL * size
            or free < min(FREE_BYTES, size / 2)
            or len(self._ended) > MOST_RUNS
        )
        return user if of_users[user] > MOST_OF_A_USER * size or (shared and together) else None

    def _remove(self, use: Use) -> None:
        del self._ended[use.run]
        home = self._folder / use.run
        # A file that a reader has open would keep its space.
        for path in home.glob("rank*/log*"):
            _emptied(path)
        with suppress(OSError):
            shutil.rmtree(home)


def _use(folder: Path, run: str) -> Use:
    home = folder / run
    # The first check may measure tens of thousands of runs.
    found = [home.lstat(), *_below(str(home))]
    since_s = max(each.st_mtime for each in found if stat.S_ISDIR(each.st_mode))
    return Use(run, owner_of(home), sum(each.st_blocks for each in found) * 512, since_s)


def _below(folder: str) -> Iterator[os.stat_result]:
    """Yield the status of every file and folder below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)


def _older_parts(folder: Path, running: Iterable[Use], user: int) -> list[Path]:
    """Return the older parts of the output of a user's running jobs, the oldest last."""
    found = [
        path
        for use in running
        if use.user == user
        for path in (folder / use.run).glob("rank*/log.*")
    ]
    return sorted(found, key=lambda path: -path.stat().st_mtime)


def _emptied(path: Path) -> int:
    """Remove a file, and return how many bytes that frees."""
    with suppress(OSError):
        size = path.lstat().st_blocks * 512
        os.truncate(path, 0)
        path.unlink()
        return size
    return 0
