"""Rounds solved exactly by our own engine, and the proofs of their bounds."""
