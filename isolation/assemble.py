"""NVIDIA's assembler ``ptxas``, from a wheel or the PATH, which checks transformed kernels."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dovetail.instances.errors import DovetailError

_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_MOST_S: Final = 120.0


class AssemblerError(DovetailError):
    """The assembler refuses a module, or there is none."""


@dataclass(frozen=True)
class KernelResources:
    """The resources of an SM that a kernel uses.

    Attributes
    ----------
    registers : int
        Registers of a thread.
    shared_bytes : int
        Static shared memory of a block.
    spilled_bytes : int
        Bytes stored to and loaded from memory because there are too few registers.
    """

    registers: int
    shared_bytes: int = 0
    spilled_bytes: int = 0


def find_ptxas() -> Path | None:
    """Return the assembler, or None if there is none.

    The wheel ``nvidia-cuda-nvcc-cu12`` (extra ``isolation``) and every CUDA toolkit have one.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for found in sorted(Path(folder).glob("*/bin/ptxas")):
            return found
    on_path = shutil.which("ptxas")
    return Path(on_path) if on_path else None


def assemble(text: str, target: str, ptxas: Path | None = None) -> Mapping[str, KernelResources]:
    """Assemble a module and return the resources that each of its kernels uses.

    Parameters
    ----------
    text : str
        The module as PTX.
    target : str
        The GPU's architecture, such as ``sm_90``.
    ptxas : Path, optional
        The assembler; by default the result of ``find_ptxas``.

    Raises
    ------
    AssemblerError
        If the assembler refuses the module, with its first message, or there is none.
    """
    program = ptxas or find_ptxas()
    if program is None:
        raise AssemblerError("there is no ptxas: it comes with the extra isolation of Dovetail")
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        source = Path(folder, "module.ptx")
        source.write_text(text)
        command = [str(program), f"--gpu-name={target}", "--verbose", "--output-file", "/dev/null"]
        try:
            ran = subprocess.run(
                [*command, str(source)],
                capture_output=True,
                text=True,
                timeout=_MOST_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AssemblerError(f"{program}: {error}") from None
    if ran.returncode:
        lines = (ran.stdout + ran.stderr).replace(f"{source}, ", "").splitlines()
        raise AssemblerError(f"ptxas, {target}: {lines[0] if lines else 'refused, no message'}")
    return _usages(ran.stderr + ran.stdout)


def _usages(report: str) -> dict[str, KernelResources]:
    parts = _KERNEL.split(report)
    return {
        name: KernelResources(
            registers=_number(_REGISTERS, about),
            shared_bytes=_number(_SHARED, about),
            spilled_bytes=sum(map(int, spilled.groups()))
            if (spilled := _SPILLED.search(about))
            else 0,
        )
        for name, about in zip(parts[1::2], parts[2::2], strict=True)
    }


def _number(pattern: re.Pattern[str], text: str) -> int:
    return int(found[1]) if (found := pattern.search(text)) else 0
