"""Predictors fitted on measurements: training, bounds and files."""
