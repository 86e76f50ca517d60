"""Kernels with their forms, made where NVRTC and ``ptxas`` are, for a machine that has neither.

Small ones are those of the tests (``tests/isolation``): CUDA C and what Triton compiled. Large ones
run long enough to be stopped between blocks: a few in CUDA C below, and Triton's with larger
launches.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blocks.cuda import Shape

if TYPE_CHECKING:
    from dovetail.isolation.ptx import Module
    from tests.isolation.running import Case

ARCHITECTURE: Final = 90
FORMS: Final = ("slices", "workers")
_STEP: Final = 256
_MAKERS: Final = {
    "floats": lambda rng, n: rng.standard_normal(n, dtype=np.float32),
    "halves": lambda rng, n: (rng.standard_normal(n, dtype=np.float32) / 8).astype(np.float16),
    "ints": lambda rng, n: rng.integers(0, 100, n, dtype=np.int32),
    "words": lambda rng, n: np.zeros(n, np.uint32),
}


@dataclass(frozen=True)
class Prepared:
    """A kernel with its forms and a launch.

    Attributes
    ----------
    name, entry : str
        What it is called, and what it is called in its module.
    text : str
        The module with the forms.
    grid, block, shared
        Dimensions of the launch, and bytes of dynamic shared memory.
    arguments : sequence
        Integers; ``[offset]`` is a place in the launch's memory.
    data : str
        That memory, compressed, in base64; empty if ``arrays`` make it.
    arrays : sequence of (str, int)
        Kind and length of arrays, each at the next multiple of 256 bytes.
    forms : sequence of str
        The forms that the module has, by the name in the transformation.
    refused : mapping
        Why it has not the others.
    features : sequence of str
        What it has beyond arithmetic (``dovetail.isolation.proven``).
    """

    name: str
    entry: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: Sequence[Any]
    data: str = ""
    arrays: Sequence[tuple[str, int]] = ()
    forms: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] = ()

    @property
    def shape(self) -> Shape:
        """The launch as it is."""
        return Shape(tuple(self.grid), tuple(self.block), self.shared)

    def memory(self) -> bytes:
        """Return what is in the launch's memory at its begin."""
        if self.data:
            return gzip.decompress(base64.b64decode(self.data))
        rng, made = np.random.default_rng(1), b""
        for kind, count in self.arrays:
            made += bytes(-len(made) % _STEP) + _MAKERS[kind](rng, count).tobytes()
        return made

    def arguments_at(self, memory: int) -> list[int]:
        """Return the arguments where the launch's memory is at an address."""
        return [memory + one[0] if isinstance(one, list) else one for one in self.arguments]


def write(path: Path) -> int:
    """Prepare all kernels, write them to a file, and return their number."""
    made = [*_small(), *_large()]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump([asdict(one) for one in made], file)
    return len(made)


