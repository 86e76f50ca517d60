"""Answers of a transformer encoder to requests that come in bursts, with idle gaps between them.

Bounded by launches and latency: a request is small, in half precision, and the answer is copied
to the host. What counts is how long a request waits, not how many are answered. Requests arrive
whether earlier ones are answered or not (open loop).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import nn

from .building import Block, Tokens, half

KIND = "inference"
FAMILY = "burst"
BATCH = {"full": 8, "tiny": 1}

_VOCABULARY, _CLASSES = 30_000, 1000
_LENGTH = {"full": 128, "tiny": 48}
_WIDTH = {"full": 1024, "tiny": 192}
_LAYERS = {"full": 24, "tiny": 4}

_REQUESTS = 16
_BETWEEN_S = {"full": 0.008, "tiny": 0.012}
_IDLE_S = 0.1


def prepare(device: str, size: str, seed: int) -> Callable[[], torch.Tensor]:
    """Return a function that answers one request."""
    torch.manual_seed(seed)
    width, length, kind = _WIDTH[size], _LENGTH[size], half(device)
    with torch.device(device):
        layers = [Block(width, width // 64, causal=False).to(kind) for _ in range(_LAYERS[size])]
        model = nn.Sequential(Tokens(_VOCABULARY, length, width).to(kind), *layers)
        head = nn.Linear(width, _CLASSES).to(kind)
    tokens = torch.randint(_VOCABULARY, (BATCH[size], length))

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return head(model(tokens.to(device)).mean(dim=1)).argmax(dim=1).cpu()

    return step


def gaps(draw: random.Random, size: str) -> Iterator[float]:
    """Yield exponential gaps, after a sixteenth of the requests a longer one."""
    while True:
        yield draw.expovariate(1 / _BETWEEN_S[size])
        if draw.random() < 1 / _REQUESTS:
            yield draw.expovariate(1 / _IDLE_S)
