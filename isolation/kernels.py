"""Prepares a module for scheduling at block level: adds the possible forms of each kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dovetail.isolation.assemble import AssemblerError, KernelResources, assemble
from dovetail.isolation.proven import Form
from dovetail.isolation.ptx import Function, Module, parse
from dovetail.isolation.refusals import Verdict, verdict
from dovetail.isolation.scheduler import Kind
from dovetail.isolation.transform import (
    STORAGE,
    STORAGE_BYTES,
    own_dynamic_bytes,
    slices,
    workers,
)

_MOST_BLOCKS: Final = (1 << 32) - (1 << 20)
"""The workers' counter has 32 bits, and each worker may increment it after the last block."""
_REGISTERS_A_BLOCK: Final = 65_536
_REGISTERS_AT_A_TIME: Final = 8
_WARP: Final = 32
_STATIC_STEP: Final = 16
_WARPS_AT_A_TIME: Final = 4
_SHARED_AT_A_TIME: Final = 128
_OWN_SHARED_BYTES: Final = 1024
"""Shared memory that the system adds to a block, from ``sm_80`` on."""

_OF_AN_SM: Final[Mapping[int, tuple[int, int]]] = {
    75: (1024, 16),
    86: (1536, 16),
    87: (1536, 16),
    89: (1536, 24),
    110: (1536, 24),
    120: (1536, 24),
    121: (1536, 24),
}
"""The most threads and blocks of an SM by architecture; of all others 2,048 and 32."""


