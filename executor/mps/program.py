"""The installed control program of MPS: its version, and which modes it has.

The program is asked by giving it an option together with ``-h``, which starts nothing: a program
without the option rejects it. 535 fails, 580 prints ``Unrecognized option`` and exits with 0
(``tests/executor/mps/transcripts``). The options are those of NVIDIA's MPS documentation (release
615, September 2026): ``--static-partitioning`` of "Legacy MPS v2 Interface" and ``--protocol`` of
"MPS v3 Interface".
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.mps.processes import LOG_DIRECTORY, PIPE_DIRECTORY

_ANSWER_S: Final = 5.0
_NOWHERE: Final = "/nonexistent/dovetail"
"""A pipe directory without a daemon: a program that does not know an option looks for one."""

_VERSION: Final = re.compile(r"\b(\d{3}\.\d{2,3}(?:\.\d{2,3})?)\b")
_VERSION_TEXT: Final = re.compile(rb"\0(\d{3}\.\d{2,3}(?:\.\d{2,3})?)\0")
_REJECTED: Final = ("Unrecognized option", "Cannot find MPS control daemon process")
_STATIC: Final = re.compile(r"static-partitioning")
_NAMESPACES: Final = re.compile(r"^\s*namespace\b", re.MULTILINE)


class ControlModes(NamedTuple):
    """The modes of a control program; None if it does not tell.

    Attributes
    ----------
    static : bool or None
        Whether it has static SM partitions (``-S``).
    namespaces : bool or None
        Whether it has the interface of MPS v3 (``-p 3``), with named servers and namespaces.
    """

    static: bool | None
    namespaces: bool | None


def modes(path: str) -> ControlModes:
    """Return the modes that a control program has, without starting a daemon."""
    return ControlModes(
        _accepts(path, ("-S",), _STATIC),
        _accepts(path, ("-p", "3"), _NAMESPACES),
    )


def version(path: str) -> str | None:
    """Return the version of a control program, from ``-v`` or otherwise from its file."""
    said = _VERSION.search(_said(path, ("-v",)) or "")
    if said is not None:
        return said[1]
    try:
        embedded = set(_VERSION_TEXT.findall(Path(path).read_bytes()))
    except OSError:
        return None
    return bytes(embedded.pop()).decode() if len(embedded) == 1 else None


def _accepts(path: str, options: Sequence[str], word: re.Pattern[str]) -> bool | None:
    said = _said(path, (*options, "-h"))
    if said is None:
        return None
    if any(line in said for line in _REJECTED):
        return False
    return True if word.search(said) else None


def _said(path: str, options: Sequence[str]) -> str | None:
    """Return what a run of the program prints, or None if it cannot be run."""
    try:
        done = subprocess.run(
            [path, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
            env={"PATH": os.defpath, PIPE_DIRECTORY: _NOWHERE, LOG_DIRECTORY: _NOWHERE},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr
