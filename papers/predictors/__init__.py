"""The predictors of papers, each a plugin ``predictor.NAME``: they need the extra ``train``."""
