"""The command-line additions of this package."""

from __future__ import annotations

from typing import Final

from dovetail.predicting.options import CONFIDENCE, GPU_MODEL, written_to
from dovetail.toolkit.commands import (
    DATA,
    FIGURES,
    GPUS,
    GPUS_PER_NODE,
    OUTPUT,
    SEED,
    SHARING,
    Addition,
    Command,
    argument,
    option,
)

FIT: Final = Addition(
    (
        option("--search SECONDS", "tensorshare: search this long for a better structure", float),
        option(
            "--from GPU",
            "tensorshare: fit to this GPU model first, then tune to the others",
        ),
    )
)
"""Options of ``dovetail predictors fit`` for a model of this package."""

_TESTS: Final = (
    option("--models A,B,...", "test these models (default: all)"),
    option(
        "--new A,B,...",
        "what the models have not seen: random, workload, family, two_families, gpu_model "
        "(default: random, family, and gpu_model where there are several)",
    ),
    GPU_MODEL,
    SHARING,
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

IMPORT_GAVEL: Final = Command(
    "gavel",
    "Make an instance of Gavel's throughputs and traces.",
    "dovetail.papers.importers.commands:import_gavel",
    (
        argument("THROUGHPUTS.json", "Gavel's file; may end in .gz", "file"),
        option("--device DEVICE", "k80, p100, v100, ...", required=True),
        option("--trace FILE", "take the jobs of this trace ..."),
        option("--at SECONDS", "... that are there at this time", float),
        option("--gangs-as-single", "assume that a gang's workers behave like the one-GPU job"),
        GPUS,
        GPUS_PER_NODE,
        OUTPUT,
    ),
)
IMPORT_LUCID: Final = Command(
    "lucid",
    "Make an instance of Lucid's measurements on an RTX 3090.",
    "dovetail.papers.importers.commands:import_lucid",
    (
        argument("DIR", "folder with single_data.csv and colocate_info.csv", "file"),
        GPUS,
        GPUS_PER_NODE,
        OUTPUT,
    ),
)


def _published(name: str, text: str, shape: str, holds: str) -> Command:
    """Declare the import of a published data set."""
    folder = "write this folder, or append to this repository (.db, .sqlite)"
    return Command(
        name,
        text,
        f"dovetail.papers.importers.commands:{name}_data",
        (
            argument(shape, holds, "path"),
            option("-o, --output DIR_OR_DB", folder, required=True),
            option("--parquet", "write Parquet, not CSV"),
        ),
    )


IMPORT_DATA: Final = Command(
    "import",
    "Make a data set of published measurements.",
    commands=(
        _published(
            "gavel",
            "Gavel's throughputs on all devices.",
            "THROUGHPUTS.json",
            "Gavel's file; may end in .gz",
        ),
        _published(
            "lucid",
            "Lucid's measurements on an RTX 3090.",
            "DIR",
            "folder with single_data.csv and colocate_info.csv",
        ),
        _published(
            "miso",
            "MISO's profiles on slices of an A100.",
            "DIR",
            "folder with solo_features.csv and mig_iter_time.csv",
        ),
        _published(
            "parvagpu",
            "ParvaGPU's equal processes on slices of an A100.",
            "DIR",
            "folder with a MODEL.csv for each model",
        ),
    ),
)
