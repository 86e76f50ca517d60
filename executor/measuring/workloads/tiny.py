"""Three thousand kernels on a vector of 256 numbers, each waiting for the one before.

Bounded by launches, hence by the host: the GPU is idle for most of the time. Single precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

KIND = "training"
FAMILY = "tiny"
BATCH = {"full": 1, "tiny": 1}

_ELEMENTS = 256
_PAIRS = 1500


def prepare(device: str, size: str, seed: int) -> Callable[[], torch.Tensor]:
    """Return a chain of kernels, the same in both sizes, that starts anew at every iteration."""
    torch.manual_seed(seed)
    first, factor, offset = (torch.randn(_ELEMENTS, device=device) for _ in range(3))

    def step() -> torch.Tensor:
        value = first
        for _ in range(_PAIRS):
            value = torch.tanh(torch.addcmul(offset, value, factor))
        return value

    return step
