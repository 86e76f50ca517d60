"""Additions of this room to the command line: ``measure``, ``suggest``, options of ``doctor``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Final

from dovetail.toolkit.commands import (
    DATA,
    SEED,
    SHARING,
    Addition,
    Command,
    argument,
    finite,
    option,
    shares,
    whole,
)


def _device(text: str) -> str:
    kind, colon, which = text.partition(":")
    named = bool(which) if colon else kind == "gpu"
    if text != "cpu" and not (named and kind in ("gpu", "simulated")):
        raise ArgumentTypeError(f"must be gpu, gpu:UUID, cpu or simulated:INSTANCE, got {text!r}")
    return text


def _minutes(text: str) -> float:
    number = finite(text)
    if number <= 0:
        raise ArgumentTypeError(f"must be > 0, got {text!r}")
    return number


DOCTOR: Final = Addition(
    (
        option("--splits", "first measure which SM shares compute correctly on these GPUs"),
        option("--sms", "first count the SMs that a client sees at every share; computes nothing"),
        option(
            "--shares P,...",
            "with --splits, --sms: only these (default: every fifth, each per cent)",
            shares,
        ),
        option("--again", "with --splits: also shares that were measured before"),
    ),
    before="dovetail.measuring.gate:before_diagnosis",
)

MEASURE: Final = Command(
    "measure",
    "Measure workloads alone and in pairs on a GPU; exit status 0: all is measured, 3: time "
    "is up, and the same command continues.",
    "dovetail.measuring.commands:measure",
    (
        argument("CAMPAIGN.yaml", "workloads, pairs and settings to measure", "campaign"),
        option(
            "--output DIR",
            "directory of the results, from which an interrupted campaign continues (default: "
            "the campaign's file name without its ending)",
        ),
        option(
            "--device DEVICE",
            "gpu (the first), gpu:UUID, cpu (one core as a stand-in), or simulated:INSTANCE "
            "(its first GPU, with its slowdowns)",
            _device,
            "gpu",
        ),
        option("--python FILE", "the Python whose PyTorch runs the workloads (default: this one)"),
        option(
            "--directory DIR",
            "directory with the results of doctor --splits (default: that of serve)",
        ),
        option(
            "--known DATA",
            "leave out pairs and triples that this data set has of the same GPU model (for "
            "example library:h200-2026-11)",
        ),
        option(
            "--stages N",
            "carry out only the first N stages of the campaign (default: all)",
            whole(1),
        ),
        option(
            "--minutes M",
            "start nothing that would end later; exit status 3 if experiments are left",
            _minutes,
        ),
        option("--no-kernels", "do not profile the kernels of workloads alone, which a GPU allows"),
        option("--dry-run", "measure nothing; print what would be measured"),
        option("--verbose", "print a line for each result on standard error"),
    ),
    section="this machine",
)

SUGGEST: Final = Command(
    "suggest",
    "Print the pairs to measure next, which improve the plan most.",
    "dovetail.measuring.suggesting.commands:suggest",
    (
        DATA,
        option(
            "--instance FILE",
            "plan the jobs of this instance (default: one job of every workload, two for each GPU)",
        ),
        option("--gpu-model M", "the GPU model, if the data have several"),
        SHARING,
        option("--count N", "how many pairs", whole(1), "5"),
        SEED,
    ),
)
