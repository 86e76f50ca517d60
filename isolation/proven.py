"""Which forms of which kernels have computed right on hardware; all others are off by default.

The key is the GPU's architecture, the form, and the kernel's *features*: the instructions beyond
arithmetic, branches and global memory that it uses. A form of a kernel is proven if each of its
features was in some kernel whose results in that form were right, bit for bit, on a GPU of that
architecture.

What was measured on an H200 in November 2026: slices of five kernels in CUDA C (vectors, a long
loop, a product in shared memory, a reduction that adds integers atomically without results) and of
Triton's softmax and products of 64 x 64 and 128 x 128 with ``wgmma``. Their PTX was not kept; the
features are those that the same sources have when compiled again. Workers were measured, too, but
with other storage in shared memory than today's, so none of them is proven.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from dovetail.isolation.ptx import Function, Module, Statement
from dovetail.isolation.transform import is_block_barrier

Form = Literal["slices", "workers"]

PROVEN: Final[Mapping[tuple[int, Form], frozenset[str]]] = {
    (90, "slices"): frozenset(
        {
            "shared",
            "barrier 0",
            "shfl",
            "atomics without results",
            "cp.async",
            "ldmatrix",
            "fence",
            "wgmma",
        }
    )
}
"""The proven features by architecture (90 for ``sm_90``) and form."""

_PLAIN: Final = re.compile(
    r"abs|add|and|bfe|bfi|bfind|bra|brev|brx|clz|cnot|copysign|cos|cvt|cvta|div|ex2|exit|"
    r"fma|ld|ldu|lg2|lop3|mad|max|min|mov|mul|neg|not|or|popc|prefetch|prmt|rcp|rem|ret|"
    r"rsqrt|sad|selp|set|setp|shf|shl|shr|sin|slct|sqrt|st|sub|tanh|testp|trap|xor"
)
_NAME: Final = re.compile(r"%?[\w$]+")
_ANY_ORDER: Final = re.compile(r"(add|and|or|xor|min|max)(?:\.L2::\w+)?\.([bsu])(32|64)")
"""Atomic operations on integers that leave the same in any order, alone with their like."""

_SPECIAL: Final = re.compile(
    r"%(?:n?smid|clock(?:_hi|64)?|globaltimer(?:_lo|_hi)?|envreg\d+|gridid|n?warpid|pm\d\w*)\b"
)


def features(module: Module, kernel: Function) -> frozenset[str]:
    """Return the features of a kernel and of the functions that its module has."""
    functions = (one for one in module.functions.values() if one.kind == "func")
    found: set[str] = set()
    operations: set[str] = set()
    for function in (kernel, *functions):
        named = Counter(name for one in function.body for name in _NAME.findall(one.text))
        for statement in function.body:
            found.update(_of(statement))
            if statement.family in ("atom", "red"):
                found.add(_of_atomic(statement, named))
                operations.add(_operation(statement))
    if len(operations) > 1:
        # In one place, a maximum before a sum leaves another number than one after it.
        found.add("atomics of several kinds")
    return frozenset(found)


def why_unproven(module: Module, kernel: Function, form: Form, architecture: int) -> str:
    """Return why a form of a kernel is not proven on an architecture, empty if it is."""
    proven = PROVEN.get((architecture, form))
    if proven is None:
        return f"{form} are not proven on sm_{architecture}"
    missing = sorted(features(module, kernel) - proven)
    return (
        f"{form} with {', '.join(missing)} are not proven on sm_{architecture}" if missing else ""
    )


def _of(one: Statement) -> Iterator[str]:
    """Yield the features of a statement."""
    yield from _SPECIAL.findall(one.text)
    if one.opcode.startswith("."):
        if one.opcode == ".shared":
            yield "shared"
        return
    if not one.family:
        return
    if any(part.startswith("shared") for part in one.opcode.split(".")):
        yield "shared"
    if is_block_barrier(one):
        yield "barrier 0" if one.has("sync") and one.operands == ("0",) else "numbered barriers"
    elif one.family == "cp" and one.has("async"):
        yield "cp.async.bulk" if one.has("bulk") else "cp.async"
    elif one.family == "ld" and any(map(one.has, ("volatile", "acquire", "relaxed", "mmio"))):
        yield "loads of what others write"
    elif one.family not in ("atom", "red") and not _PLAIN.fullmatch(one.family):
        yield one.family


def _of_atomic(one: Statement, named: Counter[str]) -> str:
    """Return the feature of an atomic instruction; ``named`` is how often each name occurs."""
    if re.search(r"\.b?f\d", one.opcode):
        return "atomics on floats"
    results = _NAME.findall(one.operands[0]) if one.family == "atom" else []
    if any(name != "_" and named[name] > 1 for name in results):
        return "atomics with results"
    in_any_order = _ANY_ORDER.search(one.opcode)
    return "atomics without results" if in_any_order else "atomics whose order counts"


def _operation(one: Statement) -> str:
    """Return what an atomic instruction does; the sign of a type counts where it decides."""
    found = _ANY_ORDER.search(one.opcode)
    if not found:
        return one.opcode
    name, sign, bits = found.groups()
    return f"{name}.{sign if name in ('min', 'max') else 'b'}{bits}"
