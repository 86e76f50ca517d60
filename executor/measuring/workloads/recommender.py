"""Training of a recommender (as DLRM: a large table of embeddings, their pairs, small layers).

Bounded by access to scattered rows of device memory, of which each step reads and writes but a
small part. Single precision, as such models are trained; its gradients are sparse.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import training

KIND = "training"
FAMILY = "recommender"
BATCH = {"full": 32_768, "tiny": 128}

_ROWS = {"full": 6_000_000, "tiny": 20_000}
_WIDTH = {"full": 64, "tiny": 16}
_FEATURES, _NUMBERS = 26, 13
_BATCHES = 4


class _Recommender(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=True)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.numbers = nn.Sequential(
            nn.Linear(_NUMBERS, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = (_FEATURES + 1) ** 2
        self.answer = nn.Sequential(
            nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()
        )
        self.last = nn.Linear(256, 1)

    def forward(self, chosen: Tensor, numbers: Tensor) -> Tensor:
        dense = self.numbers(numbers)
        vectors = torch.cat([dense[:, None], self.table(chosen)], dim=1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.last(self.answer(torch.cat([dense, pairs], dim=1)))[:, 0]


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with plain gradient descent: was it clicked at, or not."""
    torch.manual_seed(seed)
    rows, batch = _ROWS[size], BATCH[size]
    with torch.device(device):
        model = _Recommender(rows, _WIDTH[size])
        batches = [
            (
                torch.randint(rows, (batch, _FEATURES)),
                torch.randn(batch, _NUMBERS),
                torch.randint(2, (batch,)).float(),
            )
            for _ in range(_BATCHES)
        ]

    def loss(chosen: Tensor, numbers: Tensor, clicked: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(chosen, numbers), clicked)

    return training(model.parameters(), loss, batches, torch.optim.SGD)
