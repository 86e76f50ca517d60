"""The ledger: what a campaign has found, one line of JSON each, durable as soon as it is known.

``results.jsonl`` begins with the `Machine` and the `Campaign`; each further line is a `Result`.
A campaign that has grown since, or an equal machine that goes on with it, is a line of its own
before the results that follow. Nothing is ever changed, so the file says all that happened; what
a kill or a power cut left of the last line is cut off when a campaign goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from dovetail.executor.measuring.campaign import CAMPAIGN_FORMAT, Campaign, OwnWorkload
from dovetail.executor.measuring.records import LEDGER_FORMAT, Machine, Result
from dovetail.instances._record import Record, shown
from dovetail.instances._syntax import parse_json
from dovetail.instances.errors import DovetailError, InputError, source_name
from dovetail.instances.files import FilePath, read_bytes

LEDGER: Final = "results.jsonl"

TRIES: Final = 2
"""So often an experiment is tried that fails or is disturbed."""

_EQUAL: Final = ("gpu_model", "stand_in", "driver", "cublas")


class LedgerError(DovetailError):
    """A ledger cannot be written; one line says why."""


class Contents(NamedTuple):
    """What a ledger holds.

    Attributes
    ----------
    machines : tuple of Machine
        On which it was measured; more than one where an equal machine went on.
    campaign : Campaign
        As it was last: it may have grown.
    results : tuple of Result
        In the order of time. Of one key there may be several.
    torn : bool
        Whether the last line was not whole; it is left out.
    """

    machines: tuple[Machine, ...]
    campaign: Campaign
    results: tuple[Result, ...]
    torn: bool = False

    @property
    def machine(self) -> Machine:
        """The one on which it was measured last."""
        return self.machines[-1]


class Ledger:
    """The ledger of an output folder, which nobody else has until it is closed.

    Parameters
    ----------
    folder : str or path
        The output folder, made where there is none.

    Raises
    ------
    LedgerError
        When another process writes this ledger, or it cannot be written.
    InputError
        When it is damaged; nothing is changed then.
    """

    def __init__(self, folder: FilePath) -> None:
        self.path = Path(folder) / LEDGER
        self._file = _locked(self.path)
        try:
            self._found, self._size, self.torn = _read(self.path)
        except BaseException:
            self.close()
            raise
        self._results = list(self._found.results if self._found else ())

    @property
    def results(self) -> tuple[Result, ...]:
        """All that was found, in the order of time."""
        return tuple(self._results)

    @property
    def settled(self) -> frozenset[str]:
        """The keys that are not measured again."""
        return settled(self._results)

    def begin(self, machine: Machine, campaign: Campaign) -> None:
        """Go on with a campaign on a machine, or begin it.

        Raises
        ------
        LedgerError
            When it cannot be written.
        InputError
            When the ledger is of another campaign or machine; nothing is changed then.
        """
        found = self._found
        if found is not None:
            _refuse_other(found, machine, campaign, self.path)
        if found is None or not _the_same(machine, found.machine):
            self._write(machine)
        if found is None or campaign != found.campaign:
            self._write(campaign)

    def append(self, result: Result) -> None:
        """Add a result; when this returns, it is on the disk.

        Raises
        ------
        LedgerError
            When it cannot be written (the disk is full, say). The ledger is as it was then.
        """
        self._write(result)
        self._results.append(result)

    def close(self) -> None:
        """Let another process have the ledger."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: Record) -> None:
        line = f"{_json(record.to_data())}\n".encode()
        try:
            os.ftruncate(self._file, self._size)
            written = os.pwrite(self._file, line, self._size)
            os.fsync(self._file)
        except OSError as error:
            raise _unusable(self.path, "written", error) from None
        if written < len(line):
            raise LedgerError(f"{source_name(self.path)}: cannot be written: the disk is full")
        self._size += len(line)


def read_ledger(folder: FilePath) -> Contents:
    """Read the ledger of an output folder, which a campaign may be writing.

    Raises
    ------
    InputError
        When there is none, or it is damaged.
    """
    path = Path(folder) / LEDGER
    found, _, torn = _read(path)
    if found is None:
        raise InputError("must hold a machine and a campaign, is cut short", "", source_name(path))
    return found._replace(torn=torn)


def settled(results: Iterable[Result]) -> frozenset[str]:
    """Return the keys of experiments that are not measured again.

    These are the sound ones and those out of memory, and what failed or was disturbed `TRIES`
    times. What was refused is asked for again: that costs nothing, and the reason may be gone.
    """
    results = tuple(results)
    done = {one.key for one in results if one.sound or one.status == "out-of-memory"}
    tried = [one.key for one in results if one.status != "refused"]
    return frozenset(done.union(key for key in tried if tried.count(key) >= TRIES))


def standing(results: Iterable[Result]) -> dict[str, Result]:
    """Return the result that counts of each key: the last sound one, else the last."""
    latest: dict[str, Result] = {}
    for one in results:
        if one.sound or one.key not in latest or not latest[one.key].sound:
            latest[one.key] = one
    return latest


