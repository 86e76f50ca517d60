"""The ledger: what a campaign has found, durable as soon as it is known.

It is evidence in the repository of the output folder: a `Machine` and a `Campaign`, then each
`Result`. A campaign that has grown since, or an equal machine that goes on with it, stands before
the results that follow. Nothing is ever changed, so the ledger says all that happened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from dovetail.executor.measuring.campaign import CAMPAIGN_FORMAT, Campaign, OwnWorkload, Windows
from dovetail.executor.measuring.records import LEDGER_FORMAT, Machine, Result, Seat
from dovetail.instances._record import shown
from dovetail.instances._syntax import parse_json
from dovetail.instances.datasets import REPOSITORY, Evidence, Repository
from dovetail.instances.errors import DovetailError, InputError, source_name
from dovetail.instances.files import FilePath, read_bytes

OLD_LEDGER: Final = "results.jsonl"
"""Where Dovetail 0.1 has kept it; it is taken over as soon as it is gone on with."""

TRIES: Final = 2
"""So often an experiment is tried that fails or is disturbed."""

_EQUAL: Final = ("gpu_model", "stand_in", "driver", "cublas")

_Entry = Machine | Campaign | Result
_KINDS: Final[Mapping[str, type[_Entry]]] = MappingProxyType(
    {"machine": Machine, "campaign": Campaign, "result": Result}
)
_STAMPS: Final = MappingProxyType({LEDGER_FORMAT: "machine", CAMPAIGN_FORMAT: "campaign"})


class LedgerError(DovetailError):
    """A ledger cannot be had; one line says why."""


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
    """

    machines: tuple[Machine, ...]
    campaign: Campaign
    results: tuple[Result, ...]

    @property
    def machine(self) -> Machine:
        """The one on which it was measured last."""
        return self.machines[-1]


class Ledger:
    """The ledger of an output folder, which no other campaign has until it is closed.

    Parameters
    ----------
    folder : str or path
        The output folder, made where there is none.

    Raises
    ------
    LedgerError
        When another process writes this ledger, or the folder cannot be made.
    InputError
        When it is damaged; nothing is changed then.
    """

    def __init__(self, folder: FilePath) -> None:
        self.path = Path(folder) / REPOSITORY
        self._repository = Repository(self.path)
        self._lock = _locked(Path(folder))
        try:
            self._old = () if self.path.exists() else _old_entries(Path(folder))
            self._found = _contents(self._old or _entries(self.path))
        except BaseException:
            self.close()
            raise
        self._machine: Machine | None = None
        self.results: tuple[Result, ...] = self._found.results if self._found else ()

    @property
    def settled(self) -> frozenset[str]:
        """The keys that are not measured again."""
        return settled(self.results)

    def begin(self, machine: Machine, campaign: Campaign) -> None:
        """Go on with a campaign on a machine, or begin it.

        Raises
        ------
        InputError
            When it cannot be written, or is of another campaign or machine; nothing is changed
            then.
        """
        found, entries = self._found, list[_Entry](self._old)
        if found is not None and (differs := _differs(found, machine, campaign)):
            rule = f"is of another {differs}; measure into a folder of its own"
            raise InputError(rule, "", source_name(self.path))
        if found is None or found.machine != machine.replace(
            date=found.machine.date, campaign=found.machine.campaign
        ):
            entries.append(machine)
        if found is None or campaign != found.campaign:
            entries.append(campaign)
        self._write(entries, machine)
        self._old, self._machine = (), machine

    def append(self, result: Result) -> None:
        """Add a result; when this returns, it is on the disk.

        Raises
        ------
        InputError
            When it cannot be written (the disk is full, say). The ledger is as it was then.
        """
        assert self._machine is not None
        self._write([result], self._machine)
        self.results = (*self.results, result)

    def close(self) -> None:
        """Let another process have the ledger."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, entries: Iterable[_Entry], machine: Machine) -> None:
        known = (machine.gpu_model, machine.driver, machine.cublas)
        self._repository.record(
            Evidence(
                type(one).__name__.lower(),
                *known,
                getattr(one, "date", machine.date),
                one.to_data(),
            )
            for one in entries
        )


def read_ledger(folder: FilePath) -> Contents:
    """Read the ledger of an output folder, which a campaign may be writing.

    Raises
    ------
    InputError
        When there is none, or it is damaged.
    """
    path = Path(folder) / REPOSITORY
    old = () if path.exists() else _old_entries(Path(folder))
    found = _contents(old or _entries(path, missing=True))
    if found is None:
        raise InputError("must hold a machine and a campaign", "", source_name(path))
    return found


def has_ledger(folder: FilePath) -> bool:
    """Tell whether there is a ledger in a folder."""
    return any(Path(folder, name).exists() for name in (REPOSITORY, OLD_LEDGER))


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


def by_setting(results: Iterable[Result]) -> dict[tuple[Seat, ...], list[Result]]:
    """Return the sound results of each setting, in whichever stages they stand, as they come."""
    found: dict[tuple[Seat, ...], list[Result]] = defaultdict(list)
    for one in results:
        if one.sound:
            found[one.seats].append(one)
    return found


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
    text = json.dumps([told, campaign.size, campaign.seed, windows], ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def today() -> str:
    """Return the moment as results have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# What may go on with a ledger.


