"""Slurm's commands, run with a time limit, and the needed parts of their output."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final, NamedTuple

from dovetail.instances.errors import DovetailError
from dovetail.instances.importers._hostlist import hostnames

COMMAND_S: Final = 15.0
"""Seconds that a command may take; without ``slurmctld``, some wait for minutes."""

_OVER: Final = "Invalid job id"
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class SlurmError(DovetailError):
    """A Slurm command failed; the message is one line."""


def slurm(*command: str, within_s: float = COMMAND_S) -> str:
    """Run a Slurm command and return its output.

    Raises
    ------
    SlurmError
        When it is not installed, does not end in time, or fails.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not ended within {within_s:g} s") from None
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"it ended with status {done.returncode}"
        raise SlurmError(f"{command[0]}: {why}")
    return done.stdout


class Allocation(NamedTuple):
    """A Slurm job that is not over.

    Attributes
    ----------
    state, reason : str
        ``RUNNING``, ``PENDING``, ..., and the reason.
    limit_s, left_s : float or None
        Its time limit and the time left, in seconds; None without a limit.
    nodes : tuple of str
        Its current nodes.
    """

    state: str
    reason: str
    limit_s: float | None
    left_s: float | None
    nodes: tuple[str, ...]

    @property
    def running(self) -> bool:
        """Whether it has its nodes."""
        return self.state == "RUNNING"

    @property
    def ending(self) -> bool:
        """Whether its processes are being ended; no other job can use its nodes yet."""
        return self.state == "COMPLETING"


def allocation(job: str, within_s: float = COMMAND_S) -> Allocation | None:
    """Return a Slurm job, or None once it is over.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    try:
        lines = slurm(
            *("squeue", "-h", "-j", job, "-o", "%T|%l|%L|%N|%r"), within_s=within_s
        ).splitlines()
    except SlurmError as error:
        if _OVER in str(error):
            return None
        raise
    if not lines:
        return None
    # The reason comes last, because it may contain any text of an administrator.
    fields = lines[0].split("|", 4)
    if len(fields) < 5:
        raise SlurmError(f"squeue printed {lines[0]!r}")
    state, limit, left, nodes, reason = fields
    return Allocation(state, reason, seconds(limit), seconds(left), hostnames(nodes))


def seconds(text: str) -> float | None:
    """Return the seconds of a Slurm time (``D-HH:MM:SS`` or a part), or None if it is not one."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def controller() -> str:
    """Return the address of ``slurmctld``.

    Raises
    ------
    SlurmError
        When Slurm does not answer.
    """
    text = slurm("scontrol", "show", "config")
    found = re.search(r"^SlurmctldHost\S* *= *(\S+?)(?:\((\S+)\))?$", text, re.MULTILINE)
    if found is None:
        raise SlurmError("scontrol show config names no SlurmctldHost")
    return found[2] or found[1]
