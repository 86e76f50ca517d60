"""Observation of running jobs, and what the service learns from it."""
