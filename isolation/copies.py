"""Decides whether a kernel can be tried on copies of its memory, before a form of it is used.

The interception library runs a form and the whole kernel once each on copies of the memory that the
arguments point to, and compares them. This needs arguments that show all memory the kernel reaches:
pointers that stand alone, and no addresses that it loads from memory or from a structure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from dovetail.isolation.ptx import Function, Module, Statement

MOST_PARAMETERS: Final = 64
"""Pointers are told to the library as bits of a number."""

_PARAMETER: Final = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[busf](\d+)\b(?!.*\[)")
_NAME: Final = re.compile(r"%?[A-Za-z_$][\w$]*")
_TEXTURES: Final = re.compile(r"tex|tld4|txq|su(?:ld|st|red|q)|istypep")
_HALF: Final = 32
_ELSEWHERE: Final = ("shared", "local", "param", "shared::cta", "const")


def pointers(kernel: Function) -> int:
    """Return the parameters that may be pointers, as bits."""
    told = kernel.parameters[:MOST_PARAMETERS]
    return sum(1 << place for place, text in enumerate(told) if _bits(text) == 64)


def why_not_on_copies(module: Module, kernel: Function) -> str:
    """Return why a kernel cannot be tried on copies of its memory, empty if it can."""
    if len(kernel.parameters) > MOST_PARAMETERS:
        return f"it has more than {MOST_PARAMETERS} parameters"
    for one in kernel.body:
        if one.family == "call":
            return "it calls functions"
        if _TEXTURES.fullmatch(one.family):
            return "it uses textures or surfaces"
        if one.family == "tensormap" or one.has("tensor"):
            return "it uses tensor maps, which hold addresses"
    return "it loads addresses from memory or a structure" if _loads_addresses(kernel) else ""


def _bits(parameter: str) -> int:
    """Return the size of a plain parameter, 0 for a structure or for two words in one."""
    found = _PARAMETER.search(parameter)
    return int(found[1]) if found and int(found[1]) <= 64 else 0


def _loads_addresses(kernel: Function) -> bool:
    """Return whether an address may come from memory, or is put together from parts of 32 bits."""
    plain = {one.split()[-1] for one in kernel.parameters if _bits(one)}
    loaded: set[str] = set()  # numbers from memory, such as indices, and parameters of 32 bits
    addresses: set[str] = set()  # what may be an address from memory
    before = (-1, -1)
    while before != (len(loaded), len(addresses)):
        before = (len(loaded), len(addresses))
        for one in kernel.body:
            no_result = len(one.operands) < 2 or one.operands[0].startswith("[")
            if one.opcode.startswith(".") or no_result:
                continue
            results = _NAME.findall(one.operands[0])
            sources = {name for text in one.operands[1:] for name in _NAME.findall(text)}
            if _reads_memory(one, plain):
                (addresses if _width(one) >= 64 else loaded).update(results)
            elif sources & addresses:
                (loaded if _narrows(one) else addresses).update(results)
            elif sources & loaded:
                (addresses if _joins(one) else loaded).update(results)
    return any(
        name in addresses
        for one in kernel.body
        if one.opcode and not one.opcode.startswith(".") and not _is_elsewhere(one)
        for text in one.operands
        if text.startswith("[")
        for name in _NAME.findall(text)
    )


def _reads_memory(one: Statement, plain: Collection[str]) -> bool:
    """Return whether results may come from memory, a structure, or half of a parameter."""
    given = one.has("param") and _width(one) == 64 and one.operands[1].strip("[] ") in plain
    return one.family in ("ld", "ldu", "ldmatrix", "atom") and not given


def _is_elsewhere(one: Statement) -> bool:
    """Return whether all addresses of an instruction are of memory that is no argument's."""
    return any(map(one.has, _ELSEWHERE)) and not one.has("global")


def _joins(one: Statement) -> bool:
    """Return whether an instruction may make 64 bits of two halves, or move a half to its place."""
    if _width(one) < 64:
        return False
    match one.family:
        case "shl":
            return not re.fullmatch(r"[0-9]|[12][0-9]|3[01]", one.operands[2])
        case "mul" | "mad":
            factors = (text for text in one.operands[1:3] if text[0] in "-0123456789")
            return any(abs(int(text.rstrip("U"), 0)) >> _HALF for text in factors)
        case "mov":
            return one.operands[1].startswith("{")
    return one.family == "bfi"


def _width(one: Statement) -> int:
    found = re.search(r"\.[busf](\d+)$", one.opcode)
    return int(found[1]) if found else 64


def _narrows(one: Statement) -> bool:
    """Return whether a result has fewer than 64 bits."""
    kinds = re.findall(r"\.[busf](\d+)", one.opcode)
    if one.family == "setp":
        return True
    return bool(kinds) and int(kinds[0]) < 64 and not one.has("wide")
