"""From profiles and measurements to slowdowns (with upper bounds), throughput and power."""

from dovetail.predictors.analytic import AnalyticPredictor
from dovetail.predictors.fill import PREDICTORS, missing, predict
from dovetail.predictors.predictor import UNCAPPED, Prediction, Predictor

__all__ = [
    "PREDICTORS",
    "UNCAPPED",
    "AnalyticPredictor",
    "Prediction",
    "Predictor",
    "missing",
    "predict",
]
