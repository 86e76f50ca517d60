"""What a proof is: what was looked at on a GPU, what was seen, and every word that was spoken."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from dovetail.instances._record import Count, FrozenMapping, Name, NonNegative, Record, Text
from dovetail.instances.datasets.records import Date
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import FilePath, read_data, write_data

PROOF_FORMAT: Final = "dovetail-proof/1"

Verdict = Literal["as taken for granted", "otherwise", "could not be tried"]

Row = Annotated[int, Field(ge=1, le=27)]
"""A line of the table "What the first run has to settle" in docs/hardware.md."""


class Command(Record):
    """One run of the control program, as it was; ``exit`` is absent where it did not end.

    ``pids`` says whose the pids were at that time (``server``, ``client``, ``client 2``).
    """

    at_s: NonNegative
    options: tuple[Text, ...] = ()
    command: Text = ""
    exit: int | None = None
    out: Text = ""
    err: Text = ""
    seconds: NonNegative
    pids: FrozenMapping[Name, int] = Field({})


class Line(Record):
    """A line that a log, a client, NVML or the check itself said."""

    at_s: NonNegative
    source: Name
    text: Text


class Check(Record):
    """What came of one check.

    ``values`` holds what was measured, in plain data; times in the transcripts count from the
    check's begin.
    """

    id: Name
    rows: tuple[Row, ...]
    looked_at: Name
    taken: Name
    seen: Text
    verdict: Verdict
    seconds: NonNegative
    date: Date
    values: FrozenMapping[Name, Any] = Field({})
    commands: tuple[Command, ...] = ()
    lines: tuple[Line, ...] = ()


class Machine(Record):
    """On what the checks ran; checks of another machine or driver do not go into the same proof.

    ``stand_in`` says in words what stands in for a GPU, and is absent where it is one.
    """

    stand_in: Name | None = None
    gpu_model: Name
    uuid: Name
    driver: Name
    control: Name
    compute_mode: Name
    sms: Count | None = None
    memory_mib: NonNegative
    uid: Annotated[int, Field(ge=0)]
    host_cores: Count
    kernel: Name
    dovetail: Name


class Proof(Record):
    """All checks that were made on one GPU with one driver; the file ``proof.json``."""

    format: Literal["dovetail-proof/1"] = PROOF_FORMAT
    machine: Machine
    checks: tuple[Check, ...] = ()

    def with_check(self, check: Check) -> Proof:
        """Return the proof with a check, in place of an earlier one of this id."""
        others = tuple(one for one in self.checks if one.id != check.id)
        return self.replace(checks=(*others, check))


def read_proof(path: FilePath) -> Proof:
    """Read a proof.

    Raises
    ------
    InputError
        When the file cannot be read or breaks a rule of the format.
    """
    return Proof.from_data(read_data(path), source_name(path))


def write_proof(proof: Proof, path: FilePath) -> None:
    """Write a proof, whole or not at all.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    write_data(proof.to_data(), path)


def check_same(proof: Proof, machine: Machine, source: str) -> None:
    """Refuse to go on with the proof of another GPU model, driver or control program.

    Another GPU of the model may go on, as in a campaign.

    Raises
    ------
    InputError
        In one line: what differs.
    """
    for name in ("stand_in", "gpu_model", "driver", "control"):
        before, now = getattr(proof.machine, name), getattr(machine, name)
        if before != now:
            raise InputError(f"is of {before!r}, here is {now!r}", f"machine.{name}", source)
