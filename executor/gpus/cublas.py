"""The version of cuBLAS that a running program has loaded; correct shares depend on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

_LOADED: Final = re.compile(r"\S*/libcublasLt\.so\S*")
_ASK: Final = (
    "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]);"
    "library.cublasLtGetVersion.restype = ctypes.c_size_t;"
    "print(library.cublasLtGetVersion())"
)
_PATIENCE_S: Final = 20.0

_OF_PACKAGE: Final = re.compile(r"(.+)/lib/(python3\.\d+)/(?:site|dist)-packages/")
_OF_CONDA: Final = re.compile(r"(.+)/lib/[^/]+")


class CublasVersions:
    """Asks each library file for its version once, in the background.

    A file that has been replaced is treated as a new one.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int, int], Future[str | None]] = {}
        self._asking = ThreadPoolExecutor(1, "cuBLAS versions")

    def close(self) -> None:
        """Stop asking."""
        self._asking.shutdown(wait=False, cancel_futures=True)

    def of(self, pids: Iterable[int], uid: int, gid: int) -> str | None:
        """Return the version number of the cuBLAS that a job's processes have loaded.

        None if it is unknown: no library or several are loaded, or the version is not yet read.

        Parameters
        ----------
        pids : iterable of int
            The processes.
        uid, gid : int
            The job's user. The library may be the user's own, so it is loaded as that user, in a
            separate process.
        """
        versions = {self._version(path, uid, gid) for pid in pids for path in _loaded(pid)}
        return versions.pop() if len(versions) == 1 else None

    def _version(self, path: str, uid: int, gid: int) -> str | None:
        try:
            state = os.stat(path)
        except OSError:
            return None
        key = (path, state.st_ino, state.st_mtime_ns)
        if key not in self._answers:
            self._answers[key] = self._asking.submit(_ask, path, uid, gid)
        answer = self._answers[key]
        return answer.result() if answer.done() else None


def python_of(pids: Iterable[int]) -> str:
    """Return the Python in whose environment the loaded cuBLAS lies; empty if there is none.

    A library elsewhere (a user's packages outside an environment, a system's CUDA) has none.
    """
    pythons = {_python(path) for pid in pids for path in _loaded(pid)}
    return pythons.pop() if len(pythons) == 1 else ""


def _python(library: str) -> str:
    packaged, other = _OF_PACKAGE.match(library), _OF_CONDA.fullmatch(library)
    names: tuple[str, ...] = ()
    prefix = ""
    if packaged:
        prefix, names = packaged[1], (packaged[2], "python3", "python")
    elif other and os.path.isdir(f"{other[1]}/conda-meta"):
        prefix, names = other[1], ("python3", "python")
    paths = (f"{prefix}/bin/{name}" for name in names)
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def _loaded(pid: int) -> set[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    return set(_LOADED.findall(maps))


def _ask(path: str, uid: int, gid: int) -> str | None:
    user: dict[str, object] = {}
    if os.geteuid() == 0:
        user = {"user": uid, "group": gid, "extra_groups": []}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK, path],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
            cwd="/",
            env={"PATH": os.defpath},
            **user,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = done.stdout.strip()
    return version if version.isdecimal() else None
