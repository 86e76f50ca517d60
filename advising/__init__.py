"""Advice from records of a cluster's use: who could share with whom, and what it would save."""
