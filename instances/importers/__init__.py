"""Readers of public data."""
