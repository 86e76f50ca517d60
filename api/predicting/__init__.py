"""Predictors of slowdowns: fit, test and use them, and show how good they are."""
