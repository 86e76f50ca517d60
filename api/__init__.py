"""Dovetail."""
