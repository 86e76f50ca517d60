"""Training of a small causal language model (as GPT-2: long texts, a score for every next token).

Bounded by tensor cores in its products (bfloat16) and by memory in the scores of the vocabulary,
which are several times larger than anything else in it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import Block, Tokens, half_precision, training

KIND = "training"
FAMILY = "gpt"
BATCH = {"full": 4, "tiny": 1}

_VOCABULARY = {"full": 32_768, "tiny": 512}
_LENGTH = {"full": 1024, "tiny": 64}
_WIDTH = {"full": 768, "tiny": 128}
_LAYERS = {"full": 6, "tiny": 2}


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with AdamW; scores are products with the tokens' embeddings."""
    torch.manual_seed(seed)
    width, length, vocabulary = _WIDTH[size], _LENGTH[size], _VOCABULARY[size]
    with torch.device(device):
        layers = [Block(width, width // 64, causal=True) for _ in range(_LAYERS[size])]
        tokens = Tokens(vocabulary, length, width)
        model = nn.Sequential(tokens, *layers, nn.LayerNorm(width))
        texts = torch.randint(vocabulary, (BATCH[size], length + 1))
    nn.init.normal_(tokens.tokens.weight, std=0.02)  # they are the last product's weights, too

    def loss(texts: Tensor, following: Tensor) -> Tensor:
        with half_precision(device):
            scores = functional.linear(model(texts), tokens.tokens.weight)
            return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    batches = [(texts[:, :-1], texts[:, 1:])]
    return training(model.parameters(), loss, batches, torch.optim.AdamW)
