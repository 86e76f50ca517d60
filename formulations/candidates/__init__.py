"""Candidate groups: sets of jobs that may hold one GPU together."""
