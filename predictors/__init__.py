"""From profiles and measurements to slowdowns (with upper bounds), throughput and power."""

from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fill import (
    PREDICTORS,
    assumed,
    in_doubt,
    missing,
    predict,
    unanswered,
    unsupported,
)
from dovetail.predictors.fitted.model_file import load_model, save_model
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.kernels import KernelsPredictor, Law
from dovetail.predictors.predictor import UNCAPPED, Prediction, Predictor

__all__ = [
    "PREDICTORS",
    "UNCAPPED",
    "AnalyticPredictor",
    "KernelsPredictor",
    "Law",
    "Prediction",
    "Predictor",
    "TrainedPredictor",
    "assumed",
    "in_doubt",
    "load_model",
    "missing",
    "predict",
    "save_model",
    "unanswered",
    "unsupported",
]
