"""The check of a machine for live mode."""
