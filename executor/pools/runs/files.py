"""The part of a run on this node, and its files, from which a later service resumes it.

They are below the state directory.

::

    runs/RUN/run.json              the Run; for a part, also its ranks and where its gang meets
    runs/RUN/port                  its MASTER_PORT, for a gang
    runs/RUN/stop.json             when it was asked to stop, and its grace
    runs/RUN/owner                 the uid of its user, once it is released
    runs/RUN/rankK/spec.json       the command for its shim (private: it has the environment)
    runs/RUN/rankK/started.json    its processes; created exclusively, so a rank starts only once
    runs/RUN/rankK/exit.json       how it ended; renamed into place
    runs/RUN/rankK/log, log.1 ...  its output, the newest first
    runs/RUN/rankK/progress        its progress at its end (until then in shim/page.py)
    runs/RUN/rankK/shim.log        errors of the shim itself, if there are any
    rehearsal/errors.log           what compiled code of the shims reports, of all ranks
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.runs.processes import ProcessId
from dovetail.executor.pools.shim.durable import claim, sync, write_new
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import DovetailError, InputError


class Rendezvous(NamedTuple):
    """Where the ranks of a gang find each other: ``MASTER_ADDR`` and ``MASTER_PORT``."""

    address: str
    port: int


class Part(NamedTuple):
    """The ranks of a run that are kept on this node, with their numbers in the gang.

    Attributes
    ----------
    run : Run
        The run with all its seats, including seats on other nodes.
    ranks : tuple of int
        The ranks kept here, in order.
    rendezvous : Rendezvous or None
        Where the gang meets; None if this node decides it at the launch.
    """

    run: Run
    ranks: tuple[int, ...]
    rendezvous: Rendezvous | None = None

    @property
    def whole(self) -> bool:
        """Whether every rank of the run is kept here."""
        return len(self.ranks) == len(self.run.seats)


def whole(run: Run) -> Part:
    """Return a run as a part that has all its ranks."""
    return Part(run, tuple(range(len(run.seats))))


class PreparedPart(NamedTuple):
    """A part of a run that waits at the start barrier; none of its ranks has run.

    It starts when it is committed, and ends without a trace when it is aborted.

    Attributes
    ----------
    run : str
        The run's id.
    ranks : tuple of int
        The ranks that wait at the start barrier.
    rendezvous : Rendezvous or None
        Where its gang meets, for the other parts; None for a run of one rank.
    """

    run: str
    ranks: tuple[int, ...]
    rendezvous: Rendezvous | None


KEEP_S = 30 * 86_400.0
"""Default number of seconds for which logs of ended runs are kept."""

ROOM_S = 10.0
"""Seconds between two checks of the disk space used by the runs of a pool."""

PASS_THROUGH = 0o711
"""Mode of a directory that other users may pass through, but not list."""

_TICKS_S = os.sysconf("SC_CLK_TCK")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class DamagedError(DovetailError):
    """A file of a run cannot be read."""


class Started(NamedTuple):
    """The content of ``started.json``.

    ``at_s``: the time of the start, in seconds since that boot. A rank that must never be started
    has no processes, but the reason in ``never``, and ``later`` if the job is not at fault. A rank
    that may have been started before the machine rebooted has no processes either.
    """

    rank: ProcessId | None
    shim: ProcessId | None
    boot: str
    at_s: float = 0.0
    never: str = ""
    later: bool = False


class Ending(NamedTuple):
    """The content of ``exit.json``: an exit status, or why the program could not be run.

    ``lapsed``: the lease of its node ended it, or prevented its start. ``ended_s``: the time of the
    end, in seconds since the machine booted.
    """

    status: int | None
    refused: str
    lapsed: bool
    ended_s: float


class StopOrder(NamedTuple):
    """When a run was asked to stop (seconds since that boot), and its grace in seconds."""

    asked_s: float
    grace_s: float
    boot: str


class RunFiles:
    """The files of one run.

    Parameters
    ----------
    directory : path
        The state directory.
    run : str
        The run's id.

    Raises
    ------
    InputError
        When the id is not a valid file name.
    """

    def __init__(self, directory: Path, run: str) -> None:
        if not _SAFE_NAME.fullmatch(run):
            raise InputError(f"a run's id must be letters, digits, '.', '_' and '-', got {run!r}")
        self.run = run
        self.directory = directory / "runs" / run
        self.home = home_token(directory)

    def make(self, part: Part) -> None:
        """Create the directories of the part's ranks."""
        for path in (self.directory, *(self.rank(rank).directory for rank in part.ranks)):
            try:
                os.mkdir(path, PASS_THROUGH)
            except FileExistsError:
                pass
            except FileNotFoundError:
                path.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(os.stat(path).st_mode) != PASS_THROUGH:
                os.chmod(path, PASS_THROUGH)

    def name(self, part: Part) -> None:
        """Write the part to ``run.json``, by which a later service finds it."""
        _write(self.directory / "run.json", _text(part).encode())

    def read_part(self) -> Part | None:
        """Return the part of the run on this node, or None if it is unknown."""
        try:
            return _part((self.directory / "run.json").read_bytes())
        except (OSError, ValueError, TypeError):
            return None

    @property
    def released(self) -> bool:
        """Whether no specification exists, as before its launch and after its release."""
        return not any(self.directory.glob("rank*/spec.json"))

    def rank(self, number: int) -> RankFiles:
        """Return the files of a rank."""
        return RankFiles(self.directory / f"rank{number}", f"{self.home}/{self.run}/{number}")

    def port(self) -> int | None:
        """Return the port of its gang, or None before it has one."""
        try:
            return int((self.directory / "port").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def write_port(self, port: int) -> None:
        """Save the port of its gang."""
        _replace(self.directory / "port", str(port).encode())

    def stop_order(self) -> StopOrder | None:
        """Return the order to stop it, or None if there is none."""
        try:
            found = json.loads((self.directory / "stop.json").read_bytes())
            return StopOrder(float(found["asked_s"]), float(found["grace_s"]), str(found["boot"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_stop_order(self, order: StopOrder) -> None:
        """Save the order to stop it."""
        _replace(self.directory / "stop.json", json.dumps(order._asdict()).encode())

    def forget_specs(self, part: Part) -> None:
        """Remove what is useless after the part's end and may contain secrets.

        Only the uid of its user is left of ``run.json``; a full disk has room for that, too.
        """
        for rank in part.ranks:
            with suppress(FileNotFoundError):
                os.unlink(self.directory / f"rank{rank}" / "spec.json")
        uid, known = str(part.run.spec.owner.uid).encode(), self.directory / "run.json"
        try:
            file = os.open(known, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                # `owner_of` finds it if this process ends before the next step.
                os.pwrite(file, uid + b"\n", 0)
                os.ftruncate(file, len(uid))
            finally:
                os.close(file)
            os.rename(known, self.directory / "owner")
        except OSError:
            known.unlink(missing_ok=True)


class RankFiles(NamedTuple):
    """The files of one rank, and the token of all its processes."""

    directory: Path
    token: str

    @property
    def log(self) -> Path:
        """The newest part of its output."""
        return self.directory / "log"

    @property
    def progress(self) -> Path:
        """Its progress at its end."""
        return self.directory / "progress"

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Write the specification for the shim."""
        _write(self.directory / "spec.json", json.dumps(spec).encode())

    def spec(self) -> dict[str, Any] | None:
        """Return the specification for the shim, or None if it is unknown."""
        try:
            found = json.loads((self.directory / "spec.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def started(self) -> Started | None:
        """Return the record of its start, or None before its start.

        Raises
        ------
        DamagedError
            When there is a record that cannot be read.
        """
        found = self._read("started.json")
        if found is None:
            return None
        if "never" in found:
            return Started(None, None, "", 0.0, str(found["never"]), bool(found.get("later")))
        if found.keys() == {"boot"}:
            return Started(None, None, str(found["boot"]))
        try:
            rank = ProcessId(int(found["pid"]), int(found["pid_started"]))
            shim = ProcessId(int(found["shim"]), int(found["shim_started"]))
            at_s = float(found.get("at_s", shim.started / _TICKS_S))
            return Started(rank, shim, str(found["boot"]), at_s)
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{self.directory}/started.json: cannot be understood") from None

    def ending(self) -> Ending | None:
        """Return how it ended, or None before its end.

        Raises
        ------
        DamagedError
            When there is a record that cannot be read.
        """
        found = self._read("exit.json")
        if found is None:
            return None
        try:
            status = found["status"]
            known = None if status is None else int(status)
            age_s = max(0.0, time.time() - (self.directory / "exit.json").stat().st_mtime)
            lapsed = bool(found.get("lapsed"))
            return Ending(known, str(found["refused"]), lapsed, boot_s() - age_s)
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{self.directory}/exit.json: cannot be understood") from None

    def never_start(self, reason: str, later: bool = False) -> bool:
        """Ensure that it is never started; return False if it was started already."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return claim(str(self.directory), {"never": reason, "later": later})

    def assume_started(self, boot: str) -> None:
        """Mark it as started in an earlier boot, unless it has a trace."""
        self.directory.mkdir(parents=True, exist_ok=True)
        claim(str(self.directory), {"boot": boot})

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DamagedError(f"{path}: cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise DamagedError(f"{path}: cannot be understood")
        return found


@cache
def home_token(directory: Path) -> str:
    """Return a token that identifies the processes of a state directory."""
    return hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]


def write_owner(home: Path, uid: int) -> None:
    """Save the uid of a run's user in the run's folder."""
    _write(home / "owner", str(uid).encode())


def owner_of(home: Path) -> int:
    """Return the uid of a run's user, or this process's uid if it is unknown."""
    with suppress(OSError, ValueError), open(home / "owner", "rb") as file:
        return int(file.read(20))
    with suppress(OSError, ValueError, TypeError, KeyError):
        # It is not released, or its release was cut short.
        known = (home / "run.json").read_bytes()
        if number := re.match(rb"\d+$|\d+\n", known):
            return int(number[0])
        return int(json.loads(known)["spec"]["owner"]["uid"])
    return os.geteuid()


def _text(part: Part) -> str:
    text = part.run.model_dump_json()
    if part.whole and part.rendezvous is None:
        return text
    more = {"ranks": part.ranks, "meeting": part.rendezvous}
    return json.dumps({**json.loads(text), **more})


def _part(data: bytes) -> Part:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError("only the uid is left")
    ranks, rendezvous = found.pop("ranks", None), found.pop("meeting", None)
    run = Run.model_validate_json(json.dumps(found))
    if ranks is None:
        return whole(run)
    return Part(run, tuple(ranks), None if rendezvous is None else Rendezvous(*rendezvous))


def _write(path: Path, data: bytes) -> None:
    os.close(write_new(str(path), data))


def write_lasting(path: Path, data: bytes) -> None:
    """Write a file durably: it is on the disk when this returns."""
    _replace(path, data)
    for each in (path, path.parent):
        sync(str(each))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    _write(temporary, data)
    temporary.replace(path)
