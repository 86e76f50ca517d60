"""Registers of Triton's kernels (whole, in slices, preemptible) by architecture; needs no GPU.

    pip install triton './dovetail[isolation]'
    python benchmarks/isolation/triton_kernels.py

Triton compiles softmax, layer norm, a half-precision product and attention, without PyTorch; its
own ``ptxas`` assembles all forms. With ``--write FOLDER`` it only writes small versions of them as
PTX, and products of other types: those in ``tests/isolation/triton``, which the tests run.
"""

# Triton compiles its functions from their source, in which types have no place.
# ruff: noqa: ANN001, ANN201, ANN401, N803

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from dovetail.isolation.kernels import PreparedKernel, prepare

try:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ImportError:
    sys.exit("needs Triton: pip install triton")

TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120a"}


@triton.jit
def softmax(source, result, columns, SIZE: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < columns
    value = tl.load(source + row * columns + at, mask=inside, other=-float("inf"))
    exponential = tl.exp(value - tl.max(value, 0))
    tl.store(result + row * columns + at, exponential / tl.sum(exponential, 0), mask=inside)


@triton.jit
def layer_norm(source, weight, result, columns, epsilon, SIZE: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < columns
    value = tl.load(source + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    scale = tl.load(weight + at, mask=inside)
    tl.store(result + row * columns + at, centred / deviation * scale, mask=inside)


@triton.jit
def product(a, b, c, inner, across, SIZE: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    columns = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    step, total = tl.arange(0, STEP), tl.zeros((SIZE, SIZE), tl.float32)
    for begin in range(0, inner, STEP):
        left = tl.load(a + rows[:, None] * inner + begin + step[None, :])
        right = tl.load(b + (begin + step[:, None]) * across + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * across + columns[None, :], total.to(tl.float16))


@triton.jit
def turned_product(a, b, c, inner, across, SIZE: tl.constexpr, STEP: tl.constexpr):
    """The same for any type, of a matrix and a transposed one, which ``wgmma`` demands of most."""
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    columns = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    step, total = tl.arange(0, STEP), tl.zeros((SIZE, SIZE), c.dtype.element_ty)
    for begin in range(0, inner, STEP):
        left = tl.load(a + rows[:, None] * inner + begin + step[None, :])
        right = tl.load(b + columns[None, :] * inner + begin + step[:, None])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * across + columns[None, :], total)


@triton.jit
def attention(q, k, v, result, length, scale, SIZE: tl.constexpr, DEPTH: tl.constexpr):
    rows, deep = tl.program_id(0) * SIZE + tl.arange(0, SIZE), tl.arange(0, DEPTH)
    query = tl.load(q + rows[:, None] * DEPTH + deep[None, :])
    highest, weight = tl.full((SIZE,), -float("inf"), tl.float32), tl.zeros((SIZE,), tl.float32)
    total = tl.zeros((SIZE, DEPTH), tl.float32)
    for begin in range(0, length, SIZE):
        others = begin + tl.arange(0, SIZE)
        key = tl.load(k + others[None, :] * DEPTH + deep[:, None])
        score = tl.dot(query, key) * scale
        higher = tl.maximum(highest, tl.max(score, 1))
        fade, score = tl.exp(highest - higher), tl.exp(score - higher[:, None])
        weight = weight * fade + tl.sum(score, 1)
        value = tl.load(v + others[:, None] * DEPTH + deep[None, :])
        total = total * fade[:, None] + tl.dot(score.to(tl.float16), value)
        highest = higher
    tl.store(
        result + rows[:, None] * DEPTH + deep[None, :], (total / weight[:, None]).to(tl.float16)
    )


HALVES = dict.fromkeys(("a", "b", "c", "q", "k", "v", "source", "result"), "*fp16")
KERNELS: tuple[tuple[Any, dict[str, str], dict[str, int]], ...] = (
    (softmax, {"source": "*fp32", "result": "*fp32", "columns": "i32"}, {"SIZE": 1024}),
    (layer_norm, {"weight": "*fp32", "columns": "i32", "epsilon": "fp32"}, {"SIZE": 2048}),
    (product, {"inner": "i32", "across": "i32"}, {"SIZE": 64, "STEP": 32}),
    (attention, {"length": "i32", "scale": "fp32"}, {"SIZE": 64, "DEPTH": 64}),
)
TYPED = {  # of the operands, of the result, and the architectures whose tensor cores have the type
    "tf32": ("*fp32", "*fp32", (80, 90)),
    "int8": ("*i8", "*i32", (80, 90)),
    "e4m3": ("*fp8e4nv", "*fp32", (90,)),
}
SMALL = {
    "softmax": {"SIZE": 256},
    "layer_norm": {"SIZE": 256},
    "product": {"SIZE": 64, "STEP": 32},
    "attention": {"SIZE": 64, "DEPTH": 32},
}


def main() -> None:
    """Print a row for each kernel and architecture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write small kernels as PTX")
    if folder := parser.parse_args().write:
        _write(folder)
        return
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    newest = ptxas.with_name("ptxas-blackwell")
    print(f"Triton {triton.__version__}; registers a thread: whole, slices, workers")
    for kernel, types, constants in KERNELS:
        for capability, target in TARGETS.items():
            text = str(_compiled(kernel, types, constants, capability).asm["ptx"])
            _, found = prepare(text, target, newest if newest.exists() else ptxas)
            (one,) = found.values()
            print(f"{one.name:12} {target:8} {_row(one)}")


def _write(folder: Path) -> None:
    """Write the kernels for two architectures, without positions in the source and comments."""
    for kernel, types, _ in KERNELS:
        for capability in (80, 90):
            constants = SMALL[kernel.__name__]
            made = _compiled(kernel, types, constants, capability, ptx_version=80)
            (folder / f"{kernel.__name__}-{capability}.ptx").write_text(_bare(made))
    for name, (operands, result, capabilities) in TYPED.items():
        types = {"a": operands, "b": operands, "c": result, "inner": "i32", "across": "i32"}
        constants = {"SIZE": 64, "STEP": 32 if name == "tf32" else 64}
        for capability in capabilities:
            made = _compiled(turned_product, types, constants, capability, ptx_version=80)
            (folder / f"product-{name}-{capability}.ptx").write_text(_bare(made))


def _bare(made: Any) -> str:
    text, shared = made.asm["ptx"], made.metadata.shared
    text = text[: text.index("\t.section")] if "\t.section" in text else text
    text = re.sub(r"[ \t]*//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"
    return f"// Triton {triton.__version__}, dynamic shared memory: {shared} bytes\n{text}"


def _compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, int], cc: int, **options: int
) -> Any:
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, HALVES.get(name))
        for name in names
    }
    # As at run time, arrays begin at multiples of 16 bytes, and their sizes are such.
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(signature.values())
        if options and kind not in ("constexpr", "fp32")
    }
    given = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=given, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", cc, 32), options=options)


def _row(one: PreparedKernel) -> str:
    cells = [f"{one.usage.registers:4}" if one.usage else "   -"]
    for form in ("slices", "workers"):
        usage = one.forms.get(form)  # type: ignore[call-overload]
        spilled = f" ({usage.spilled_bytes} bytes spilled)" if usage and usage.spilled_bytes else ""
        cells.append(f"{usage.registers:4}{spilled}" if usage else one.refused[form])  # type: ignore[index]
    return "  ".join(cells)


if __name__ == "__main__":
    main()