def fingerprint(campaign: Campaign) -> str:
    """Return a SHA-256 over what changes every number of a campaign, in hexadecimal digits.

    That are the workloads with the text of the user's own programs, their size, the seed and the
    windows. The name does not count, nor where programs lie; stages are compared by themselves,
    because a campaign may gain some.

    Raises
    ------
    InputError
        When a program cannot be read.
    """
    told = [
        [one.name, sha256(read_bytes(one.program)).hexdigest()]
        if isinstance(one, OwnWorkload)
        else one
        for one in campaign.workloads
    ]
    windows = campaign.windows.model_dump(mode="json")
    text = _json([told, campaign.size, campaign.seed, windows])
    return sha256(text.encode()).hexdigest()


def today() -> str:
    """Return the moment as results have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# What may go on with a ledger.


def _the_same(machine: Machine, other: Machine) -> bool:
    """Tell whether nothing differs but when, and what the campaign is called."""
    return machine.replace(date=other.date, campaign=other.campaign) == other


def _refuse_other(found: Contents, machine: Machine, campaign: Campaign, path: Path) -> None:
    differs = _other_machine(found.machine, machine) or _other_campaign(found, machine, campaign)
    if differs:
        raise InputError(f"{differs}; measure into a folder of its own", "", source_name(path))


def _other_machine(old: Machine, new: Machine) -> str:
    for field in _EQUAL:
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            return f"is of another machine: {field} was {shown(was)}, is {shown(now)}"
    return ""


def _other_campaign(found: Contents, machine: Machine, campaign: Campaign) -> str:
    old = found.campaign
    for field in ("size", "seed", "windows", "names"):
        was, now = getattr(old, field), getattr(campaign, field)
        if was != now:
            return f"is of another campaign: {_changed(field, was, now)}"
    if machine.fingerprint != found.machine.fingerprint:
        return "is of another campaign: the program of an own workload has changed"
    for at, stage in enumerate(old.stages):
        if at >= len(campaign.stages):
            return f"is of another campaign: stages[{at}] is gone"
        new = campaign.stages[at]
        if stage.replace(repeats=1) != new.replace(repeats=1):
            return f"is of another campaign: stages[{at}] has changed (append a stage instead)"
    return ""


def _changed(field: str, was: object, now: object) -> str:
    if isinstance(was, Record):
        inner = next(n for n in type(was).model_fields if getattr(was, n) != getattr(now, n))
        return _changed(f"{field}.{inner}", getattr(was, inner), getattr(now, inner))
    if isinstance(was, tuple):
        return "the workloads are not the same"
    return f"{field} was {shown(was)}, is {shown(now)}"


# The file and its lock.


def _locked(path: Path) -> int:
    """Open the file, or make it, with its lock held; the lock goes with the process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unusable(path, "opened", error) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise LedgerError(f"{source_name(path)}: another campaign is writing it") from None
    return file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, done: str, error: OSError) -> LedgerError:
    reason = str(error.strerror).lower()
    return LedgerError(f"{source_name(path)}: cannot be {done}: {reason}")


def _read(path: Path) -> tuple[Contents | None, int, bool]:
    """Return what the whole lines hold, their bytes, and whether there is more.

    It is None, of no bytes, where a campaign was stopped before it could have had results.
    """
    content = read_bytes(path)
    _refuse_foreign(content, path)
    lines = content.split(b"\n")[:-1]
    machines: list[Machine] = []
    campaign: Campaign | None = None
    results: list[Result] = []
    size = 0
    for number, line in enumerate(lines, 1):
        source = f"{source_name(path)}: line {number}"
        data = _parsed(line, source, last=number == len(lines))
        if data is None:
            break
        size += len(line) + 1
        match data:
            case {"format": str(stamp)} if stamp == LEDGER_FORMAT:
                machines.append(Machine.from_data(data, source))
            case {"format": str(stamp)} if stamp == CAMPAIGN_FORMAT:
                campaign = Campaign.from_data(data, source)
            case _:
                results.append(Result.from_data(data, source))
    if campaign is None:
        return None, 0, bool(content)
    return Contents(tuple(machines), campaign, tuple(results)), size, len(content) > size


def _refuse_foreign(content: bytes, path: Path) -> None:
    """Refuse a file that is no ledger, before anything of it could be taken for torn."""
    start = _json({"format": LEDGER_FORMAT})[:-1].encode()
    if content[: len(start)] != start[: len(content)]:
        raise InputError(f"must be a file of the format {LEDGER_FORMAT}", "", source_name(path))


def _parsed(line: bytes, source: str, last: bool) -> object | None:
    """Return the data of a line; None for a last one that a power cut has left half written."""
    try:
        return parse_json(line.decode())
    except (InputError, UnicodeDecodeError):
        if last:
            return None
        raise InputError("is damaged: must be JSON", "", source) from None


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)
