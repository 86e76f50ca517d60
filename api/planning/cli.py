"""The commands that plan from files."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Final

from dovetail.instances.objectives import OBJECTIVES
from dovetail.predicting.cli import PREDICTION
from dovetail.toolkit.commands import (
    FIGURES,
    INSTANCE,
    OUTPUT,
    REPORT,
    SEED,
    SLOWDOWNS,
    Command,
    argument,
    option,
)
from dovetail.toolkit.values import limit, output_file


def _objective(text: str) -> str:
    if text not in OBJECTIVES and not text.startswith("python:"):
        known = ", ".join(OBJECTIVES)
        raise ArgumentTypeError(
            f"invalid choice: {text!r} (choose from {known}, python:MODULE.CLASS)"
        )
    return text


_FILE = argument("PLAN", "plan file, or - for standard input")

PLAN: Final = Command(
    "plan",
    "Write the best plan for an instance, with its proof.",
    "dovetail.planning.commands:plan",
    (
        INSTANCE._replace(number="?"),
        option(
            "--from-live",
            "plan the round of the live service, with its policy, instead of INSTANCE",
        ),
        option("-o, --output PLAN", "write the plan to this file; - prints it", output_file),
        option(
            "--objective O",
            f"what to optimise: {', '.join(OBJECTIVES)}, or python:MODULE.CLASS for a subclass of "
            "dovetail.JobValues",
            _objective,
            "throughput",
        ),
        option(
            "--solver S",
            "auto, matching, cpsat, highs, milp, milp:NAME (any solver of PuLP; extra milp), "
            "networkx (extra networkx), greedy, exclusive or random; python:MODULE.CLASS for one "
            "of your own",
            default="auto",
        ),
        option(
            "--time-limit SECONDS",
            "stop after this time, with the best plan so far and its proven gap; inf: never",
            limit,
            "60",
        ),
        option("--gap G", "stop once this relative gap is proven", float, "0"),
        SEED._replace(text="same seed, same plan"),
        option("--preempt", "let running jobs move or wait, except latency-critical ones"),
        SLOWDOWNS,
        *PREDICTION,
        option(
            "--verify",
            "check the plan again, and its bound if the solver left a certificate",
        ),
        option(
            "--commands",
            "instead of the plan, print the environment of each process that starts, for starting "
            "jobs by hand under MPS",
        ),
        option("--write-model FILE.mps", "write the integer program (extra milp)"),
        REPORT,
        FIGURES,
        option("--compare", "also print the results of simple rules for the same jobs"),
    ),
)

COMMANDS: Final = (
    PLAN,
    Command(
        "check",
        "Verify any plan, and recompute its value.",
        "dovetail.planning.commands:check",
        (
            INSTANCE,
            _FILE,
            option(
                "--objective O",
                f"compute this: {', '.join(OBJECTIVES)} (default: the plan's own)",
                choices=OBJECTIVES,
            ),
            SLOWDOWNS,
        ),
    ),
    Command(
        "explain",
        "Explain why jobs wait and what would let them start.",
        "dovetail.planning.commands:explain",
        (
            INSTANCE,
            _FILE,
            argument(
                "[JOB]", "id of the job (default: all waiting jobs, and the pairs not yet measured)"
            ),
            SLOWDOWNS,
        ),
    ),
    Command(
        "next",
        "Write the instance of the next round; jobs that the plan placed run, ended jobs are gone.",
        "dovetail.planning.next_round:next_round",
        (
            INSTANCE,
            _FILE,
            option("--ended JOB", "a job that has ended since; may be repeated", repeated=True),
            option("--ended-in FILE", "jobs that have ended, one a line; - for standard input"),
            SLOWDOWNS._replace(text="the plan was made with these measured pairs"),
            *PREDICTION,
            OUTPUT,
            option("--overwrite", "overwrite an existing file, but never an input"),
        ),
    ),
)
