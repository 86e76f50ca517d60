"""Training of a language model of two LSTM layers.

Bounded by latency: each step in time waits for the one before, and its products (bfloat16) are
too small to fill a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import half_precision, training

KIND = "training"
FAMILY = "lstm"
BATCH = {"full": 32, "tiny": 4}

_VOCABULARY = {"full": 10_000, "tiny": 200}
_LENGTH = {"full": 128, "tiny": 32}
_WIDTH = {"full": 1024, "tiny": 128}


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with plain gradient descent, as such models are trained."""
    torch.manual_seed(seed)
    width, vocabulary = _WIDTH[size], _VOCABULARY[size]
    with torch.device(device):
        tokens = nn.Embedding(vocabulary, width)
        layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        head = nn.Linear(width, vocabulary)
        texts = torch.randint(vocabulary, (BATCH[size], _LENGTH[size] + 1))

    def loss(texts: Tensor, following: Tensor) -> Tensor:
        with half_precision(device):
            scores = head(layers(tokens(texts))[0])
            return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    parameters = [p for part in (tokens, layers, head) for p in part.parameters()]
    batches = [(texts[:, :-1], texts[:, 1:])]
    return training(parameters, loss, batches, torch.optim.SGD)
