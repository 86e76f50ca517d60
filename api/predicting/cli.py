"""The commands that predict slowdowns."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import (
    DATA,
    INSTANCE,
    OUTPUT,
    SEED,
    SHARING,
    SLOWDOWNS,
    Argument,
    Command,
    argument,
    option,
)
from dovetail.toolkit.values import confidence, pair, shares

PREDICTION: Final = (
    option("--predictor P", "fill in unknown slowdowns with this predictor: kernels, analytic"),
    option("--model FILE", "fill in unknown slowdowns with this fitted model"),
    option(
        "--confidence C",
        "confidence of the upper bounds, between 0 and 1 (default: the model's own)",
        float,
    ),
    option(
        "--as GPU=FITTED",
        "treat one GPU model as another, which the model was fitted for",
        pair("GPU=FITTED"),
        field="stand_ins",
        repeated=True,
    ),
    option("--measured", "with --model: predict only workloads measured together, at those shares"),
    option(
        "--shares P,...",
        "with a predictor: allow these SM shares, in per cent, besides those in cluster.shares",
        shares,
    ),
)

_MODEL = argument("MODEL", "model file")
GPU_MODEL: Final = option("--gpu-model M", "only this GPU model; may be repeated", repeated=True)
CONFIDENCE: Final = option("--confidence C", "confidence of the upper bounds", confidence, "0.9")


def written_to(value: str) -> Argument:
    """Return the option for the file to write."""
    return option(f"-o, --output {value}", "write it to this file", required=True)


COMMANDS: Final = (
    Command(
        "predict",
        "Fill in the slowdowns that an instance lacks.",
        "dovetail.predicting.filling:predict",
        (
            INSTANCE,
            SLOWDOWNS,
            PREDICTION[0]._replace(text="with this predictor: kernels (the default), analytic"),
            PREDICTION[1]._replace(text="with this fitted model"),
            *PREDICTION[2:],
            option("--mixed", "also pairs of a workload with a share and one without"),
            option("--sets", "also sets of three and more, derived from their pairs"),
            OUTPUT,
        ),
    ),
    Command(
        "predictors",
        "Fit predictors of slowdowns on measurements, and test them.",
        commands=(
            Command(
                "fit",
                "Fit a predictor on a data set and write it as a model file.",
                "dovetail.predicting.commands:fit",
                (
                    DATA,
                    option("--model NAME", "fit this kind of model", default="auto"),
                    option("--licence TEXT", "licence of the data, kept in the model file"),
                    GPU_MODEL,
                    SHARING,
                    CONFIDENCE,
                    SEED,
                    written_to("MODEL"),
                ),
            ),
            Command(
                "show",
                "Print what a model file holds.",
                "dovetail.predicting.commands:show",
                (_MODEL,),
            ),
            Command(
                "update",
                "Fit a model to new measurements too, and print its errors on them.",
                "dovetail.predicting.commands:update",
                (_MODEL, DATA, SEED, written_to("MODEL")),
            ),
        ),
    ),
)
