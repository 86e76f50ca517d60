"""A proof as rows of docs/hardware.md, and as a transcript that the stand-in for MPS is held to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dovetail.executor.live.first_contact.records import Check, Command, Proof


def markdown(proof: Proof) -> str:
    """Return a proof as a table in Markdown, one line a check, in the order of the proof."""
    machine = proof.machine
    what = f"stand-in, no GPU: {machine.stand_in}" if machine.stand_in else machine.gpu_model
    head = (
        f"{what}, driver {machine.driver}, compute mode {machine.compute_mode}",
        "",
        "| check | row | looked at | taken for granted | seen | verdict | s |",
        "|---|---|---|---|---|---|---|",
    )
    return "\n".join((*head, *map(_row, proof.checks))) + "\n"


def by_row(proof: Proof) -> dict[int, tuple[Check, ...]]:
    """Return the checks that say something of each line of docs/hardware.md."""
    rows = sorted({row for check in proof.checks for row in check.rows})
    return {row: tuple(check for check in proof.checks if row in check.rows) for row in rows}


def transcript(proof: Proof) -> dict[str, Any]:
    """Return the commands of a proof as the transcripts of the stand-in have them.

    ``steps`` are runs of the control program as they were, with the pids of that time.
    ``answers`` are the same as patterns, with ``{server}`` and ``{client}`` in place of pids, as in
    ``documented.json``; of equal ones there is one. What was
    said before a server was known is not among them.
    """
    machine = proof.machine
    source = f"{machine.control}, driver {machine.driver}, {machine.gpu_model}"
    return {
        "program": "nvidia-cuda-mps-control",
        "package": source,
        "recorded": max((check.date for check in proof.checks), default="")[:10],
        "gpu": machine.stand_in or machine.gpu_model,
        "steps": [_step(one) for check in proof.checks for one in check.commands],
        "answers": list(_answers(proof, source)),
    }


def _row(check: Check) -> str:
    cells = (
        f"`{check.id}`",
        ", ".join(map(str, check.rows)),
        check.looked_at,
        check.taken,
        check.seen,
        check.verdict,
        f"{check.seconds:.0f}",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _step(command: Command) -> dict[str, Any]:
    return {
        "options": list(command.options),
        "command": command.command,
        "exit": command.exit,
        "out": command.out,
        "err": command.err,
    }


def _answers(proof: Proof, source: str) -> Iterator[dict[str, str]]:
    known = set()
    for check in proof.checks:
        for command in check.commands:
            if command.exit != 0 or "server" not in command.pids or not command.command:
                continue
            words = _named(command.command, command.pids)
            pattern = _pattern(command)
            if (words, pattern) not in known:
                known.add((words, pattern))
                yield {
                    "command": words,
                    "pattern": pattern,
                    "source": f"{source}, check {check.id}, {check.date[:10]}",
                }


def _pattern(command: Command) -> str:
    """Return an answer as a regular expression in which pids are names in braces."""
    parts = re.split(r"(\d+)", command.out)
    names = {str(pid): name for name, pid in command.pids.items()}
    return "".join(f"{{{names[part]}}}" if part in names else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    """Return a text as a regular expression that ``str.format`` leaves as it is."""
    return re.escape(text).replace("\\\n", "\\n").replace("{", "{{").replace("}", "}}")


def _named(text: str, pids: Any) -> str:
    names = {str(pid): name for name, pid in pids.items()}
    return re.sub(r"\d+", lambda found: _braced(names, found[0]), text)


def _braced(names: dict[str, str], number: str) -> str:
    return f"{{{names[number]}}}" if number in names else number
