"""Transformer workloads: three train, two infer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import captured, half, half_precision, parameters_of, training
from .loading import Step, built_in


class _TransformerLayer(nn.Module):
    """A layer with normalisation before attention and before the two products."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = width // 64, causal
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
        batch, length, width = x.shape
        heads = self.to_heads(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.from_heads(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.products(x)


class _TokenEmbedding(nn.Module):
    """Embeddings of tokens and positions."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places


def _classifier(device: str, batch: int, full: bool, length: int) -> Step:
    """Return a training step of a transformer encoder (BERT-base's width, six layers)."""
    width, layers = (768, 6) if full else (128, 2)
    vocabulary, classes = 8192, 100
    with torch.device(device):
        blocks = [_TransformerLayer(width, causal=False) for _ in range(layers)]
        model = nn.Sequential(_TokenEmbedding(vocabulary, length, width), *blocks)
        head = nn.Linear(width, classes)
        texts = torch.randint(vocabulary, (batch, length))
        labels = torch.randint(classes, (batch,))

    def loss(texts: Tensor, labels: Tensor) -> Tensor:
        with half_precision(device):
            return functional.cross_entropy(head(model(texts).mean(dim=1)), labels)

    return training(parameters_of(model, head), loss, [(texts, labels)], torch.optim.AdamW)


@built_in(full=32, tiny=2)
def transformer(device: str, batch: int, full: bool) -> Step:
    """Train a transformer encoder (BERT-base's width, six layers).

    Bounded by tensor cores in the products of its layers (bfloat16), with memory-bound
    normalisations, activations and optimiser steps between them.

    Full size: 32 texts of 256 tokens, 2480 MiB.
    """
    return _classifier(device, batch, full, 256 if full else 32)


@built_in(full=128, tiny=2)
def bulk(device: str, batch: int, full: bool) -> Step:
    """Train a transformer encoder with a large batch (the network of transformer).

    Bounded by tensor cores (bfloat16) and memory, in kernels so long that the host is always ahead
    of the GPU.

    Full size: 128 texts of 256 tokens, 11,500 MiB (extrapolated from batches of 4 and 12).
    """
    return _classifier(device, batch, full, 256 if full else 32)


@built_in(full=4, tiny=1)
def gpt(device: str, batch: int, full: bool) -> Step:
    """Train a small causal language model (as GPT-2).

    Bounded by tensor cores in its products (bfloat16) and by memory in the logits, which are
    several times larger than all other activations.

    Full size: 4 texts of 1024 tokens, 32,768 in the vocabulary, 3450 MiB.
    """
    vocabulary, length, width, layers = (32_768, 1024, 768, 6) if full else (512, 64, 128, 2)
    with torch.device(device):
        blocks = [_TransformerLayer(width, causal=True) for _ in range(layers)]
        tokens = _TokenEmbedding(vocabulary, length, width)
        model = nn.Sequential(tokens, *blocks, nn.LayerNorm(width))
        texts = torch.randint(vocabulary, (batch, length + 1))
    nn.init.normal_(tokens.tokens.weight, std=0.02)  # tied to the output layer

    def loss(texts: Tensor, following: Tensor) -> Tensor:
        with half_precision(device):
            scores = functional.linear(model(texts), tokens.tokens.weight)
            return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    batches = [(texts[:, :-1], texts[:, 1:])]
    return training(model.parameters(), loss, batches, torch.optim.AdamW)


def _bursts(draw: random.Random, size: str) -> Iterator[float]:
    """Yield exponential gaps, with a longer one after a sixteenth of the requests."""
    between_s = {"full": 0.008, "tiny": 0.012}[size]
    while True:
        yield draw.expovariate(1 / between_s)
        if draw.random() < 1 / 16:
            yield draw.expovariate(1 / 0.1)


@built_in(full=8, tiny=1, gaps=_bursts, kind="inference")
def burst(device: str, batch: int, full: bool) -> Step:
    """Answer bursts of requests with a transformer encoder.

    Bounded by kernel launches and latency: a request is small, in half precision, and the answer is
    copied to the host. Requests arrive whether or not earlier ones are answered (open loop), so
    latency counts, not throughput.

    Full size: 8 texts of 128 tokens, 24 layers, 830 MiB.
    """
    infer, tokens = _inference(device, batch, full)

    def step() -> Tensor:
        return infer(tokens.to(device)).cpu()

    return step


@built_in(full=8, tiny=1, kind="inference")
def encoder(device: str, batch: int, full: bool) -> Step:
    """Infer with a transformer encoder as one CUDA graph (the network of burst, without copies).

    Bounded by the latency of kernels in half precision, not by the host, which launches once for
    all of them.

    Full size: 8 texts of 128 tokens, 24 layers, 830 MiB.
    """
    infer, tokens = _inference(device, batch, full)
    tokens = tokens.to(device)
    return captured(lambda: infer(tokens), device)


def _inference(device: str, batch: int, full: bool) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a transformer encoder in half precision, and texts in the host's memory."""
    length, width, layers = (128, 1024, 24) if full else (48, 192, 4)
    vocabulary, classes, kind = 30_000, 1000, half(device)
    with torch.device(device):
        blocks = [_TransformerLayer(width, causal=False).to(kind) for _ in range(layers)]
        model = nn.Sequential(_TokenEmbedding(vocabulary, length, width).to(kind), *blocks)
        head = nn.Linear(width, classes).to(kind)
    tokens = torch.randint(vocabulary, (batch, length))

    def infer(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return head(model(tokens).mean(dim=1)).argmax(dim=1)

    return infer, tokens
