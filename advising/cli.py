"""The command ``advise``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dovetail.toolkit.commands import (
    REPORT,
    Command,
    argument,
    duration,
    finite,
    limit,
    option,
    output_file,
    pair,
)

_MOST_JOBS: Final = 48
"""As many as an instance allows."""


class Since(NamedTuple):
    """A moment from which records count: a date, or a time before their end.

    Attributes
    ----------
    text : str
        As the user wrote it.
    at_s : float or None
        Seconds since 1970.
    ago_s : float or None
        Seconds before the end of the records.
    """

    text: str
    at_s: float | None
    ago_s: float | None


def _since(text: str) -> Since:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        in_utc = found if found.tzinfo else found.replace(tzinfo=UTC)
        return Since(text, in_utc.timestamp(), None)
    try:
        return Since(text, None, duration(text))
    except ArgumentTypeError:
        rule = f"must be a time like 2026-11-01, 30d or 12h, got {text!r}"
        raise ArgumentTypeError(rule) from None


def _slowdown(text: str) -> float:
    number = finite(text)
    if number < 1:
        raise ArgumentTypeError(f"must be >= 1, got {text!r}")
    return number


def _jobs_per_gpu(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if not 2 <= number <= _MOST_JOBS:
        raise ArgumentTypeError(f"must be a whole number from 2 to {_MOST_JOBS}, got {text!r}")
    return number


def _cost(text: str) -> float:
    number = finite(text)
    if number < 0:
        raise ArgumentTypeError(f"must be >= 0, got {text!r}")
    return number


ADVISE: Final = Command(
    "advise",
    "Say which jobs could share GPUs and what that would save, from records of a cluster's use.",
    "dovetail.advising.commands:advise",
    (
        argument(
            "FILE ...",
            "records of jobs, nodes and utilisation (sacct, kubectl, nvidia-smi, Prometheus ...); "
            "or one file of models to serve (dovetail-serving/1)",
            "files",
        ),
        option("--form NAME", "the reader of all files (default: the one that recognises each)"),
        option(
            "--since TIME",
            "only what ran after this: a date and time in UTC (2026-11-01), or 30d, 12h",
            _since,
        ),
        option("--gpu-model MODEL", "the GPU model of jobs for which no file names one"),
        option(
            "--gpu-memory MODEL=MIB",
            "memory of GPUs of this model, if the records do not say it; may be repeated",
            pair("MODEL=MIB", r"\d+(?:\.\d+)?"),
            repeated=True,
        ),
        option("--gsla G", "the slowdown that owners accept", _slowdown, "1.5", field="gsla"),
        option(
            "--max-jobs-per-gpu N",
            "the most jobs on a GPU, from 2 to 48",
            _jobs_per_gpu,
            "2",
        ),
        option("--cost-per-gpu-hour C", "also print the cost, in any currency", _cost),
        REPORT,
        option(
            "--instance FILE",
            "write the busiest moment as an instance, in the case likely, to plan and explain it",
            output_file,
        ),
        option("--time-limit SECONDS", "stop after this time", limit, "300"),
    ),
    section="planning",
)
