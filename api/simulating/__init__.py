"""Simulations of traces: run, compare and draw them."""
