"""The forms of plain instructions that the interpreter knows; all others are errors.

A modifier that is not looked at would be wrong in silence. Rounding to nearest is meant wherever
none is named, and ``.ftz``, ``.approx`` and ``.full`` are computed as if they were not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dovetail.isolation.ptx import Statement
from tests.isolation.tensor_cores import InterpreterError

_ORDER = r"(\.(volatile|weak|relaxed|acquire|release|acq_rel))?(\.(cta|cluster|gpu|sys))?"
_SPACE = r"(\.(global|local|shared|shared::cta|shared::cluster))?"
_CACHE = r"(\.(ca|cg|cs|lu|cv|wb|wt|L[12]::[\w:]+))*"
_INTEGER = r"\.[us](16|32|64)"
_BITS = r"\.b(16|32|64)"
_FLOAT = r"\.(f16|f32|f64|bf16|f16x2|bf16x2)"
_ONE_FLOAT = r"\.(f16|f32|f64|bf16)"
_NEAREST = rf"(\.rn)?(\.ftz)?(\.sat)?{_FLOAT}"
_CLOSE = rf"(\.(rn|approx|full))?(\.ftz)?{_FLOAT}"
_LOGIC = rf"(\.pred|{_BITS})"
_NUMBER = r"\.([usb](8|16|32|64)|f(16|32|64)|bf16)"
_MULTIPLIED = rf"(\.(lo|hi){_INTEGER}|\.wide\.[us](16|32)|{_NEAREST})"
_ADDED = r"\.add(\.noftz)?(\.L2::cache_hint)?\.([us]32|u64|f16|bf16|f32|f64)"
_COMPARED = r"\.(min|max)\.[us](32|64)|\.(and|or|xor)\.b(32|64)|\.(inc|dec)\.u32"
_SWAPPED = r"\.exch\.b(32|64)|\.cas\.b(16|32|64)"

_FORMS: Final[Mapping[str, str]] = {
    "bra": r"(\.uni)?",
    "brx": r"\.idx(\.uni)?",
    "ret": r"(\.uni)?",
    "exit": "",
    "trap": "",
    **dict.fromkeys(
        ("bar", "barrier"),
        r"(\.cta)?\.(sync(\.aligned)?|red(\.aligned)?\.((and|or)\.pred|popc\.u32))|\.warp\.sync",
    ),
    "shfl": r"\.sync\.(up|down|bfly|idx)\.b32",
    "vote": r"\.sync\.((all|any|uni)\.pred|ballot\.b32)",
    "redux": r"\.sync\.((add|min|max)\.[us]32|(and|or|xor)\.b32)",
    "activemask": r"\.b32",
    "ld": rf"{_ORDER}(\.param|{_SPACE}){_CACHE}(\.nc)?{_CACHE}(\.v[248])?({_NUMBER}|\.b128)",
    "ldu": rf"(\.global)?(\.v[24])?{_NUMBER}",
    "st": rf"{_ORDER}{_SPACE}{_CACHE}(\.v[248])?({_NUMBER}|\.b128)",
    "atom": rf"{_ORDER}{_SPACE}({_ADDED}|{_COMPARED}|{_SWAPPED})",
    "red": rf"{_ORDER}{_SPACE}({_ADDED}|{_COMPARED})",
    "mov": r"\.(pred|[bus](16|32|64)|b128|f(16|32|64))",
    "cvta": r"(\.to)?\.(global|local|param|shared|shared::cta)\.u(32|64)",
    "cvt": rf"(\.r[nzmp]i|\.rn)?(\.ftz)?(\.sat)?{_NUMBER}{_NUMBER}"
    r"|\.rn\.b?f16x2\.f32|\.rna\.tf32\.f32",
    "setp": rf"\.(eq|ne|num|nan|hi|hs|lo|ls|[lg][te]|(eq|ne|[lg][te])u)(\.(and|or|xor))?(\.ftz)?"
    rf"({_INTEGER}|{_BITS}|{_ONE_FLOAT})",
    "selp": r"\.([busf](16|32|64)|bf16)",
    **dict.fromkeys(("add", "sub"), rf"({_INTEGER}|{_NEAREST})"),
    **dict.fromkeys(("mul", "mad"), _MULTIPLIED),
    "fma": rf"\.rn(\.ftz)?(\.sat)?{_FLOAT}",
    "div": rf"({_INTEGER}|{_CLOSE})",
    "rem": _INTEGER,
    "sad": _INTEGER,
    **dict.fromkeys(("neg", "abs"), rf"(\.s(16|32|64)|(\.ftz)?{_FLOAT})"),
    **dict.fromkeys(("min", "max"), rf"({_INTEGER}|(\.ftz)?{_FLOAT})"),
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), _CLOSE),
    "copysign": r"\.f(32|64)",
    **dict.fromkeys(("and", "or", "xor", "not"), _LOGIC),
    **dict.fromkeys(("cnot", "shl", "brev"), _BITS),
    "shr": r"\.[bus](16|32|64)",
    "shf": r"\.[lr]\.(clamp|wrap)\.b32",
    "bfe": r"\.[us](32|64)",
    "bfi": r"\.b(32|64)",
    "bfind": r"\.u(32|64)",
    "prmt": r"\.b32",
    "lop3": r"\.b32",
    **dict.fromkeys(("clz", "popc"), r"\.b(32|64)"),
}

_ELSEWHERE: Final = frozenset({"ldmatrix", "stmatrix", "mma", "wgmma", "mbarrier", "cp"})
"""Instructions that say themselves which of their forms are known."""

WITHOUT_EFFECT: Final = frozenset(
    {"membar", "fence", "nanosleep", "prefetch", "prefetchu", "pragma"}
)
"""Instructions that change nothing here, where memory is the same for all at once."""


def require_known(one: Statement) -> None:
    """Refuse an instruction, or a form of it, that the interpreter does not compute."""
    if one.family in _ELSEWHERE or one.family in WITHOUT_EFFECT:
        return
    form = _FORMS.get(one.family)
    if form is None or not re.fullmatch(form, one.opcode[len(one.family) :]):
        raise InterpreterError(f"unknown form of {one.text}")
