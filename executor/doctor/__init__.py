"""Preflight: what this machine has for live mode, what it lacks, and what to do about it."""
