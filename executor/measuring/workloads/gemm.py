"""Products of large square matrices in bfloat16, one after the other, and nothing else.

Bounded by tensor cores: of the ten, the highest power and the least wait for memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .building import half

KIND = "training"
FAMILY = "gemm"
BATCH = {"full": 1, "tiny": 1}

_WIDTH = {"full": 8192, "tiny": 512}
_PRODUCTS = 8


def prepare(device: str, size: str, seed: int) -> Callable[[], torch.Tensor]:
    """Return a chain of products that starts anew at every iteration."""
    torch.manual_seed(seed)
    width = _WIDTH[size]
    first = torch.randn(width, width, device=device, dtype=half(device))
    factor = (
        torch.randn(width, width, device=device, dtype=half(device)) * width**-0.5
    )  # keeps the scale
    results = torch.empty_like(first), torch.empty_like(first)

    def step() -> torch.Tensor:
        product = first
        for k in range(_PRODUCTS):
            product = torch.mm(product, factor, out=results[k % 2])
        return product

    return step
