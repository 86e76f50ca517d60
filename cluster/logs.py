"""The log of a rank on its node, piece by piece, and its copy on the controller's machine.

The shim of a rank rotates its log: one newest file, and older parts. A part is identified by its
inode, so a reader continues in the part that it has read in part, wherever rotation has moved it.
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

from dovetail.executor.pools.runs.files import write_owner
from dovetail.executor.pools.runs.room import RunRoom
from dovetail.instances._record import Name, Record
from dovetail.instances.errors import DovetailError

PIECE_BYTES: Final = 1 << 20
_KEPT_PARTS: Final = 4
_MOST_PIECES: Final = 256


class LogPlace(Record):
    """A position in the log of a rank: a part (empty: the beginning), and an offset in it."""

    run: Name
    rank: Annotated[StrictInt, Field(ge=0)]
    part: str = ""
    offset: Annotated[StrictInt, Field(ge=0)] = 0


class LogPiece(Record):
    """Bytes of a part of a log.

    Attributes
    ----------
    part : str
        The part; empty: there is no log yet.
    data : bytes
        At most a mebibyte.
    following : str
        The next newer part, if the bytes reach the end of this one; empty: there is none yet.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    part: str = ""
    data: bytes = b""
    following: str = ""


def piece_of(newest: Path, part: str, offset: int) -> LogPiece:
    """Return the piece of a log from a position on, or the oldest one if that part is gone.

    Parameters
    ----------
    newest : path
        The newest file of the log.
    part, offset : str, int
        The position (``LogPlace``).
    """
    parts: list[tuple[str, Path]] = []
    for k in count():
        path = Path(f"{newest}.{k}") if k else newest
        try:
            parts.insert(0, (str(path.lstat().st_ino), path))
        except FileNotFoundError:
            break
    if not parts:
        return LogPiece()
    names = [name for name, _ in parts]
    place = names.index(part) if part in names else 0
    name, path = parts[place]
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        file.seek(offset if name == part else 0)
        data = file.read(PIECE_BYTES)
    is_read = len(data) < PIECE_BYTES
    following = names[place + 1] if is_read and place + 1 < len(parts) else ""
    return LogPiece(part=name, data=data, following=following)


class CopiedLogs:
    """Copies of logs, and the nodes of ranks, which are needed long after a run is over.

    Parameters
    ----------
    directory : path
        The parent of the runs' folders.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._room = RunRoom(directory)
        self._locking = threading.Lock()
        # An entry exists as long as a reader holds its lock.
        self._locks: WeakValueDictionary[tuple[str, int], threading.Lock] = WeakValueDictionary()
        self._lacks: dict[tuple[str, int], str] = {}

    def remember(self, run: str, nodes: Mapping[int, str], uid: int) -> None:
        """Save the node of each rank of a run, and the uid of its user."""
        folder = self._directory / run
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")
        write_owner(folder, uid)

    def node_of(self, run: str, rank: int) -> str | None:
        """Return the node of a rank, or None if it is unknown."""
        with suppress(OSError, ValueError, AttributeError):
            text = (self._directory / run / "nodes.json").read_text(encoding="utf-8")
            node = json.loads(text).get(str(rank))
            return node if isinstance(node, str) else None
        return None

    def update(self, run: str, rank: int, ask: Callable[[LogPlace], LogPiece]) -> str | None:
        """Fetch output written since the last call, and return the path of the copy.

        None if there has been no output.

        Parameters
        ----------
        run, rank : str, int
            The rank.
        ask : callable
            Returns the piece at a position. If it raises, the copy keeps the pieces fetched before.
        """
        newest = self._directory / run / f"rank{rank}" / "log"
        with self._locking:
            lock = self._locks.setdefault((run, rank), threading.Lock())
        with lock:
            try:
                _fetch(newest, LogPlace(run=run, rank=rank), ask)
                self._lacks.pop((run, rank), None)
            except (OSError, DovetailError) as error:
                self._lacks[run, rank] = str(error)
            return str(newest) if newest.exists() else None

    def lack(self, run: str, rank: int) -> str:
        """Return why the last update of a copy has not fetched all; empty if it has."""
        return self._lacks.get((run, rank), "")

    def prune(self, keep_s: float, is_kept: Callable[[str], bool]) -> None:
        """Remove the copies of runs that ended longer ago or take too much of the disk."""
        self._room.make(keep_s, is_kept)
        for run, rank in [*self._lacks]:
            if not (self._directory / run).exists():
                self._lacks.pop((run, rank), None)


def _fetch(newest: Path, begin: LogPlace, ask: Callable[[LogPlace], LogPiece]) -> None:
    # A rank may write faster than its log is fetched; the number of pieces bounds the wait.
    for _ in range(_MOST_PIECES):
        part = _part(newest)
        piece = ask(begin.replace(part=part, offset=newest.stat().st_size if part else 0))
        if not piece.part:
            return
        if piece.part != part:
            _begin(newest, piece.part)
        with open(newest, "ab") as file:
            file.write(piece.data)
        if piece.following:
            _begin(newest, piece.following)
        elif len(piece.data) < PIECE_BYTES:
            return


def _part(newest: Path) -> str:
    """Return the part of the log that is copied to the newest file of the copy."""
    try:
        return Path(f"{newest}.part").read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _begin(newest: Path, part: str) -> None:
    """Begin a new file of the copy."""
    newest.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for k in range(_KEPT_PARTS - 1, 0, -1):
        newer = f"{newest}.{k - 1}" if k > 1 else str(newest)
        with suppress(FileNotFoundError):
            os.rename(newer, f"{newest}.{k}")
    os.close(os.open(newest, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    Path(f"{newest}.part").write_text(part, encoding="ascii")
