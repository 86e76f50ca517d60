"""What several workloads are built from."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

LEARNING_RATE = 1e-7
"""So small that no model learns its few random batches by heart while it is measured: gradients
would vanish, and factors of zero need less power."""


def half(device: str) -> torch.dtype:
    """Return the type that is half as wide: bfloat16, and on processor cores single precision.

    Cores only stand in for GPUs, and without AVX-512 they compute in bfloat16 slowly or not at all.
    """
    return torch.float32 if device == "cpu" else torch.bfloat16


def half_precision(device: str) -> contextlib.AbstractContextManager[object]:
    """Let matrix products and convolutions within compute in `half`, as mixed precision does."""
    kind = half(device)
    return torch.autocast(device_type=device, dtype=kind, enabled=kind != torch.float32)


def training(
    parameters: Iterable[Tensor],
    loss: Callable[..., Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> Callable[[], Tensor]:
    """Return a training step, which goes through the batches in turn and returns its loss."""
    turn = itertools.cycle(batches)
    steps = optimizer(parameters, lr=LEARNING_RATE)

    def step() -> Tensor:
        steps.zero_grad(set_to_none=True)
        value = loss(*next(turn))
        value.backward()
        steps.step()
        return value.detach()

    return step


class Block(nn.Module):
    """A layer of a transformer, normalised before attention and before its two products."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before_attention = nn.LayerNorm(width)
        self.to_heads = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.products = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        batch, length, width = x.shape
        heads = self.to_heads(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.from_heads(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.products(x)


class Tokens(nn.Module):
    """Embeddings of tokens and of their places."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) to (batch, length, width)."""
        return self.tokens(tokens) + self.places
