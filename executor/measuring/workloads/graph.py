"""Training of a graph network that sends messages along edges (as GraphSAGE) by gather and scatter.

Bounded by scattered reads and by atomic additions: the edges' ends have no order, and few nodes
take part in many edges. Single precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import training

KIND = "training"
FAMILY = "graph"
BATCH = {"full": 100_000, "tiny": 2000}
"""Nodes: the whole graph is one batch."""

_EDGES_A_NODE = 12
_WIDTH = {"full": 128, "tiny": 32}
_LAYERS = 3
_CLASSES = 40


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.neighbours = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        messages = x.index_select(0, source)
        mean = torch.zeros_like(x).index_add_(0, target, messages) * weight
        return functional.relu(self.own(x) + self.neighbours(mean))


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with Adam: a class for each node."""
    torch.manual_seed(seed)
    nodes, width = BATCH[size], _WIDTH[size]
    edges = _EDGES_A_NODE * nodes
    with torch.device(device):
        layers = nn.ModuleList(_Layer(width) for _ in range(_LAYERS))
        head = nn.Linear(width, _CLASSES)
        features = torch.randn(nodes, width)
        source = (nodes * torch.rand(edges) ** 2).long()  # low numbers have most edges
        target = (nodes * torch.rand(edges) ** 2).long()
        labels = torch.randint(_CLASSES, (nodes,))
        weight = 1 / torch.bincount(target, minlength=nodes).clamp(min=1)[:, None]

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        x = features
        for layer in layers:
            x = layer(x, source, target, weight)
        return functional.cross_entropy(head(x), labels)

    parameters = [*layers.parameters(), *head.parameters()]
    return training(parameters, loss, [(features, labels)], torch.optim.Adam)
