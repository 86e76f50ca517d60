"""NVIDIA MPS: one control daemon per GPU, spoken to through its own command line."""
