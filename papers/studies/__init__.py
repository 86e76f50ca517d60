"""Evaluation of predictors: ``dovetail predictors evaluate`` and ``report``."""
