"""Isolation of a latency-critical job at thread-block level (Tally, ASPLOS 2025).

A room of its own: for labs that run latency-critical jobs next to training. Without it no pair is
isolated; plans, policies and the simulator know the share ``idle`` either way. It is registered in
``pyproject.toml`` as a third party would do it (``dovetail.instances.plugins``):

- ``isolation.blocks`` (``schedulers``): what a pool of GPUs asks of a way of isolation;
- ``doctor.machine.isolation`` (``doctor``): what the machine lacks for it.

Kernels: ``ptx`` reads them, ``transform`` rewrites them so that they can be launched in slices or
be preempted between blocks, ``refusals`` says which cannot be rewritten and why, ``assemble``
passes the results through NVIDIA's assembler. In a running job: ``interception`` catches its
launches, ``server`` is the process that they ask, one for each GPU and user, and ``scheduler``
decides what the GPU runs next.

Tests are in ``tests/isolation``, with a made-up GPU that interprets PTX, and benchmarks in
``benchmarks/isolation``, with a simulated one. The page is ``docs/explanation/isolation.md``.
"""
