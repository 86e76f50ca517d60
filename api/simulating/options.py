"""The options that ``dovetail simulate`` and ``dovetail compare`` share."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Final

from dovetail.instances.traces.kinds import kind_names
from dovetail.toolkit.commands import MOST_SEEDS, argument, grouped, option, whole


def _columns(text: str) -> tuple[tuple[str, str], ...]:
    parts = [part.partition("=") for part in text.split(",")]
    if not all(field and equals and column for field, equals, column in parts):
        raise ArgumentTypeError(f"must be FIELD=COLUMN,..., got {text!r}")
    fields = [field for field, _, _ in parts]
    if len(set(fields)) < len(fields):
        raise ArgumentTypeError(f"must name each field once, got {text!r}")
    return tuple((field, column) for field, _, column in parts)


def _models(text: str) -> tuple[str, ...]:
    models = tuple(name.strip() for name in text.split(","))
    if not all(models):
        raise ArgumentTypeError(f"must name GPU models, comma separated, got {text!r}")
    return models


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = map(float, text.split(":"))
    except ValueError:
        raise ArgumentTypeError(f"must be FROM:TO in hours, got {text!r}") from None
    return start, end


CHART_HOURS: Final = option(
    "--chart-hours FROM:TO",
    "hours in charts of GPUs over time (default: hours with starts under every policy)",
    _window,
)
SIMULATION_SEED: Final = option("--seed N", "seed of everything drawn", whole(0, MOST_SEEDS), "0")
SIMULATED: Final = (
    argument("TRACE", "trace file, or library:NAME"),
    option(
        "--format F",
        f"format of the trace (default: recognised): one of {', '.join(kind_names())}",
    ),
    option(
        "--columns FIELD=COLUMN,...",
        "column of a csv or parquet file for each field: arrival_s=submit_time,...",
        _columns,
    ),
    option(
        "--cores-per-gpu N",
        "cores treated as one GPU in the format swf, in which jobs ask for cores (default: 1)",
        whole(1),
    ),
    *grouped(
        "which jobs",
        option("--window FROM:TO", "jobs that arrive in these hours", _window),
        option("--max-workers N", "jobs of at most N GPUs", whole(1)),
        option("--busiest N", "the N consecutive jobs that need the most GPU time", whole(1)),
        option("--sample N", "N jobs, drawn by each seed", whole(1)),
        option(
            "--load L",
            "offered load: scale arrivals so that jobs ask for L x the work the GPUs can do",
            float,
        ),
        option("--faster F", "divide times between arrivals by F", float),
        option(
            "--gsla D",
            "gSLAs of jobs that have none: none, fixed:1.5, uniform:1:2, ... (default: uniform:1:2 "
            "if no job has one, else none)",
        ),
    ),
    *grouped(
        "the world",
        option(
            "--world W",
            "true slowdowns: instance file, data set or library:NAME (default: the shipped "
            "trace's own, else a synthetic one)",
        ),
        option(
            "--nodes N",
            "number of nodes; needed unless the world is an instance with its own",
            whole(1),
        ),
        option("--gpus-per-node N", "GPUs of a node (default: 8, or the instance's own)", whole(1)),
        option(
            "--gpu-model M,...",
            "GPU models, taken in turn by nodes; run times of the trace hold on the first "
            "(default: V100, a data set's only one, or the instance's own)",
            _models,
        ),
        option("--restart SECONDS", "time to restore a job that ran before", float, "60"),
        option("--mtbf HOURS", "mean time between failures of a node", float),
        option("--repair HOURS", "repair time of a failed node, with --mtbf (default: 1)", float),
    ),
    *grouped(
        "what policies know",
        option(
            "--beliefs B",
            "slowdowns as predicted: exact, noise:SIGMA, held-out:MODEL:PART or model:FILE",
            default="exact",
        ),
        option(
            "--estimate-error SIGMA",
            "error of run times: standard deviation of their logarithm",
            float,
            "0",
        ),
        option(
            "--round SECONDS", "time between decisions; 0: whenever something happens", float, "0"
        ),
    ),
)
