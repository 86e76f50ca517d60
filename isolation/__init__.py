"""Isolation of a latency-critical job at thread-block level (Tally, ASPLOS 2025).

``ptx`` reads kernels, ``transform`` rewrites them so that they can be launched in slices or be
preempted between blocks, ``refusals`` says which kernels cannot be rewritten and why, ``assemble``
passes the results through NVIDIA's assembler, and ``scheduler`` decides what a GPU runs next.
"""
