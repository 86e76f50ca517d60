"""``dovetail doctor``: check this machine for live mode."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dovetail.toolkit.commands import Command, host_and_port, option
from dovetail.toolkit.files import print_either
from dovetail.toolkit.tables import TableColumn, plain_table, stacked, styled, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.doctor.diagnosis import Diagnosis, Preflight
    from dovetail.executor.doctor.finding import Finding
    from dovetail.executor.doctor.shares import ShareRow, ShareTable

DOCTOR: Final = Command(
    "doctor",
    "Check what this machine lacks for live mode; exit status 0: jobs can share "
    "GPUs with SM shares, 3: without, 1: not at all.",
    "dovetail.doctor.doctor:doctor",
    (
        option("--python FILE", "a Python with the PyTorch that jobs use (default: this one)"),
        option("--directory DIR", "the service's directory (default: that of serve)"),
        option("--socket PATH", "the service's socket (default: that of serve)"),
        option("--listen HOST:PORT", "see whether the service could listen there", host_and_port),
        option("--fix", "print the commands that fix what was found, and run none of them"),
    ),
)

_MARKS: Final = {
    "good": ("ok", "green"),
    "note": ("note", "cyan"),
    "lacking": ("lacking", "yellow"),
    "broken": ("broken", "red"),
}
_HEADINGS: Final = {
    "machine": "Machine",
    "service": "Service",
    "driver": "Driver",
    "gpu": "GPU",
    "mps": "MPS",
    "memory": "GPU memory",
    "jobs": "Jobs' Python",
    "shares": "SM shares",
    "plugins": "Plugins",
}


def doctor(options: Namespace) -> int:
    """Check this machine for live mode; the exit status is the ``Usable`` of the diagnosis."""
    from dovetail.executor.doctor.diagnosis import diagnose

    diagnosis = diagnose(preflight(options))
    if options.fix and not options.json:
        print("\n".join(script(diagnosis.findings)))
    else:
        print_either(options, _plain(diagnosis), lambda: view(diagnosis))
    return int(diagnosis.usable)


def preflight(options: Namespace) -> Preflight:
    """Return what to check, as set by the command line."""
    from dovetail.executor.doctor.diagnosis import Preflight
    from dovetail.live.places import default_directory, default_socket, mps_directory

    directory = Path(os.path.abspath(options.directory or default_directory()))
    return Preflight(
        directory,
        Path(os.path.abspath(options.socket)) if options.socket else default_socket(directory),
        mps_directory(directory),
        options.python or sys.executable,
        options.listen,
    )


def view(diagnosis: Diagnosis) -> RenderableType:
    """Return the findings by part of the machine, the shares, and the verdict."""
    made = plain_table("", "what", "what was seen, and what to do")
    for (part, gpu), findings in groupby(diagnosis.findings, lambda one: (one.part, one.gpu)):
        if made.row_count:
            made.add_row()
        made.add_row("", styled(f"{_HEADINGS[part]} {gpu}".rstrip(), "bold"))
        for finding in findings:
            line = styled(finding.text, "")
            if finding.remedy:
                line.append(f"\n-> {finding.remedy}", "italic")
            made.add_row(styled(*_MARKS[finding.level]), styled(finding.title, ""), line)
    shares = (part for one in diagnosis.shares for part in _shares_view(one))
    return stacked(made, "", *shares, styled(diagnosis.usable.text, "bold"))


def script(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of a shell script that fixes findings, by part of the machine.

    Findings that no command fixes are comments at the end.
    """
    fixed = [one for one in findings if one.fix]
    by_hand = [one for one in findings if not one.fix and one.level in ("lacking", "broken")]
    if not fixed and not by_hand:
        yield "# nothing to fix"
    for part, some in groupby(fixed, lambda one: one.part):
        yield f"# == {_HEADINGS[part]} =="
        written = set[tuple[str, ...]]()
        for one in some:
            yield _comment(one)
            if one.fix not in written:
                yield from one.fix
            written.add(one.fix)
        yield ""
    if by_hand:
        yield "# == By hand: no command fixes these =="
        yield from map(_comment, by_hand)


def _comment(one: Finding) -> str:
    """Return a finding as one line of comment, whatever its text contains."""
    words = f"{one.id} {one.gpu}".rstrip()
    text = f"# {words} ({_MARKS[one.level][0]}): {one.text} -> {one.remedy}"
    return "".join(each if each.isprintable() else "?" for each in text)


def _shares_view(one: ShareTable) -> Iterator[RenderableType]:
    """Yield the shares of a GPU model."""
    yield styled(f"Shares of {one.gpu_model}, driver {one.driver}", "bold")
    heads = ("share", "SMs", "expected*", "right", "wrong", "error", "cuBLAS", "date", "")
    rows = (
        (
            f"{row.share} %",
            str(row.sms),
            "-" if row.reported_sms is None else str(row.reported_sms),
            *_compared(row),
        )
        for row in one.rows
    )
    yield table((TableColumn(head, folds=True) for head in heads), rows, names=1)
    yield "* as others reported for an H200, scaled to this GPU's SMs\n"


def _compared(row: ShareRow) -> Sequence[str]:
    if not row.cublas:
        return ("-", "-", "-", "-", "-", "not measured")
    error = "no number" if row.worst is None else f"{row.worst:.2f}"
    verdict = "allowed" if row.allowed else "whole GPU" if not row.wrong else "never used"
    return (str(row.right), str(row.wrong), error, row.cublas, row.date[:10], verdict)


def _plain(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "usable": diagnosis.usable.name.lower(),
        "findings": [finding._asdict() for finding in diagnosis.findings],
        "shares": [
            {**table._asdict(), "rows": [row._asdict() for row in table.rows]}
            for table in diagnosis.shares
        ],
    }
