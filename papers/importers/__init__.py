"""Readers of measurements published with papers."""
