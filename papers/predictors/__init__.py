"""Predictors of papers, each a plugin ``predictor.NAME``; they need the extra ``train``."""
