"""Readers of job traces published with papers."""
