"""Slowdowns of jobs that share a GPU."""
