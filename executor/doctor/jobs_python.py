"""Checks of the jobs' Python: its PyTorch, that build's CUDA, and its cuBLAS."""

from __future__ import annotations

from typing import Final

from dovetail.executor.doctor.driver import Driver
from dovetail.executor.doctor.finding import Finding, lacking, measuring_shares, note
from dovetail.executor.gpus.python_libraries import Libraries, NoPythonError, libraries_of

_AFFECTED: Final = ((12, 6, 4), (13, 8, 1))
"""Oldest and newest cuBLAS with published wrong results on an H200."""

_CLEAN: Final = (12, 4, 5)


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


def cublas(found: Libraries | NoPythonError, measure: tuple[str, ...]) -> Finding | None:
    """Report the version of cuBLAS, and what others reported about it.

    ``measure`` are the commands that measure shares.
    """
    if isinstance(found, NoPythonError) or found.cuda is None:
        return None
    if found.cublas is None and found.package is None:
        remedy = f"measuring shares finds the one that PyTorch loads: {measuring_shares()}"
        return note("not found with PyTorch", remedy, *measure)
    text = f"{found.package or 'without a package'}, version {found.cublas or 'unknown'}"
    parts = (found.package or "").split(".")[:3]
    version = tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else ()
    if len(version) == 3 and _AFFECTED[0] <= version <= _AFFECTED[1]:
        remedy = f"no share is used before it is measured: {measuring_shares()}"
        seen = f"{text}; wrong results under SM shares were reported for such versions on H200"
        return note(seen, remedy, *measure)
    if version == _CLEAN:
        return Finding(f"{text}; no error was reported for it on H200")
    return Finding(text)
