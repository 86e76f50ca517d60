"""The Python that jobs use: its PyTorch, the CUDA that was built for, and its cuBLAS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.doctor.driver import Driver
from dovetail.executor.doctor.finding import Seen, lacking, note

PROGRAM: Final = Path(__file__).with_name("libraries.py")

_PATIENCE_S: Final = 60.0
_AFFECTED: Final = ((12, 6, 4), (13, 8, 1))
"""The oldest and the newest cuBLAS that others have seen to compute wrong on an H200."""

_CLEAN: Final = (12, 4, 5)


class Libraries(NamedTuple):
    """What a Python would bring, None where it has none.

    ``torch`` and ``cuda`` are versions, ``cublas`` the number that cuBLAS gives itself,
    ``package`` the version of the package that it came in.
    """

    python: str
    torch: str | None
    cuda: str | None
    cublas: str | None
    package: str | None


NO_LIBRARIES: Final = Libraries("", None, None, None, None)


class NoPythonError(Exception):
    """A Python cannot be run, or does not say what it has."""


def libraries_of(python: str) -> Libraries:
    """Ask a Python for its libraries; needs no GPU, and imports no PyTorch.

    Raises
    ------
    NoPythonError
        When it cannot be asked.
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
        told = json.loads(done.stdout)
        return Libraries(**told)
    except (ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise NoPythonError(f"{python} does not tell its libraries: {last}") from None


def asked(python: str) -> Libraries | NoPythonError:
    """Return what a Python says of its libraries, or why it says nothing."""
    try:
        return libraries_of(python)
    except NoPythonError as error:
        return error


def interpreter(python: str, found: Libraries | NoPythonError) -> Seen:
    """Tell the Python."""
    if isinstance(found, NoPythonError):
        return lacking(str(found), "name the Python of the jobs with --python")
    return Seen(f"{python}, Python {found.python}")


def torch(found: Libraries | NoPythonError, driver: object) -> Seen | None:
    """Tell its PyTorch, and whether the driver serves the CUDA that was built for."""
    if isinstance(found, NoPythonError):
        return None
    if found.torch is None:
        remedy = "dovetail doctor --python FILE names the Python of the jobs; --splits needs it"
        return note("no PyTorch", remedy)
    if found.cuda is None:
        remedy = "the jobs' Python needs a build for CUDA (pytorch.org): name it with --python"
        return note(f"{found.torch}, a build without CUDA", remedy)
    told = f"{found.torch}, built for CUDA {found.cuda}"
    served = driver.cuda if isinstance(driver, Driver) else None
    if served is not None and served[0] < int(found.cuda.partition(".")[0]):
        seen = f"{told}; the driver serves CUDA {served[0]}.{served[1]}"
        remedy = f"update the driver, or install a build for CUDA {served[0]}"
        return lacking(seen, remedy)
    return Seen(told)


def cublas(found: Libraries | NoPythonError) -> Seen | None:
    """Tell its cuBLAS, and what others have seen of such a version."""
    if isinstance(found, NoPythonError) or found.cuda is None:
        return None
    if found.cublas is None and found.package is None:
        remedy = "dovetail doctor --splits asks the one that PyTorch loads"
        return note("not found beside PyTorch", remedy)
    told = f"{found.package or 'of no package'}, tells {found.cublas or 'no version'}"
    parts = (found.package or "").split(".")[:3]
    version = tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else ()
    if len(version) == 3 and _AFFECTED[0] <= version <= _AFFECTED[1]:
        remedy = "no share is used before it is measured: dovetail doctor --splits"
        seen = f"{told}; others saw such versions compute wrong on H200 under SM shares"
        return note(seen, remedy)
    if version == _CLEAN:
        return Seen(f"{told}; others saw no error with it on H200")
    return Seen(told)
