"""Runs of a pool of this machine: their processes, files and limits."""
