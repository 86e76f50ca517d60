"""The ledger of a campaign: its results, durable as soon as they are known.

It is evidence in the repository of the output folder: a `Machine` and a `Campaign`, then each
`Result`. A campaign that has grown, or an equal machine that continues it, precedes the results
that follow. Nothing is ever changed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from dovetail.instances._record import shown
from dovetail.instances.datasets.repository import REPOSITORY, EvidenceRecord, Repository
from dovetail.instances.errors import DovetailError, InputError, source_name
from dovetail.instances.reading.contents import FilePath, read_bytes
from dovetail.measuring.campaign import Campaign, Windows, WorkerSeat
from dovetail.measuring.results import ExperimentResult, Machine

TRIES: Final = 2
"""Most attempts at an experiment that fails or is disturbed."""

_MACHINE_FIELDS: Final = ("gpu_model", "stand_in", "driver", "cublas")
_CAMPAIGN_FIELDS: Final = ("size", "seed", *(f"windows.{name}" for name in Windows.model_fields))

_Entry = Machine | Campaign | ExperimentResult
_KINDS: Final[Mapping[str, type[_Entry]]] = MappingProxyType(
    {"machine": Machine, "campaign": Campaign, "result": ExperimentResult}
)
_KIND_OF: Final[Mapping[type[_Entry], str]] = MappingProxyType(
    {made: kind for kind, made in _KINDS.items()}
)
"""Kinds of entries in the repository; names of classes may change, these may not."""


class LedgerError(DovetailError):
    """A ledger cannot be opened for writing."""


class Contents(NamedTuple):
    """Contents of a ledger.

    Attributes
    ----------
    machines : tuple of Machine
        The machines in order of use.
    campaign : Campaign
        Its last version.
    results : tuple of ExperimentResult
        In order of time; a key may have several.
    """

    machines: tuple[Machine, ...]
    campaign: Campaign
    results: tuple[ExperimentResult, ...]

    @property
    def machine(self) -> Machine:
        """The machine that was used last."""
        return self.machines[-1]


class Ledger:
    """The ledger of an output folder, locked against other campaigns until it is closed.

    Parameters
    ----------
    folder : str or path
        The output folder; it is created if need be.

    Raises
    ------
    LedgerError
        If another process writes this ledger, or the folder cannot be created.
    InputError
        If it is damaged; it is not changed then.
    """

    def __init__(self, folder: FilePath) -> None:
        self.path = Path(folder) / REPOSITORY
        self._repository = Repository(self.path)
        self._lock = _locked(Path(folder))
        try:
            self._found = _contents(self.path) if self.path.exists() else None
        except BaseException:
            self.close()
            raise
        self._machine: Machine | None = None
        self.results: tuple[ExperimentResult, ...] = self._found.results if self._found else ()

    def begin(self, machine: Machine, campaign: Campaign) -> None:
        """Begin or continue a campaign on a machine.

        Raises
        ------
        InputError
            If the ledger cannot be written, or belongs to another campaign or machine; it is not
            changed then.
        """
        found, entries = self._found, list[_Entry]()
        if found is not None and (difference := _difference(found, machine, campaign)):
            rule = f"is of another {difference}; measure into another folder"
            raise InputError(rule, "", source_name(self.path))
        if found is None or found.machine != machine.replace(
            date=found.machine.date, campaign=found.machine.campaign
        ):
            entries.append(machine)
        if found is None or campaign != found.campaign:
            entries.append(campaign)
        self._write(entries, machine)
        self._machine = machine

    def append(self, result: ExperimentResult) -> None:
        """Append a result; it is on the disk when this returns.

        Raises
        ------
        InputError
            If it cannot be written (because the disk is full, say); the ledger is unchanged then.
        """
        assert self._machine is not None
        self._write([result], self._machine)
        self.results = (*self.results, result)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, entries: Iterable[_Entry], machine: Machine) -> None:
        conditions = (machine.gpu_model, machine.driver, machine.cublas)
        self._repository.record(
            EvidenceRecord(
                _KIND_OF[type(one)],
                *conditions,
                getattr(one, "date", machine.date),
                one.to_data(),
            )
            for one in entries
        )


def read_ledger(folder: FilePath) -> Contents:
    """Read the ledger of an output folder, also while a campaign writes it.

    Raises
    ------
    InputError
        If there is none, or it is damaged.
    """
    path = Path(folder) / REPOSITORY
    found = _contents(path)
    if found is None:
        raise InputError("must hold a machine and a campaign", "", source_name(path))
    return found


def settled(results: Iterable[ExperimentResult]) -> frozenset[str]:
    """Return the keys of experiments that are not measured again.

    These have a final result, or have failed or been disturbed `TRIES` times. Refused ones are
    tried again, as that is free and the reason may be gone.
    """
    results = tuple(results)
    done = {one.key for one in results if one.final}
    tries = Counter(one.key for one in results if one.status != "refused")
    return frozenset(done.union(key for key, times in tries.items() if times >= TRIES))


def standing(results: Iterable[ExperimentResult]) -> dict[str, ExperimentResult]:
    """Return the valid result of each key: the last sound one, or else the last."""
    latest: dict[str, ExperimentResult] = {}
    for one in results:
        if one.sound or one.key not in latest or not latest[one.key].sound:
            latest[one.key] = one
    return latest


def rate_alone(results: Iterable[ExperimentResult], workload: str) -> float | None:
    """Return the iterations a second of a workload alone, to which loads are relative.

    It is that of the first sound window without a share, so that it does not change later; None if
    there is none.
    """
    alone = (
        one.paces[0].iterations_s
        for one in results
        if one.sound and one.paces and one.seats == (WorkerSeat(workload, one.mode),)
    )
    return next(alone, None)


def by_setting(
    results: Iterable[ExperimentResult],
) -> dict[tuple[WorkerSeat, ...], list[ExperimentResult]]:
    """Return the valid sound results of each setting over all stages, in order of time."""
    found: dict[tuple[WorkerSeat, ...], list[ExperimentResult]] = defaultdict(list)
    for one in sorted(standing(results).values(), key=attrgetter("date")):
        if one.sound:
            found[one.seats].append(one)
    return found


def fingerprint(campaign: Campaign) -> str:
    """Return a SHA-256 in hexadecimal digits over the programs of the user's workloads.

    Their paths are ignored.

    Raises
    ------
    InputError
        If a program cannot be read.
    """
    programs = {
        name: sha256(read_bytes(one.program)).hexdigest() for name, one in campaign.own.items()
    }
    return sha256(json.dumps(programs).encode()).hexdigest()


def today() -> str:
    """Return the time in the format of results."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _difference(found: Contents, machine: Machine, campaign: Campaign) -> str:
    """Return why another machine or campaign may not continue a ledger; empty if it may."""
    old = found.campaign
    for kind, fields, before, after in (
        ("machine", _MACHINE_FIELDS, found.machine, machine),
        ("campaign", _CAMPAIGN_FIELDS, old, campaign),
    ):
        for field in fields:
            was, now = attrgetter(field)(before), attrgetter(field)(after)
            if was != now:
                return f"{kind}: {field} was {shown(was)}, is {shown(now)}"
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


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the folder's lock; the lock ends with the process."""
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


def _contents(path: Path) -> Contents | None:
    """Return the contents of a ledger; None if a campaign was stopped while it began."""
    entries = [
        _KINDS[one.kind].from_data(one.content, f"{source_name(path)}: {one.kind} {number}")
        for number, one in enumerate(Repository(path).evidence(*_KINDS), 1)
    ]
    machines = tuple(one for one in entries if isinstance(one, Machine))
    campaigns = [one for one in entries if isinstance(one, Campaign)]
    if not machines or not campaigns:
        return None
    results = tuple(one for one in entries if isinstance(one, ExperimentResult))
    return Contents(machines, campaigns[-1], results)
