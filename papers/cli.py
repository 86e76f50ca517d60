"""What this room adds to the command line."""

from __future__ import annotations

from typing import Final

from dovetail.predicting.cli import CONFIDENCE, GPU_MODEL, written_to
from dovetail.toolkit.commands import DATA, FIGURES, SEED, Addition, Command, option

FIT: Final = Addition(
    (
        option("--search SECONDS", "tensorshare: search this long for a better structure", float),
        option(
            "--from GPU",
            "tensorshare: fit to this GPU model first, then tune to the others",
        ),
    )
)
"""Options of ``dovetail predictors fit`` for a model of this room."""

_TESTS: Final = (
    option("--models A,B,...", "test these models (default: all)"),
    option(
        "--new A,B,...",
        "what the models have not seen: random, workload, family, two_families, gpu_model "
        "(default: random, family, and gpu_model where there are several)",
    ),
    GPU_MODEL,
    CONFIDENCE,
    SEED,
    FIGURES,
)

EVALUATE: Final = Command(
    "evaluate",
    "Test models on pairs that they have not seen.",
    "dovetail.papers.studies.commands:evaluate",
    (DATA, *_TESTS),
)
REPORT: Final = Command(
    "report",
    "Write a page that shows how good the predictions are.",
    "dovetail.papers.studies.commands:report",
    (
        DATA,
        option("--model MODEL", "also describe this model file"),
        *_TESTS,
        written_to("FILE.html"),
    ),
)
