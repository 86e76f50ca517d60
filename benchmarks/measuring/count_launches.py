"""Count the kernels that an iteration of a built-in workload launches on a GPU, without one.

::

    python benchmarks/measuring/count_launches.py [NAME ...]

It needs PyTorch alone and prints a line of JSON, which ``LAUNCHES`` in ``measuring/workloads``
holds. A workload is built at full size and in half precision of fake tensors, which have a shape
and no data, and the operators of an iteration are counted as they are dispatched. An operator
launches one kernel, or as many as `KERNELS` says; one on lists of tensors (``_foreach``, the form
of optimisers on a GPU) as many as the limits of its launches require. Views and allocations launch
none. So sorts within an operator and products that are split count once: figures are lower bounds
by some per cent. ``lstm`` is left out, as cuDNN chooses the kernels of a recurrent layer.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER = Path(__file__).resolve().parents[2] / "measuring" / "workloads"

UNCOUNTED = ("lstm",)

KERNELS = {
    "convolution_backward": 2,
    "native_layer_norm_backward": 2,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 3,
}
"""Operators of several kernels; the last stands for the one of a GPU."""

NONE = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "transpose", "permute", "expand", "t", "unsqueeze"),
        *("squeeze", "detach", "alias", "as_strided", "as_strided_", "set_", "slice", "select"),
        *("split", "chunk", "unbind", "narrow", "empty", "empty_like", "empty_strided"),
        *("new_empty", "lift_fresh", "_local_scalar_dense", "_indices", "_values"),
        "_sparse_coo_tensor_with_dims_and_tensors",
    )
)
"""Operators that launch no kernel."""

CHUNK, BLOCKS, TENSORS = 65_536, 320, (110, 64, 48, 36, 30)
"""Limits of a launch on lists of tensors (ATen's ``MultiTensorApply.cuh``): elements of a block,
blocks, and tensors by the number of lists."""


def foreach_launches(sizes: Sequence[int], lists: int) -> int:
    """Return the launches of an operator on lists of tensors of these numbers of elements."""
    launches = tensors = blocks = 0
    for size in sizes:
        tensors += 1
        chunks = math.ceil(size / CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == BLOCKS or (tensors == TENSORS[lists - 1] and last):
                launches += 1
                blocks, tensors = 0, 0 if last else 1
    return launches + (blocks > 0)


class Launches(TorchDispatchMode):
    """Counts the kernels of the operators that are dispatched within."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        function: torch._ops.OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Count an operator, and run it; one that only calls others is replaced by them."""
        kwargs = kwargs or {}
        if function.namespace == "aten":
            with self:
                parts = function.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            self.count += launches(function.__name__.partition(".")[0], args)
        return function(*args, **kwargs)


def launches(name: str, args: tuple[Any, ...]) -> int:
    """Return how many kernels an operator launches."""
    if not name.startswith("_foreach"):
        return 0 if name in NONE else KERNELS.get(name, 1)
    lists = [one for one in args if isinstance(one, list) and isinstance(one[0], torch.Tensor)]
    if all(tensor.dim() == 0 for tensor in lists[0]):
        return 0  # numbers of steps, which optimisers keep on the host
    made = 0 if name.endswith("_") else 1
    return foreach_launches([tensor.numel() for tensor in lists[0]], len(lists) + made)


def prepared() -> tuple[Callable[[str, str], Any], tuple[str, ...]]:
    """Return the function that loads a workload as for a GPU, and the names of all."""
    spec = importlib.util.spec_from_file_location("worker", FOLDER / "worker.py")
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    building = worker.imported("building")
    building.half = lambda device: torch.bfloat16
    building.half_precision = lambda device: torch.autocast("cpu", torch.bfloat16)
    torch.bincount = lambda found, minlength: torch.ones(minlength)  # known in advance
    nn.Module.to = converted  # type: ignore[method-assign, assignment]
    for name in ("adam", "sgd"):  # AdamW's step is that of Adam
        module: Any = importlib.import_module(f"torch.optim.{name}")
        module._default_to_fused_or_foreach = lambda *_, **__: (False, True)
    return worker.imported("loading").load, sys.modules[worker.PACKAGE].BUILT_IN


def converted(module: nn.Module, *kind: torch.dtype, **layout: torch.memory_format) -> nn.Module:
    """Convert the parameters of a module; PyTorch itself cannot exchange those of fake tensors."""
    for part in module.modules():
        for name, one in list(part.named_parameters(recurse=False)):
            if one.dim() == 4 or not layout:
                setattr(part, name, nn.Parameter(one.detach().to(*kind, **layout)))
    return module


def counted(load: Callable[[str, str], Any], name: str) -> int:
    """Return the launches of the second iteration: the first one creates optimisers' state."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = load(name, "full").prepare("cpu", "full", 0)
        step()
        with Launches() as found:
            step()
    return found.count


def main() -> None:
    load, names = prepared()
    chosen = sys.argv[1:] or [name for name in names if name not in UNCOUNTED]
    print(json.dumps({name: counted(load, name) for name in chosen}))


if __name__ == "__main__":
    main()