def read(path: Path) -> list[Prepared]:
    """Return the kernels of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Prepared(**one) for one in json.load(file)]


# Small kernels, of the tests.


def _small() -> Iterator[Prepared]:
    from dovetail.isolation.copies import pointers
    from dovetail.isolation.ptx import parse
    from tests.isolation.cuda_kernels import KERNELS
    from tests.isolation.nvrtc import compiled
    from tests.isolation.triton_cases import NAMES, loaded

    for name, written in KERNELS.items():
        are_pointers = [not isinstance(one, int) for one in written.arguments]
        module = parse(compiled(written.source, f"compute_{ARCHITECTURE}"))
        yield _tested(name, module, written.case(), are_pointers)
    for name in NAMES:
        one = loaded(name)
        bits = pointers(one.kernel)
        # Null pointers are Triton's own.
        are_pointers = [bool(bits >> n & 1 and value) for n, value in enumerate(one.case.arguments)]
        yield _tested(f"triton {name}", one.module, one.case, are_pointers)


def _tested(name: str, module: Module, case: Case, are_pointers: Sequence[bool]) -> Prepared:
    from tests.isolation.running import DATA_AT

    arguments = [
        [value - DATA_AT] if is_pointer else value
        for value, is_pointer in zip(case.arguments, are_pointers, strict=True)
    ]
    data = base64.b64encode(gzip.compress(case.data, mtime=0)).decode()
    launch = {"grid": case.grid, "block": case.block, "shared": case.dynamic_shared}
    return _with_forms(name, module, **launch, arguments=arguments, data=data)


def _with_forms(name: str, module: Module, **launch: Any) -> Prepared:  # noqa: ANN401
    """Return a kernel with all forms that it can have, proven or not."""
    from dovetail.isolation.kernels import LaunchShape, prepare
    from dovetail.isolation.proven import features

    (kernel,) = module.kernels
    # Targets with a letter have instructions that plain ones lack.
    target = f"sm_{ARCHITECTURE}" if module.target[-1].isdigit() else module.target
    text, kernels = prepare(module.text, target)
    made = kernels[kernel.name]
    shape = LaunchShape(launch["grid"], launch["block"], launch["shared"])
    refused = {form: made.why_not(form, shape) for form in FORMS}
    return Prepared(
        name=name,
        entry=kernel.name,
        text=text,
        forms=[form for form in FORMS if not refused[form]],
        refused={form: why for form, why in refused.items() if why},
        features=sorted(features(module, kernel)),
        **launch,
    )


# Large kernels.


@dataclass(frozen=True)
class _Large:
    """A source in CUDA C with a launch; ``arrays`` are its first arguments, numbers the others."""

    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arrays: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...] = ()
    shared: int = 0


LONG_BLOCKS: Final = "large long blocks"
"""Its last number says how long its blocks are, and any number of them has room."""

_LARGE: Final = {
    LONG_BLOCKS: _Large(
        """extern "C" __global__ void k(const float* x, float* y, int n, int rounds) {
        int i = (blockIdx.x * blockDim.x + threadIdx.x) % n;
        float a = x[i];
        for (int k = 0; k < rounds; ++k) a = a * 1.0001f + 0.5f;
        y[i] = a; }""",
        (2112, 1, 1),
        (256, 1, 1),
        (("floats", 1 << 19), ("words", 1 << 19)),
        (1 << 19, 20_000),
    ),
    "large short blocks": _Large(
        """extern "C" __global__ void k(const float4* x, float4* y) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 v = x[i];
        v.x = 2.f * v.x + 1.f; v.y -= 3.f; v.z *= v.z; v.w = -v.w;
        y[i] = v; }""",
        (32768, 1, 1),
        (128, 1, 1),
        (("floats", 1 << 24), ("words", 1 << 24)),
    ),
    "large product in tiles": _Large(
        """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
        __shared__ float s[16][16], t[16][16];
        int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * 16 + y, j = blockIdx.x * 16 + x;
        float v = 0.f;
        for (int k = 0; k < n; k += 16) {
            s[y][x] = a[i * n + k + x]; t[y][x] = b[(k + y) * n + j];
            __syncthreads();
            for (int q = 0; q < 16; q++) v += s[y][q] * t[q][x];
            __syncthreads();
        }
        c[i * n + j] = v; }""",
        (96, 96, 1),
        (16, 16, 1),
        (("floats", 1536 * 1536), ("floats", 1536 * 1536), ("words", 1536 * 1536)),
        (1536,),
    ),
    "large sum by atomics": _Large(
        """extern "C" __global__ void k(const int* x, int* y) {
        __shared__ int s[256];
        int t = threadIdx.x, v = 0;
        for (int k = 0; k < 8; k++) v += x[(blockIdx.x * 8 + k) * 256 + t] & 15;
        s[t] = v;
        __syncthreads();
        for (int d = 128; d; d >>= 1) {
            if (t < d) s[t] += s[t + d];
            __syncthreads();
        }
        if (!t) atomicAdd(y, s[0]); }""",
        (4096, 1, 1),
        (256, 1, 1),
        (("ints", 1 << 23), ("words", 64)),
    ),
    "large rows with early returns": _Large(
        """extern "C" __global__ void k(const float* x, float* y, int rows, int columns) {
        __shared__ float part[8];
        int row = blockIdx.x, t = threadIdx.x;
        if (row >= rows) return;
        float v = 0.f;
        for (int c = t; c < columns; c += blockDim.x) v += x[row * columns + c];
        for (int h = 16; h; h >>= 1) v += __shfl_down_sync(0xffffffff, v, h);
        if (t % 32 == 0) part[t / 32] = v;
        __syncthreads();
        if (t) return;
        for (int k = 1; k < 8; k++) v += part[k];
        y[row] = v; }""",
        (8200, 1, 1),
        (256, 1, 1),
        (("floats", 1 << 23), ("words", 8192)),
        (8192, 1024),
    ),
    "large turn in dynamic memory": _Large(
        """extern "C" __global__ void k(const int* x, int* y) {
        extern __shared__ int s[];
        int t = threadIdx.x, i = blockIdx.x * 256;
        for (int k = 0; k < 40; k++) {
            s[t] = x[i + (t + k) % 256];
            __syncthreads();
            y[i + t] = s[255 - t] + k;
            __syncthreads();
        } }""",
        (16384, 1, 1),
        (256, 1, 1),
        (("ints", 1 << 22), ("words", 1 << 22)),
        (),
        1028,
    ),
}

_Places = tuple[tuple[str, int], ...]
_TRITON: Final[Mapping[str, tuple[tuple[int, int, int], _Places, tuple[int, ...]]]] = {
    # Grid, arrays, and numbers; the constants are those of ``tests/isolation/triton_cases.py``.
    "softmax-90": (
        (32768, 1, 1), (("floats", 32768 * 200), ("words", 32768 * 200)), (200,)
    ),
    "layer_norm-90": (
        (32768, 1, 1),
        (("halves", 32768 * 240), ("floats", 240), ("words", 32768 * 120)),
        (240, 0x3727C5AC),
    ),
    "product-90": (
        (32, 32, 1),
        (("halves", 2048 * 2048), ("halves", 2048 * 2048), ("words", 1024 * 2048)),
        (2048, 2048),
    ),
    "attention-90": (
        (256, 1, 1),
        (*3 * (("halves", 16384 * 32),), ("words", 16384 * 16)),
        (16384, 0x3E4CCCCD),
    ),
}  # fmt: skip


def _large() -> Iterator[Prepared]:
    from dovetail.isolation.ptx import parse
    from tests.isolation.nvrtc import compiled
    from tests.isolation.triton_cases import loaded

    for name, one in _LARGE.items():
        module = parse(compiled(one.source, f"compute_{ARCHITECTURE}"))
        launch = {"grid": one.grid, "block": one.block, "shared": one.shared}
        given = {"arrays": one.arrays, "arguments": [*_places(one.arrays), *one.numbers]}
        yield _with_forms(name, module, **launch, **given)
    for name, (grid, arrays, numbers) in _TRITON.items():
        tested = loaded(name)
        launch = {"grid": grid, "block": tested.case.block, "shared": tested.case.dynamic_shared}
        given = {"arrays": arrays, "arguments": [*_places(arrays), *numbers, 0, 0]}
        yield _with_forms(f"large triton {name}", tested.module, **launch, **given)


def _places(arrays: Sequence[tuple[str, int]]) -> Iterator[list[int]]:
    """Yield where each array begins."""
    at = 0
    for kind, count in arrays:
        at += -at % _STEP
        yield [at]
        at += count * (2 if kind == "halves" else 4)
