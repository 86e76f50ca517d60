"""The group ``dovetail predictors``, and options of commands that predict or fit."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import Argument, Command, argument, confidence, option, pair, shares

PREDICTORS: Final = Command(
    "predictors", "Fit predictors of slowdowns on measurements, and test them."
)
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
        "with a predictor: allow these SM shares, in per cent, in addition to cluster.shares",
        shares,
    ),
)
MODEL_FILE: Final = argument("MODEL", "model file")
GPU_MODEL: Final = option("--gpu-model M", "only this GPU model; may be repeated", repeated=True)
CONFIDENCE: Final = option("--confidence C", "confidence of the upper bounds", confidence, "0.9")


def written_to(value: str) -> Argument:
    """Return the option for the file to write."""
    return option(f"-o, --output {value}", "write it to this file", required=True)
