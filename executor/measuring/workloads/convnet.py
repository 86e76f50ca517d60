"""Training of a convolutional net of residual blocks (ResNet-18, its widths and depths).

Bounded by tensor cores in the convolutions (bfloat16) and by memory in the normalisations between
them, in turns of a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from .building import half_precision, training

KIND = "training"
FAMILY = "convnet"
BATCH = {"full": 64, "tiny": 4}

_PIXELS = {"full": 224, "tiny": 32}
_WIDTHS = {"full": (64, 128, 256, 512), "tiny": (16, 32)}
_CLASSES = 1000


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
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


def _model(widths: tuple[int, ...]) -> nn.Module:
    stem = [
        nn.Conv2d(3, widths[0], 7, 2, 3, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks = [
        block
        for before, width in zip((widths[0], *widths), widths, strict=False)
        for block in (
            _Residual(before, width, 1 if before == width else 2),
            _Residual(width, width, 1),
        )
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], _CLASSES)]
    return nn.Sequential(*stem, *blocks, *head)


def prepare(device: str, size: str, seed: int) -> Callable[[], Tensor]:
    """Return a training step with momentum."""
    torch.manual_seed(seed)
    layout = {"memory_format": torch.channels_last}  # what tensor cores take without a copy
    pixels = _PIXELS[size]
    with torch.device(device):
        model = _model(_WIDTHS[size]).to(**layout)
        images = torch.randn(BATCH[size], 3, pixels, pixels).to(**layout)
        labels = torch.randint(_CLASSES, (BATCH[size],))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with half_precision(device):
            return functional.cross_entropy(model(images), labels)

    sgd = partial(torch.optim.SGD, momentum=0.9)
    return training(model.parameters(), loss, [(images, labels)], sgd)
