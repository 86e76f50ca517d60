"""Instances and data sets: make, import, list and keep them."""
