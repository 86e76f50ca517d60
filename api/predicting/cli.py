"""The commands that predict slowdowns."""

from __future__ import annotations

from typing import Final

from dovetail.toolkit.commands import (
    DATA,
    FIGURES,
    INSTANCE,
    OUTPUT,
    SEED,
    SLOWDOWNS,
    Argument,
    Command,
    argument,
    option,
)
from dovetail.toolkit.values import confidence, pair

PREDICTION: Final = (
    option("--predictor P", "fill in unknown slowdowns with this predictor: analytic"),
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
    option("--measured", "with --model: predict only what was measured together, at its shares"),
)

_MODEL = argument("MODEL", "model file")
_MODELS = option("--models A,B,...", "test these models (default: all)")
_NEW = option(
    "--new A,B,...",
    "what the models have not seen: random, workload, family, two_families, gpu_model (default: "
    "random, family, and gpu_model where there are several)",
)
_GPU_MODEL = option("--gpu-model M", "only this GPU model; may be repeated", repeated=True)
_CONFIDENCE = option("--confidence C", "confidence of the upper bounds", confidence, "0.9")


def _output(value: str) -> Argument:
    return option(f"-o, --output {value}", "write it to this file", required=True)


COMMANDS: Final = (
    Command(
        "predict",
        "Fill in the slowdowns that an instance lacks.",
        "dovetail.predicting.filling:predict",
        (
            INSTANCE,
            SLOWDOWNS,
            PREDICTION[0]._replace(text="with this predictor (default: analytic)"),
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
                    option("--search SECONDS", "search this long for a better structure", float),
                    option(
                        "--from GPU",
                        "tensorshare: fit to this GPU model first, then tune to the others",
                        field="source",
                    ),
                    option("--licence TEXT", "licence of the data, kept in the model file"),
                    _GPU_MODEL,
                    _CONFIDENCE,
                    SEED,
                    _output("MODEL"),
                ),
            ),
            Command(
                "evaluate",
                "Test models on pairs that they have not seen.",
                "dovetail.predicting.commands:evaluate",
                (DATA, _MODELS, _NEW, _GPU_MODEL, _CONFIDENCE, SEED, FIGURES),
            ),
            Command(
                "report",
                "Write a page that shows how good the predictions are.",
                "dovetail.predicting.commands:report",
                (
                    DATA,
                    option("--model MODEL", "also describe this model file"),
                    _MODELS,
                    _NEW,
                    _GPU_MODEL,
                    _CONFIDENCE,
                    SEED,
                    FIGURES,
                    _output("FILE.html"),
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
                (_MODEL, DATA, SEED, _output("MODEL")),
            ),
        ),
    ),
)
