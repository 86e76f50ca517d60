"""Policies of papers, as baselines."""
