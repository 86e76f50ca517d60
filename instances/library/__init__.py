"""Instances shipped with Dovetail."""
