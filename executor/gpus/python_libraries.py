"""The versions of PyTorch, CUDA and cuBLAS of a Python, without a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

PROGRAM: Final = Path(__file__).with_name("libraries.py")

_PATIENCE_S: Final = 60.0


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
