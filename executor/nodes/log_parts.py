"""The log of a rank on its node, piece by piece, and its copy on the controller's machine.

A log is one newest file and older parts, rotated by the rank's shim. A part is known by its inode
and the time it was made, so a reader goes on in the part that he was in, wherever rotation put it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Final
from weakref import WeakValueDictionary

from pydantic import ConfigDict, Field, StrictInt

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.run_files import remove_old
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import DovetailError

PIECE_BYTES: Final = 1 << 20
_KEPT_PARTS: Final = 4
_MOST_PIECES: Final = 256


class LogPlace(Record):
    """Up to where the log of a rank is known: a part (empty: nothing is), and an offset there."""

    run: Name
    rank: Annotated[StrictInt, Field(ge=0)]
    part: str = ""
    offset: Annotated[StrictInt, Field(ge=0)] = 0


class LogPiece(Record):
    """Bytes of a part of a log, from an offset on.

    Attributes
    ----------
    part : str
        The part that they are of; empty: there is no log yet.
    data : bytes
        At most a mebibyte.
    following : str
        The part that was begun after it, once all of this one is read; empty: there is none yet.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    part: str = ""
    data: bytes = b""
    following: str = ""


def piece_of(newest: Path, part: str, offset: int) -> LogPiece:
    """Return what comes next for who has read a part up to an offset.

    The oldest part that is left where the named one is not.
    """
    parts = _parts(newest)
    if not parts:
        return LogPiece()
    names = [name for name, _ in parts]
    place = names.index(part) if part in names else 0
    name, path = parts[place]
    data = _read(path, offset if name == part else 0)
    is_read = len(data) < PIECE_BYTES
    following = names[place + 1] if is_read and place + 1 < len(parts) else ""
    return LogPiece(part=name, data=data, following=following)


def _parts(newest: Path) -> list[tuple[str, Path]]:
    """Return names and paths of the parts that exist, the oldest first."""
    found = []
    for k in count():
        path = Path(f"{newest}.{k}") if k else newest
        try:
            stat = path.lstat()
        except FileNotFoundError:
            break
        found.append((f"{stat.st_ino}", path))
    return found[::-1]


def _read(path: Path, offset: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        file.seek(offset)
        return file.read(PIECE_BYTES)


class Mirror:
    """A copy of a rank's log, brought up to date whenever somebody asks.

    Parameters
    ----------
    newest : path
        The copy's newest part.
    """

    def __init__(self, newest: Path) -> None:
        self.newest = newest
        self._lock = threading.Lock()

    def update(self, ask: Callable[[str, int], LogPiece]) -> str | None:
        """Fetch what has been written since, and return the copy's path; None: nothing yet.

        Parameters
        ----------
        ask : callable
            Takes a part and an offset, returns the piece there; whatever it raises ends the
            update, and what has been fetched stays.
        """
        with self._lock:
            with suppress(OSError, DovetailError):
                self._fetch(ask)
            return str(self.newest) if self.newest.exists() else None

    def _fetch(self, ask: Callable[[str, int], LogPiece]) -> None:
        # A rank may write faster than can be fetched: who asks is to have an answer all the same.
        for _ in range(_MOST_PIECES):
            part = self._part()
            offset = self.newest.stat().st_size if part else 0
            piece = ask(part, offset)
            if not piece.part:
                return
            if piece.part != part:
                self._begin(piece.part)
            with open(self.newest, "ab") as file:
                file.write(piece.data)
            if piece.following:
                self._begin(piece.following)
            elif len(piece.data) < PIECE_BYTES:
                return

    def _part(self) -> str:
        """Return which part of the log the newest one of the copy is of."""
        try:
            return Path(f"{self.newest}.part").read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""

    def _begin(self, part: str) -> None:
        self.newest.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for k in range(_KEPT_PARTS - 1, 0, -1):
            newer = f"{self.newest}.{k - 1}" if k > 1 else str(self.newest)
            with suppress(FileNotFoundError):
                os.rename(newer, f"{self.newest}.{k}")
        os.close(os.open(self.newest, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        Path(f"{self.newest}.part").write_text(part, encoding="ascii")


class CopiedLogs:
    """Copies of logs, each with where its rank was: logs are asked for long after a run is over.

    Parameters
    ----------
    directory : path
        Has a folder a run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        # For as long as somebody reads.
        self._mirrors: WeakValueDictionary[tuple[str, int], Mirror] = WeakValueDictionary()

    def remember(self, run: Run, nodes: Mapping[int, str]) -> None:
        """Keep on which node each rank of a run is."""
        folder = self._directory / run.id
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")

    def place(self, run: str, rank: int) -> str | None:
        """Return on which node a rank was; None where nothing is known of it."""
        with suppress(OSError, ValueError, AttributeError):
            text = (self._directory / run / "nodes.json").read_text(encoding="utf-8")
            node = json.loads(text).get(str(rank))
            return node if isinstance(node, str) else None
        return None

    def mirror(self, run: str, rank: int) -> Mirror:
        """Return the copy of a rank's log."""
        fresh = Mirror(self._directory / run / f"rank{rank}" / "log")
        with self._lock:
            return self._mirrors.setdefault((run, rank), fresh)

    def prune(self, keep_s: float, is_kept: Callable[[str], bool]) -> None:
        """Remove what is left of runs that ended longer ago."""
        remove_old(self._directory, keep_s, is_kept)
