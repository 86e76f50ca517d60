"""Building blocks of workloads."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from .loading import Step

LEARNING_RATE = 1e-7
"""Too small to memorise the few random batches, since vanishing gradients would draw less
power."""

_BEFORE_CAPTURE = 3
"""Iterations before a graph is captured, as PyTorch's documentation of CUDA graphs asks for."""


def half(device: str) -> torch.dtype:
    """Return bfloat16, or single precision on processor cores.

    Without AVX-512, cores compute in bfloat16 slowly or not at all.
    """
    return torch.float32 if device == "cpu" else torch.bfloat16


def half_precision(device: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which matrix products and convolutions compute in `half`."""
    kind = half(device)
    return torch.autocast(device_type=device, dtype=kind, enabled=kind != torch.float32)


def parameters_of(*modules: nn.Module) -> list[Tensor]:
    """Return the parameters of several modules."""
    return [parameter for module in modules for parameter in module.parameters()]


def captured(step: Step, device: str) -> Step:
    """Return an iteration as one CUDA graph, which the host launches at once; itself on a core.

    ``step`` must use the same memory and the same kernels each time, and never wait for the GPU.
    """
    if device != "cuda":
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_BEFORE_CAPTURE):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as those of a library that intercepts launches, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay


def training(
    parameters: Iterable[Tensor],
    loss: Callable[..., Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    optimizer: Callable[..., torch.optim.Optimizer],
) -> Step:
    """Return a training step that cycles through the batches and returns its loss."""
    turn = itertools.cycle(batches)
    steps = optimizer(parameters, lr=LEARNING_RATE)

    def step() -> Tensor:
        steps.zero_grad(set_to_none=True)
        value = loss(*next(turn))
        value.backward()
        steps.step()
        return value.detach()

    return step
