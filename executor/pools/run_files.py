"""The files of a run, below the state directory, from which a later service takes it up.

::

    runs/RUN/run.json              the Run; of a part, also its ranks and where its gang meets
    runs/RUN/port                  its MASTER_PORT, for a gang
    runs/RUN/stop.json             since when it is being stopped
    runs/RUN/owner                 the number of its user
    runs/RUN/rankK/spec.json       what its shim runs (private: it holds the environment)
    runs/RUN/rankK/started.json    which processes it is; linked, so there is never a second
    runs/RUN/rankK/exit.json       how it ended; renamed into place
    runs/RUN/rankK/log, log.1 ...  its output, the newest first
    runs/RUN/rankK/progress        how far it was at its end (shim/page.py has it until then)
    runs/RUN/rankK/shim.log        what went wrong in the shim itself; mostly empty
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.executor.jobs.specs import Run
from dovetail.executor.pools.parts import Part, Rendezvous, whole
from dovetail.executor.pools.processes import Process
from dovetail.executor.pools.shim.durable import claim, sync, write_new
from dovetail.executor.system.clock import boot_s
from dovetail.instances.errors import DovetailError, InputError

KEEP_S = 30 * 86_400.0
"""Seconds for which logs of ended runs are kept, unless asked otherwise."""

ROOM_S = 10.0
"""Seconds between two looks at what the runs of a pool take of the disk."""

PASS_THROUGH = 0o711
"""Others may go through a directory to what is theirs, and see nothing on the way."""

_TICKS_S = os.sysconf("SC_CLK_TCK")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class DamagedError(DovetailError):
    """A file of a run cannot be understood."""


class Started(NamedTuple):
    """What ``started.json`` says.

    ``at_s``: when, in seconds since that boot. Of a rank that may never be started it says why,
    ``never``, and there are no processes; ``later``: nothing is wrong with its job. There are none
    either of a rank that may have been started before the machine was restarted.
    """

    rank: Process | None
    shim: Process | None
    boot: str
    at_s: float = 0.0
    never: str = ""
    later: bool = False


class Ending(NamedTuple):
    """What ``exit.json`` says: an exit status, or why its program could not be run.

    ``lapsed``: the lease of its node ended it, or kept it from being started. ``ended_s``: when
    that was, in seconds since the machine booted.
    """

    status: int | None
    refused: str
    lapsed: bool
    ended_s: float


class StopOrder(NamedTuple):
    """When a run was asked to stop (seconds since that boot), and how long it was given."""

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
        When the id cannot be a file's name.
    """

    def __init__(self, directory: Path, run: str) -> None:
        if not _SAFE_NAME.fullmatch(run):
            raise InputError(f"a run's id must be letters, digits, '.', '_' and '-', got {run!r}")
        self.run = run
        self.directory = directory / "runs" / run
        self.home = home_token(directory)

    def make(self, part: Part) -> None:
        """Make the directories of the part's ranks and say what it is."""
        for path in (self.directory, *(self.rank(rank).directory for rank in part.ranks)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(PASS_THROUGH)
        write_owner(self.directory, part.run.spec.owner.uid)
        _write(self.directory / "run.json", _text(part).encode())

    def read_part(self) -> Part | None:
        """Return what is kept of the run; None where that is not known."""
        try:
            return _part((self.directory / "run.json").read_bytes())
        except (OSError, ValueError, TypeError):
            return None

    @property
    def released(self) -> bool:
        """Whether no specification is left, as before its launch and after its release."""
        return not any(self.directory.glob("rank*/spec.json"))

    def rank(self, number: int) -> RankFiles:
        """Return the files of a rank."""
        return RankFiles(self.directory / f"rank{number}", f"{self.home}/{self.run}/{number}")

    def port(self) -> int | None:
        """Return the port of its gang, None before it has one."""
        try:
            return int((self.directory / "port").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def write_port(self, port: int) -> None:
        """Keep the port of its gang."""
        _replace(self.directory / "port", str(port).encode())

    def stop_order(self) -> StopOrder | None:
        """Return since when it is being stopped; None where it is not."""
        try:
            found = json.loads((self.directory / "stop.json").read_bytes())
            return StopOrder(float(found["asked_s"]), float(found["grace_s"]), str(found["boot"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_stop_order(self, order: StopOrder) -> None:
        """Keep since when it is being stopped."""
        _replace(self.directory / "stop.json", json.dumps(order._asdict()).encode())

    def forget_specs(self) -> None:
        """Remove what is of no use after the run's end, and may hold secrets."""
        for path in [*self.directory.glob("rank*/spec.json"), self.directory / "run.json"]:
            path.unlink(missing_ok=True)


class RankFiles(NamedTuple):
    """The files of one rank, and the token that all its processes hold."""

    directory: Path
    token: str

    @property
    def log(self) -> Path:
        """The newest part of its output."""
        return self.directory / "log"

    @property
    def progress(self) -> Path:
        """How far it was at its end."""
        return self.directory / "progress"

    def write_spec(self, spec: dict[str, Any]) -> None:
        """Say what the shim is to run."""
        _write(self.directory / "spec.json", json.dumps(spec).encode())

    def spec(self) -> dict[str, Any] | None:
        """Return what the shim was to run; None where that is not known."""
        try:
            found = json.loads((self.directory / "spec.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def started(self) -> Started | None:
        """Return which processes it is, None before it has any.

        Raises
        ------
        DamagedError
            When there is a record that cannot be understood.
        """
        found = self._read("started.json")
        if found is None:
            return None
        if "never" in found:
            return Started(None, None, "", 0.0, str(found["never"]), bool(found.get("later")))
        if found.keys() == {"boot"}:
            return Started(None, None, str(found["boot"]))
        try:
            rank = Process(int(found["pid"]), int(found["pid_started"]))
            shim = Process(int(found["shim"]), int(found["shim_started"]))
            at_s = float(found.get("at_s", shim.started / _TICKS_S))
            return Started(rank, shim, str(found["boot"]), at_s)
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{self.directory}/started.json: cannot be understood") from None

    def ending(self) -> Ending | None:
        """Return how it ended, None before it has.

        Raises
        ------
        DamagedError
            When there is a record that cannot be understood.
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
        """See to it that it is never started; return False where it was."""
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
    """Return what tells the processes of one state directory from those of another."""
    return hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]


def write_owner(home: Path, uid: int) -> None:
    """Keep the number of the user of a run in its folder."""
    _write(home / "owner", str(uid).encode())


def owner_of(home: Path) -> int:
    """Return the number of the user of a run; that of this process's user if it is unknown."""
    try:
        with open(home / "owner", "rb") as file:
            return int(file.read(20))
    except (OSError, ValueError):
        return os.geteuid()


def _text(part: Part) -> str:
    text = part.run.model_dump_json()
    if part.whole and part.rendezvous is None:
        return text
    more = {"ranks": part.ranks, "meeting": part.rendezvous}
    return json.dumps({**json.loads(text), **more})


def _part(data: bytes) -> Part:
    found = json.loads(data)
    ranks, rendezvous = found.pop("ranks", None), found.pop("meeting", None)
    run = Run.model_validate_json(json.dumps(found))
    if ranks is None:
        return whole(run)
    return Part(run, tuple(ranks), None if rendezvous is None else Rendezvous(*rendezvous))


def _write(path: Path, data: bytes) -> None:
    os.close(write_new(str(path), data))


def write_lasting(path: Path, data: bytes) -> None:
    """Write a file that is on the disk when this returns."""
    _replace(path, data)
    for each in (path, path.parent):
        sync(str(each))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    _write(temporary, data)
    temporary.replace(path)
