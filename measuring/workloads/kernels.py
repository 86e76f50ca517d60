"""Workloads of a few kernels, each bounded by one part of a GPU."""

from __future__ import annotations

import torch

from .building import half
from .loading import Step, built_in


@built_in(full=1, tiny=1)
def gemm(device: str, batch: int, full: bool) -> Step:
    """Products of large square matrices in half precision, one after the other.

    Bounded by tensor cores; highest power and fewest memory stalls of the built-in workloads.

    Full size: eight products of 8192 x 8192, 510 MiB.
    """
    width = 8192 if full else 512
    first = torch.randn(width, width, device=device, dtype=half(device))
    factor = torch.randn(width, width, device=device, dtype=half(device))
    factor *= width**-0.5  # keeps the scale
    results = torch.empty_like(first), torch.empty_like(first)

    def step() -> torch.Tensor:
        product = first
        for k in range(8):
            product = torch.mm(product, factor, out=results[k % 2])
        return product

    return step


@built_in(full=1, tiny=1)
def stream(device: str, batch: int, full: bool) -> Step:
    """Passes over three vectors, replacing each in turn by the mean of the others (as STREAM).

    Bounded by the bandwidth of device memory: two reads and a write for one multiplication.

    Full size: vectors of 512 MiB, 1540 MiB in all.
    """
    vectors = [torch.rand(2**27 if full else 2**20, device=device) for _ in range(3)]

    def step() -> torch.Tensor:
        for k in range(20):
            torch.lerp(vectors[k % 3 - 1], vectors[k % 3 - 2], 0.5, out=vectors[k % 3])
        return vectors[0]

    return step


@built_in(full=1, tiny=1)
def tiny(device: str, batch: int, full: bool) -> Step:
    """Three thousand kernels on a vector of 256 numbers, each waiting for the one before.

    Bounded by kernel launches, hence by the host; the GPU is mostly idle.

    Full size: 3,000 kernels, 1 MiB.
    """
    first, factor, offset = (torch.randn(256, device=device) for _ in range(3))

    def step() -> torch.Tensor:
        value = first
        for _ in range(1500):
            value = torch.tanh(torch.addcmul(offset, value, factor))
        return value

    return step
