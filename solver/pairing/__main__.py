"""Compiles the kernels ahead, once, at low priority: ``python -m dovetail.solver.pairing``."""

from __future__ import annotations

import os
from typing import Final

from dovetail.solver.pairing.compilation import can_compile, is_kept
from dovetail.solver.pairing.matching import compile_kernels

_LOW_PRIORITY: Final = 19

if __name__ == "__main__":
    os.nice(_LOW_PRIORITY)
    if can_compile() and not is_kept():
        compile_kernels()
