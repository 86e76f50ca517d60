"""The command ``advise``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Final, NamedTuple

from dovetail.toolkit.commands import REPORT, Command, argument, finite, limit, option


class GivenModel(NamedTuple):
    """A GPU model, and the memory of its cards in MiB if the user gives it."""

    name: str
    memory_mib: float | None


def _model(text: str) -> GivenModel:
    name, colon, memory = text.rpartition(":")
    if not colon:
        return GivenModel(text, None)
    mib = finite(memory)
    if mib <= 0 or not name:
        raise ArgumentTypeError(f"must be MODEL or MODEL:MIB, got {text!r}")
    return GivenModel(name, mib)


def _slowdown(text: str) -> float:
    number = finite(text)
    if number < 1:
        raise ArgumentTypeError(f"must be >= 1, got {text!r}")
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
            "records of jobs, nodes and utilisation (sacct, kubectl, nvidia-smi, Prometheus ...)",
            "files",
        ),
        option("--form NAME", "the reader of all files (default: the one that recognises each)"),
        option(
            "--since TIME",
            "only what ran after this: a date and time in UTC (2026-11-01), or 30d, 12h",
        ),
        option(
            "--gpu-model MODEL[:MIB]",
            "the GPU model of jobs for which no file names one, or with :MIB the memory of a model "
            "that a file names; may be given several times",
            _model,
            repeated=True,
        ),
        option("--gsla G", "the slowdown that owners accept", _slowdown, "1.5", field="gsla"),
        option("--cost-per-gpu-hour C", "also print the cost, in any currency", _cost),
        REPORT,
        option("--time-limit SECONDS", "stop after this time", limit, "300"),
    ),
    section="planning",
)
