"""Means of long vectors, element by element (as the STREAM benchmark), and nothing else.

Bounded by the bandwidth of device memory: two reads and a write for one multiplication.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

KIND = "training"
FAMILY = "stream"
BATCH = {"full": 1, "tiny": 1}

_ELEMENTS = {"full": 2**27, "tiny": 2**20}
_PASSES = 20


def prepare(device: str, size: str, seed: int) -> Callable[[], torch.Tensor]:
    """Return passes over three vectors, each in turn replaced by the mean of the others."""
    torch.manual_seed(seed)
    vectors = [torch.rand(_ELEMENTS[size], device=device) for _ in range(3)]

    def step() -> torch.Tensor:
        for k in range(_PASSES):
            torch.lerp(vectors[k % 3 - 1], vectors[k % 3 - 2], 0.5, out=vectors[k % 3])
        return vectors[0]

    return step
