"""Kernels that Triton compiled, each with a launch and what NumPy makes of its data.

``benchmarks/isolation/triton_kernels.py --write tests/isolation/triton`` wrote the PTX.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.isolation.ptx import Function, Module, parse
from tests.isolation.interpreter import from_float
from tests.isolation.running import DATA_AT, Case
from tests.isolation.tensor_cores import E4M3

FOLDER = Path(__file__).with_name("triton")
NAMES = sorted(path.stem for path in FOLDER.glob("*.ptx"))


@dataclass(frozen=True)
class Loaded:
    """A kernel, its launch, and the result that NumPy computes, which is the last array."""

    module: Module
    kernel: Function
    case: Case
    expected: Any

    def close(self, left: bytes) -> bool:
        """Return whether memory holds the expected result, up to rounding."""
        found = np.frombuffer(left[-self.expected.nbytes :], self.expected.dtype)
        return bool(np.allclose(found, self.expected.ravel(), rtol=4e-3, atol=2e-3))


@functools.cache
def loaded(name: str) -> Loaded:
    """Return the kernel of a file."""
    text = (FOLDER / f"{name}.ptx").read_text()
    shared = re.search(r"shared memory: (\d+) bytes", text)
    assert shared is not None
    module = parse(text)
    (kernel,) = module.kernels
    case, expected = _CASES[name.rpartition("-")[0]](int(shared[1]))
    return Loaded(module, kernel, case, expected)


def _case(
    shared: int, grid: tuple[int, int, int], arrays: list[Any], *scalars: int
) -> tuple[Case, Any]:
    data, places = b"", []
    result = np.zeros_like(arrays[-1])
    for array in (*arrays[:-1], result):
        data += bytes(-len(data) % 64)
        places.append(DATA_AT + len(data))
        data += array.tobytes()
    # Triton's last two parameters are scratch memory.
    return Case(grid, (128, 1, 1), data, (*places, *scalars, 0, 0), shared), arrays[-1]


def _softmax(shared: int) -> tuple[Case, Any]:
    x = np.random.default_rng(1).normal(size=(3, 200)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    return _case(shared, (3, 1, 1), [x, (e / e.sum(1, keepdims=True)).astype(np.float32)], 200)


def _layer_norm(shared: int) -> tuple[Case, Any]:
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(3, 240)).astype(np.float16), rng.normal(size=240)
    wide, weight = x.astype(np.float64), weight.astype(np.float32)
    made = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    arrays = [x, weight, (made * weight).astype(np.float16)]
    return _case(shared, (3, 1, 1), arrays, 240, from_float(1e-5, "f32"))


def _product(shared: int) -> tuple[Case, Any]:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=size).astype(np.float16) for size in ((64, 96), (96, 128)))
    made = a.astype(np.float64) @ b.astype(np.float64)
    return _case(shared, (1, 2, 1), [a, b, made.astype(np.float16)], 96, 128)


def _turned_product(shared: int, kind: str) -> tuple[Case, Any]:
    """A product with a transposed matrix of small numbers, which all types have."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-6, 7, size) for size in ((64, 128), (128, 128)))
    if kind == "int8":
        arrays = [a.astype(np.int8), b.astype(np.int8), (a @ b.T).astype(np.int32)]
    else:
        made = ((a / 4) @ (b / 4).T).astype(np.float32)
        codes = {value: code for code, value in enumerate(E4M3.tolist())}
        held = [
            (one / 4).astype(np.float32)
            if kind == "tf32"
            else np.array([codes[value] for value in (one / 4).ravel().tolist()], np.uint8)
            for one in (a, b)
        ]
        arrays = [*held, made]
    return _case(shared, (1, 2, 1), arrays, 128, 128)


def _attention(shared: int) -> tuple[Case, Any]:
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(128, 32)).astype(np.float16) for _ in range(3))
    wide = [one.astype(np.float64) for one in (q, k, v)]
    score = wide[0] @ wide[1].T * 0.2
    e = np.exp(score - score.max(1, keepdims=True))
    made = (e / e.sum(1, keepdims=True)) @ wide[2]
    arrays = [q, k, v, made.astype(np.float16)]
    return _case(shared, (2, 1, 1), arrays, 128, from_float(0.2, "f32"))


_CASES: dict[str, Callable[[int], tuple[Case, Any]]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "product": _product,
    **{
        f"product-{kind}": functools.partial(_turned_product, kind=kind)
        for kind in ("tf32", "int8", "e4m3")
    },
    "attention": _attention,
}
