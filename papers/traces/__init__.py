"""Readers of the traces of jobs that papers published."""
