"""Checks of the jobs' Python: its PyTorch, that build's CUDA, and its cuBLAS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.doctor.driver import Driver
from dovetail.executor.doctor.finding import Finding, lacking, measuring_shares, note

PROGRAM: Final = Path(__file__).with_name("libraries.py")

_PATIENCE_S: Final = 60.0
_AFFECTED: Final = ((12, 6, 4), (13, 8, 1))
"""Oldest and newest cuBLAS with published wrong results on an H200."""

_CLEAN: Final = (12, 4, 5)


class Libraries(NamedTuple):
    """Versions of a Python and its libraries; None for libraries that it lacks.

    ``cublas`` is the number that cuBLAS returns, ``package`` the version of its package.
    """

    python: str
    torch: str | None
    cuda: str | None
    cublas: str | None
    package: str | None


NO_LIBRARIES: Final = Libraries("", None, None, None, None)


class NoPythonError(Exception):
    """A Python cannot be run, or does not report its libraries."""


def libraries_of(python: str) -> Libraries:
    """Return the libraries of a Python, without a GPU and without importing PyTorch.

    Raises
    ------
    NoPythonError
        If they cannot be determined.
    """
    try:
        done = subprocess.run(
            [python, "-I", str(PROGRAM)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoPythonError(f"{python} did not answer within {_PATIENCE_S:.0f} s") from None
    except OSError as error:
        raise NoPythonError(f"{python} cannot be run: {error.strerror}") from None
    try:
        return Libraries(**json.loads(done.stdout))
    except (ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise NoPythonError(f"{python} does not report its libraries: {last}") from None


def asked(python: str) -> Libraries | NoPythonError:
    """Return the libraries of a Python, or why they are unknown."""
    try:
        return libraries_of(python)
    except NoPythonError as error:
        return error


def interpreter(python: str, found: Libraries | NoPythonError) -> Finding:
    """Check that the Python runs."""
    if isinstance(found, NoPythonError):
        return lacking(str(found), "name the Python of the jobs with --python")
    return Finding(f"{python}, Python {found.python}")


def torch(found: Libraries | NoPythonError, driver: object) -> Finding | None:
    """Check that the driver supports the CUDA that PyTorch was built for."""
    if isinstance(found, NoPythonError):
        return None
    if found.torch is None:
        remedy = "dovetail doctor --python FILE names the Python of the jobs"
        return note("no PyTorch", remedy)
    if found.cuda is None:
        remedy = "the jobs' Python needs a build for CUDA (pytorch.org): name it with --python"
        return note(f"{found.torch}, a build without CUDA", remedy)
    text = f"{found.torch}, built for CUDA {found.cuda}"
    served = driver.cuda if isinstance(driver, Driver) else None
    if served is not None and served[0] < int(found.cuda.partition(".")[0]):
        seen = f"{text}; the driver supports CUDA {served[0]}.{served[1]}"
        remedy = f"update the driver, or install a build for CUDA {served[0]}"
        return lacking(seen, remedy)
    return Finding(text)


def cublas(found: Libraries | NoPythonError) -> Finding | None:
    """Report the version of cuBLAS, and what others reported about it."""
    if isinstance(found, NoPythonError) or found.cuda is None:
        return None
    if found.cublas is None and found.package is None:
        remedy = f"measuring shares finds the one that PyTorch loads: {measuring_shares()}"
        return note("not found with PyTorch", remedy)
    text = f"{found.package or 'without a package'}, version {found.cublas or 'unknown'}"
    parts = (found.package or "").split(".")[:3]
    version = tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else ()
    if len(version) == 3 and _AFFECTED[0] <= version <= _AFFECTED[1]:
        remedy = f"no share is used before it is measured: {measuring_shares()}"
        seen = f"{text}; wrong results under SM shares were reported for such versions on H200"
        return note(seen, remedy)
    if version == _CLEAN:
        return Finding(f"{text}; no error was reported for it on H200")
    return Finding(text)
