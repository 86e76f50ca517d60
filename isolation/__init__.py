"""Isolation of a latency-critical job at thread-block level (Tally, ASPLOS 2025).

For labs that run latency-critical jobs next to training. Without this room no pair is isolated;
plans, policies and the simulator support the share ``idle`` either way. It is registered in
``pyproject.toml`` like a third party's package (``dovetail.instances.plugins``):

- ``isolation.blocks`` (``schedulers``): implements the isolation of a GPU pool;
- ``doctor.machine.isolation`` (``doctor``): checks the machine's prerequisites.

Kernels: ``ptx`` reads them, ``transform`` rewrites them so that they can be launched in slices or
be preempted between blocks, ``refusals`` finds kernels that cannot be rewritten and the reason,
``proven`` names the kinds that computed right on hardware, ``copies`` the kernels that can be tried
on copies of their memory, ``assemble`` passes the results through NVIDIA's assembler. In a running
job: ``interception`` catches its launches, ``server`` is the process that decides on them, one for
each GPU and user, and ``scheduler`` chooses the forms of kernels.

Tests are in ``tests/isolation``, with a made-up GPU that interprets PTX, and benchmarks in
``benchmarks/isolation``, with a simulated one. The page is ``docs/explanation/isolation.md``.
"""
