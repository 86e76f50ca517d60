"""Compiles the kernels ahead of time: ``python -m dovetail.solver.pairing``."""

from __future__ import annotations

from dovetail.solver.pairing.compilation import can_compile, is_kept
from dovetail.solver.pairing.matching import compile_kernels

if __name__ == "__main__":
    if can_compile() and not is_kept():
        compile_kernels()
