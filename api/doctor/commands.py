"""The command ``dovetail doctor``: check this machine for live mode."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dovetail.executor.doctor.diagnosis import Diagnosis, Preflight, diagnose
from dovetail.executor.doctor.finding import Severity
from dovetail.executor.doctor.shares import ShareRow, ShareTable
from dovetail.live.places import default_directory, default_socket, mps_directory
from dovetail.toolkit.outputs import print_either
from dovetail.toolkit.tables import plain_table

_MARKS: Final = {
    Severity.GOOD: ("ok", "green"),
    Severity.NOTE: ("note", "cyan"),
    Severity.LACKING: ("lacking", "yellow"),
    Severity.BROKEN: ("broken", "red"),
}
_HEADINGS: Final = {
    "machine": "Machine",
    "service": "Service",
    "driver": "Driver",
    "gpu": "GPU",
    "mps": "MPS",
    "jobs": "Jobs' Python",
    "shares": "SM shares",
    "plugins": "Plugins",
}


def doctor(options: Namespace) -> int:
    """Check this machine for live mode; the exit status is the ``Usable`` of the diagnosis."""
    diagnosis = diagnose(preflight(options))
    print_either(options, _plain(diagnosis), _view(diagnosis))
    return int(diagnosis.usable)


def preflight(options: Namespace) -> Preflight:
    """Return what to check, as set by the command line."""
    directory = Path(os.path.abspath(options.directory or default_directory()))
    return Preflight(
        directory,
        Path(os.path.abspath(options.socket)) if options.socket else default_socket(directory),
        mps_directory(directory),
        options.python or sys.executable,
        options.listen,
    )


def _view(diagnosis: Diagnosis) -> RenderableType:
    table = plain_table("", "what", "what was seen, and what to do")
    for (part, gpu), findings in groupby(diagnosis.findings, lambda one: (one.part, one.gpu)):
        if table.row_count:
            table.add_row()
        table.add_row("", Text(f"{_HEADINGS[part]} {gpu}".rstrip(), "bold"))
        for finding in findings:
            word, style = _MARKS[finding.level]
            line = Text(finding.text)
            if finding.remedy:
                line.append(f"\n-> {finding.remedy}", "italic")
            table.add_row(Text(word, style), Text(finding.title), line)
    verdict = Text(diagnosis.usable.text, "bold")
    return Group(table, Text(), *_share_views(diagnosis.shares), verdict)


def _share_views(tables: Sequence[ShareTable]) -> Iterator[RenderableType]:
    """Yield the table of shares of each GPU model."""
    for one in tables:
        yield Text(f"Shares of {one.gpu_model}, driver {one.driver}", "bold")
        yield _share_table(one.rows)
        line = "* as others reported for an H200, scaled to this GPU's SMs"
        yield Text(line)
        yield Text()


def _share_table(rows: Sequence[ShareRow]) -> Table:
    table = plain_table(
        "share", "SMs", "expected*", "right", "wrong", "error", "cuBLAS", "date", ""
    )
    for row in rows:
        table.add_row(
            f"{row.share} %",
            str(row.sms),
            "-" if row.reported_sms is None else str(row.reported_sms),
            *_compared(row),
        )
    return table


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
