"""The library that intercepts a job's launches: its C sources, and its build on the machine.

The sources are part of the package; the machine's compiler builds the library at its first use,
into a cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from dovetail.instances.errors import DovetailError

Priority = Literal["latency", "best-effort"]

_HERE: Final = Path(__file__).parent
_OPTIONS: Final = (
    "-O2",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
)
_COMPILERS: Final = ("cc", "gcc", "clang")
_MOST_S: Final = 120.0
_ASSEMBLER: Final = """#!/bin/sh
# Assembles, and keeps the PTX under the hash of the machine code.
{ptxas} "$@" || exit $?
given= made=
for one in "$@"; do
    case $before in -o | --output-file) made=$one ;; esac
    # A version of its own, so that programs that compare versions assemble their kernels again.
    case $one in *.ptx) given=$one ;; --version) echo "PTX is kept by Dovetail" ;; esac
    before=$one
done
if [ -f "$given" ] && [ -f "$made" ]; then
    hash=$(sha256sum "$made" | cut -d " " -f 1)
    cp "$given" {folder}/.$$ && mv {folder}/.$$ {folder}/"$hash".ptx
fi
exit 0
"""


class InterceptionError(DovetailError):
    """The library cannot be built here."""


def library(folder: Path | None = None) -> Path:
    """Return the library, and build it if it does not exist.

    Parameters
    ----------
    folder : Path, optional
        The folder of built libraries; by default ``dovetail`` in the user's cache folder. The file
        name contains a hash of the sources, so each version has its own file.

    Raises
    ------
    InterceptionError
        When there is no C compiler, or it fails.
    """
    sources = [path.read_bytes() for path in sorted(_HERE.glob("*.[ch]"))]
    name = hashlib.sha256(b"\0".join([*sources, *map(str.encode, _OPTIONS)])).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = folder or Path(cache, "dovetail")
    found = folder / f"libdovetail_isolation-{name}.so"
    if found.exists():
        return found
    compiler = find_compiler()
    if compiler is None:
        raise InterceptionError(f"isolation is not available: no C compiler ({_names()})")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside, found.name)
        command = [compiler, *_OPTIONS, "-o", str(made), str(_HERE / "shim.c"), "-ldl"]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=_MOST_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InterceptionError(f"isolation is not available: {error}") from None
        if ran.returncode:
            why = next((line for line in ran.stderr.splitlines() if "error" in line), "no message")
            raise InterceptionError(f"isolation is not available: {compiler}: {why}")
        # Jobs of every user load it.
        made.chmod(0o755)
        made.replace(found)
    return found


def find_compiler() -> str | None:
    """Return the C compiler that builds the library, or None if there is none."""
    return next((path for one in _COMPILERS if (path := shutil.which(one))), None)


def assembler(folder: Path, ptxas: Path) -> Path:
    """Return a program that assembles like ``ptxas``, and keeps the PTX.

    Triton assembles its kernels itself, with the program in ``TRITON_PTXAS_PATH``, and passes
    machine code to the driver.

    Parameters
    ----------
    folder : Path
        The folder for the program and the PTX, which is named by the SHA-256 of its machine code.
    ptxas : Path
        The assembler.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ptxas"
    text = _ASSEMBLER.format(ptxas=shlex.quote(str(ptxas)), folder=shlex.quote(str(folder)))
    if not program.exists() or program.read_text() != text:
        made = folder / f".ptxas-{os.getpid()}"
        made.write_text(text)
        made.chmod(0o755)
        made.replace(program)
    return program


def environment(
    built: Path,
    socket: Path,
    priority: Priority,
    given: Mapping[str, str],
    assembled_by: Path | None = None,
) -> dict[str, str]:
    """Return the variables to add to the environment of a job's processes.

    Parameters
    ----------
    built : Path
        The library.
    socket : Path
        The socket of the scheduler of the job's GPU.
    priority : str
        ``latency`` for a job whose launches never wait, otherwise ``best-effort``.
    given : mapping of str to str
        The environment of the job; its own preloaded libraries and assembler are kept.
    assembled_by : Path, optional
        The program from ``assembler``, for kernels of Triton and thus of ``torch.compile``.
    """
    preloaded = " ".join(filter(None, [str(built), given.get("LD_PRELOAD", "")]))
    triton = {"TRITON_PTXAS_PATH": str(assembled_by)} if assembled_by else {}
    if "TRITON_PTXAS_PATH" in given:
        triton = {}
    return triton | {
        "LD_PRELOAD": preloaded,
        "DOVETAIL_ISOLATION_SOCKET": str(socket),
        "DOVETAIL_ISOLATION_PRIORITY": priority,
    }


def _names() -> str:
    return ", ".join(_COMPILERS)
