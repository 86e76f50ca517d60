"""Training of a transformer encoder (half of BERT-base: its width, six of its layers).

Bounded by tensor cores in the products of its layers (bfloat16), with memory-bound
normalisations, activations and optimizer steps between them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import Block, Tokens, half_precision, training

KIND = "training"
FAMILY = "transformer"
BATCH = {"full": 32, "tiny": 2}

_VOCABULARY, _CLASSES = 8192, 100
_LENGTH = {"full": 256, "tiny": 32}
_WIDTH = {"full": 768, "tiny": 128}
_LAYERS = {"full": 6, "tiny": 2}


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with AdamW: one class for each text."""
    torch.manual_seed(seed)
    width, length, batch = _WIDTH[size], _LENGTH[size], BATCH[size]
    with torch.device(device):
        layers = [Block(width, width // 64, causal=False) for _ in range(_LAYERS[size])]
        model = nn.Sequential(Tokens(_VOCABULARY, length, width), *layers)
        head = nn.Linear(width, _CLASSES)
        texts = torch.randint(_VOCABULARY, (batch, length))
        labels = torch.randint(_CLASSES, (batch,))

    def loss(texts: Tensor, labels: Tensor) -> Tensor:
        with half_precision(device):
            return functional.cross_entropy(head(model(texts).mean(dim=1)), labels)

    parameters = [*model.parameters(), *head.parameters()]
    return training(parameters, loss, [(texts, labels)], torch.optim.AdamW)
