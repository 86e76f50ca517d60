"""Servers of models on shared GPUs: from loads and promised latencies to GPUs, splits and flags."""
