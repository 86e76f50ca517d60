"""Workloads that train networks other than transformers, on random labels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import half_precision, parameters_of, training
from .loading import Step, built_in


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.change = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*(shortcut if inputs != outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.change(x) + self.shortcut(x), inplace=True)


@built_in(full=64, tiny=4)
def convnet(device: str, batch: int, full: bool) -> Step:
    """Train a ResNet-18.

    Bounded by tensor cores in the convolutions (bfloat16) and by memory in the normalisations
    between them, alternating within fractions of a millisecond.

    Full size: 64 images of 224 pixels, 1280 MiB.
    """
    widths, pixels = ((64, 128, 256, 512), 224) if full else ((16, 32), 32)
    layout = {"memory_format": torch.channels_last}  # tensor cores need no copy of this layout
    ends = zip((widths[0], *widths), widths, strict=False)
    with torch.device(device):
        model = nn.Sequential(
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            *(block for a, b in ends for block in (_ResidualBlock(a, b), _ResidualBlock(b, b))),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], 1000),
        ).to(**layout)
        images = torch.randn(batch, 3, pixels, pixels).to(**layout)
        labels = torch.randint(1000, (batch,))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with half_precision(device):
            return functional.cross_entropy(model(images), labels)

    sgd = partial(torch.optim.SGD, momentum=0.9)
    return training(model.parameters(), loss, [(images, labels)], sgd)


@built_in(full=32, tiny=4)
def lstm(device: str, batch: int, full: bool) -> Step:
    """Train a language model of two LSTM layers with plain gradient descent.

    Bounded by latency: each time step depends on the one before, and its products (bfloat16) are
    too small to fill a GPU.

    Full size: 32 texts of 128 tokens, 970 MiB.
    """
    vocabulary, length, width = (10_000, 128, 1024) if full else (200, 32, 128)
    with torch.device(device):
        tokens = nn.Embedding(vocabulary, width)
        layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        head = nn.Linear(width, vocabulary)
        texts = torch.randint(vocabulary, (batch, length + 1))

    def loss(texts: Tensor, following: Tensor) -> Tensor:
        with half_precision(device):
            scores = head(layers(tokens(texts))[0])
            return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    batches = [(texts[:, :-1], texts[:, 1:])]
    return training(parameters_of(tokens, layers, head), loss, batches, torch.optim.SGD)


@built_in(full=32_768, tiny=128)
def recommender(device: str, batch: int, full: bool) -> Step:
    """Train a recommender (as DLRM: a large embedding table, pairwise products, small layers).

    Bounded by access to scattered rows of device memory. Single precision, as is usual for such
    models, with sparse gradients.

    Full size: 32,768 samples, 6 million rows of embeddings, 2380 MiB.
    """
    rows, width = (6_000_000, 64) if full else (20_000, 16)
    features, numbers = 26, 13
    with torch.device(device):
        table = nn.Embedding(rows, width, sparse=True)
        nn.init.normal_(table.weight, std=width**-0.5)
        below = nn.Sequential(nn.Linear(numbers, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        above = nn.Sequential(
            *(nn.Linear((features + 1) ** 2 + width, 512), nn.ReLU()),
            *(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)),
        )
        batches = [
            (
                torch.randint(rows, (batch, features)),
                torch.randn(batch, numbers),
                torch.randint(2, (batch,)).float(),
            )
            for _ in range(4)
        ]

    def loss(chosen: Tensor, numbers: Tensor, clicked: Tensor) -> Tensor:
        dense = below(numbers)
        vectors = torch.cat([dense[:, None], table(chosen)], dim=1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        scores = above(torch.cat([dense, pairs], dim=1))[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, clicked)

    return training(parameters_of(table, below, above), loss, batches, torch.optim.SGD)


@built_in(full=100_000, tiny=2000)
def graph(device: str, batch: int, full: bool) -> Step:
    """Train a graph network with message passing (as GraphSAGE) that classifies nodes.

    Bounded by scattered reads and atomic additions: edges are unordered, and a few nodes have most
    of them. Single precision. The whole graph is one batch.

    Full size: 100,000 nodes, 1.2 million edges, three layers, 2280 MiB.
    """
    nodes, edges, width, classes = batch, 12 * batch, 128 if full else 32, 40
    with torch.device(device):
        own = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        neighbour = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        head = nn.Linear(width, classes)
        features = torch.randn(nodes, width)
        source = (nodes * torch.rand(edges) ** 2).long()  # low numbers have most edges
        target = (nodes * torch.rand(edges) ** 2).long()
        labels = torch.randint(classes, (nodes,))
        weight = 1 / torch.bincount(target, minlength=nodes).clamp(min=1)[:, None]

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        for alone, neighbours in zip(own, neighbour, strict=True):
            mean = torch.zeros_like(x).index_add_(0, target, x.index_select(0, source)) * weight
            x = functional.relu(alone(x) + neighbours(mean))
        return functional.cross_entropy(head(x), labels)

    parameters = parameters_of(own, neighbour, head)
    return training(parameters, loss, [(features, labels)], torch.optim.Adam)
