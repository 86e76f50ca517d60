"""Checks of a machine before live mode runs on it."""