def _differs(found: Contents, machine: Machine, campaign: Campaign) -> str:
    """Say why another machine or campaign may not go on with a ledger; empty where it may."""
    for field in _EQUAL:
        was, now = getattr(found.machine, field), getattr(machine, field)
        if was != now:
            return f"machine: {field} was {shown(was)}, is {shown(now)}"
    old = found.campaign
    for field in ("size", "seed", "windows"):
        was, now = getattr(old, field), getattr(campaign, field)
        if isinstance(was, Windows) and was != now:
            inner = next(k for k in type(was).model_fields if getattr(was, k) != getattr(now, k))
            field, was, now = f"{field}.{inner}", getattr(was, inner), getattr(now, inner)
        if was != now:
            return f"campaign: {field} was {shown(was)}, is {shown(now)}"
    if old.names != campaign.names:
        return "campaign: the workloads are not the same"
    if machine.fingerprint != found.machine.fingerprint:
        return "campaign: the program of an own workload has changed"
    for at, stage in enumerate(old.stages):
        if at >= len(campaign.stages):
            return f"campaign: stages[{at}] is gone"
        if stage.replace(repeats=1) != campaign.stages[at].replace(repeats=1):
            return f"campaign: stages[{at}] has changed (append a stage instead)"
    return ""


# The folder and what is in it.


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the folder's lock, which goes with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise LedgerError(f"{source_name(folder)}: cannot be opened: {reason}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LedgerError(f"{source_name(folder)}: another campaign is writing it") from None
    return lock


def _contents(entries: Sequence[_Entry]) -> Contents | None:
    """Return what entries hold; None where a campaign was stopped before it could have results."""
    machines = tuple(one for one in entries if isinstance(one, Machine))
    campaigns = [one for one in entries if isinstance(one, Campaign)]
    if not machines or not campaigns:
        return None
    results = tuple(one for one in entries if isinstance(one, Result))
    return Contents(machines, campaigns[-1], results)


def _entries(path: Path, missing: bool = False) -> Sequence[_Entry]:
    if not missing and not path.exists():
        return ()
    return [
        _KINDS[one.kind].from_data(one.content, f"{source_name(path)}: {one.kind} {number}")
        for number, one in enumerate(Repository(path).evidence(*_KINDS), 1)
    ]


def _old_entries(folder: Path) -> Sequence[_Entry]:
    """Return what a ledger of Dovetail 0.1 holds; a torn last line is left out."""
    path = folder / OLD_LEDGER
    if not path.exists():
        return ()
    source, lines = source_name(path), read_bytes(path).split(b"\n")[:-1]
    entries: list[_Entry] = []
    for number, line in enumerate(lines, 1):
        at = f"{source}: line {number}"
        try:
            data = parse_json(line.decode())
        except (InputError, UnicodeDecodeError):
            if number == len(lines):
                break
            raise InputError("is damaged: must be JSON", "", at) from None
        stamp = str(data.get("format")) if isinstance(data, dict) else ""
        if number == 1 and stamp != LEDGER_FORMAT:
            raise InputError(f"must be a file of the format {LEDGER_FORMAT}", "", source)
        entries.append(_KINDS[_STAMPS.get(stamp, "result")].from_data(data, at))
    return entries
