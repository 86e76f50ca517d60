"""Measuring on a machine: campaigns, shares, and what live mode finds there."""
