"""NVIDIA MPS: one control daemon per GPU, driven through its own command line."""