@dataclass(frozen=True)
class LaunchShape:
    """The parameters of a launch except the kernel's arguments.

    Attributes
    ----------
    grid, block : tuple of int
        Dimensions in x, y and z.
    dynamic_shared_bytes, most_shared_bytes : int
        Shared memory that the launch adds, and the most that a block may have.
    together : bool
        Whether the launch is cooperative or has clusters, so that blocks may wait for each other.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0
    most_shared_bytes: int = 48 * 1024
    together: bool = False

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel with its available forms.

    Attributes
    ----------
    name : str
        Name of the original kernel.
    verdict : Verdict
        The forms that its code allows.
    usage : KernelResources, optional
        Resources of the original kernel; None if it was not assembled.
    forms : mapping of str to KernelResources
        The forms that the assembler has accepted.
    refused : mapping of str to str
        The missing forms, with the reason.
    architecture : int
        The GPU's, 90 for ``sm_90``.
    """

    name: str
    verdict: Verdict
    usage: KernelResources | None
    forms: Mapping[Form, KernelResources]
    refused: Mapping[Form, str]
    architecture: int

    def why_not(self, form: Form, shape: LaunchShape) -> str:
        """Return why a launch cannot use a form, empty if it can."""
        if form not in self.forms:
            return self.refused[form]
        if shape.together:
            return "its blocks may wait for each other"
        if shape.blocks > _MOST_BLOCKS:
            return "its blocks cannot be numbered in 32 bits"
        if form == "workers" and self.verdict.whole_warps and not _has_whole_warps(shape.block):
            return "its warps are not rows of 32 threads"
        usage = self.forms[form]
        each = -(-usage.registers // _REGISTERS_AT_A_TIME) * _REGISTERS_AT_A_TIME
        if each * -(-shape.threads // _WARP) * _WARP > _REGISTERS_A_BLOCK:
            return f"{usage.registers} registers per thread are too many for its blocks"
        if usage.shared_bytes + _dynamic_bytes(form, shape) > shape.most_shared_bytes:
            return "there is not enough shared memory for it"
        return ""

    def resident(self, form: Kind, shape: LaunchShape) -> int:
        """Return how many blocks of a launch an SM holds, by NVIDIA's rules of occupancy."""
        usage = self.usage or KernelResources(0) if form == "whole" else self.forms[form]
        threads, blocks = _OF_AN_SM.get(self.architecture, (2048, 32))
        warps = -(-shape.threads // _WARP)
        each = max(1, -(-usage.registers // _REGISTERS_AT_A_TIME)) * _REGISTERS_AT_A_TIME
        fitting = _REGISTERS_A_BLOCK // (each * _WARP) // _WARPS_AT_A_TIME * _WARPS_AT_A_TIME
        own_bytes = _OWN_SHARED_BYTES if self.architecture >= 80 else 0
        shared_bytes = usage.shared_bytes + _dynamic_bytes(form, shape) + own_bytes
        shared_bytes = max(1, -(-shared_bytes // _SHARED_AT_A_TIME)) * _SHARED_AT_A_TIME
        return max(
            1,
            min(
                blocks,
                threads // (warps * _WARP),
                fitting // warps,
                (shape.most_shared_bytes + own_bytes) // shared_bytes,
            ),
        )


def prepare(
    text: str,
    target: str,
    ptxas: Path | None = None,
    why_off: Callable[[Module, Function, Form], str] = lambda _module, _kernel, _form: "",
) -> tuple[str, dict[str, PreparedKernel]]:
    """Add the possible forms of its kernels to a module.

    Parameters
    ----------
    text : str
        The module as PTX.
    target : str
        The GPU's architecture, such as ``sm_90``.
    ptxas : Path, optional
        The assembler, which must accept each form; by default the result of ``find_ptxas``.
    why_off : callable
        Why a form of a kernel is not wanted, empty if it is.

    Returns
    -------
    str
        The module with the accepted forms, unchanged if there are none.
    dict of str to PreparedKernel
        The kernels by the name of the original.

    Raises
    ------
    PtxError
        When the text is not PTX.
    AssemblerError
        When the assembler refuses the original module, or there is none.
    """
    module = parse(text)
    before = assemble(text, target, ptxas)
    verdicts = {kernel.name: verdict(module, kernel) for kernel in module.kernels}
    refused: dict[tuple[str, Form], str] = {}
    for kernel in module.kernels:
        found = verdicts[kernel.name]
        reasons: dict[Form, str] = {"slices": found.slices, "workers": found.workers}
        for form, why in reasons.items():
            if why := why or why_off(module, kernel, form):
                refused[kernel.name, form] = why
    wanted: dict[tuple[str, Form], Function] = {}
    for kernel in module.kernels:
        if (kernel.name, "slices") not in refused:
            wanted[kernel.name, "slices"] = slices(kernel)
        if (kernel.name, "workers") not in refused:
            unified = verdicts[kernel.name].unified
            wanted[kernel.name, "workers"] = workers(kernel, unified=unified)
    try:
        made = _with_forms(module, wanted)
        usages = assemble(made, target, ptxas)
    except AssemblerError:
        # One of the forms is at fault: try each separately.
        for key, function in [*wanted.items()]:
            try:
                assemble(_with_forms(module, {key: function}), target, ptxas)
            except AssemblerError as error:
                refused[key] = str(error)
                del wanted[key]
        made = _with_forms(module, wanted)
        usages = assemble(made, target, ptxas)
    moved = [
        key
        for key, function in wanted.items()
        if not _placed_alike(
            key[1], usages[function.name].shared_bytes, before[key[0]].shared_bytes
        )
    ]
    if moved:
        for key in moved:
            refused[key] = "the assembler places its shared memory elsewhere"
            del wanted[key]
        made = _with_forms(module, wanted)
    return made, {
        name: PreparedKernel(
            name=name,
            verdict=found,
            usage=before.get(name),
            forms={f: usages[w.name] for (n, f), w in wanted.items() if n == name},
            refused={f: why for (n, f), why in refused.items() if n == name},
            architecture=int(re.sub(r"\D", "", target)),
        )
        for name, found in verdicts.items()
    }


def _dynamic_bytes(form: Kind, shape: LaunchShape) -> int:
    """Return the shared memory that the launch of a form adds to a block."""
    own_bytes = shape.dynamic_shared_bytes
    return own_dynamic_bytes(own_bytes) + STORAGE_BYTES if form == "workers" else own_bytes


def _with_forms(module: Module, wanted: Mapping[tuple[str, Form], Function]) -> str:
    """Return the text of a module with forms of its kernels."""
    has_workers = any(form == "workers" for _, form in wanted)
    return module.with_kernels([*wanted.values()], STORAGE if has_workers else "")


def _placed_alike(form: Form, form_bytes: int, original_bytes: int) -> bool:
    """Return whether dynamic shared memory begins where the original has it, behind the static one.

    The assembler rounds the static one up if the module declares a dynamic one, as with ``STORAGE``
    it does. Workers rely on that: their storage begins at a multiple of ``STORAGE_BYTES``.
    """
    rounded = -(-original_bytes // _STATIC_STEP) * _STATIC_STEP
    return form_bytes == rounded or (form == "slices" and form_bytes == original_bytes)


def _has_whole_warps(block: Sequence[int]) -> bool:
    return block[0] % _WARP == 0 or block[1] == block[2] == 1
