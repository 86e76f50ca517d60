"""Print the versions of a Python's PyTorch, CUDA and cuBLAS as a line of JSON.

A standalone program for the jobs' Python. It imports none of its packages and needs no GPU; it
loads cuBLAS to get its version, which takes at most a second.
"""

import ctypes
import json
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

_LIBRARY = "libcublasLt.so"


def torch_cuda() -> "str | None":
    """Return the version of CUDA that PyTorch was built for."""
    found = util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    source = ""
    with suppress(OSError):
        source = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    version = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", source, re.MULTILINE)
    return version[1] if version else None


def version_of(package: str) -> "str | None":
    """Return the version of an installed package."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def cublas_number(package: "str | None") -> "str | None":
    """Return the version number of cuBLAS from a package, or otherwise from Conda."""
    files = (metadata.files(package) or []) if package else []
    packed = [Path(str(file.locate())) for file in files if file.name.startswith(_LIBRARY)]
    for path in (packed or sorted(Path(sys.prefix, "lib").glob(f"{_LIBRARY}*")))[:1]:
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            library.cublasLtGetVersion.restype = ctypes.c_size_t
            return str(library.cublasLtGetVersion())
    return None


def libraries() -> "dict[str, str | None]":
    """Return all versions."""
    cuda = torch_cuda() or ""
    names = (f"nvidia-cublas-cu{cuda.partition('.')[0]}", "nvidia-cublas") if cuda else ()
    package = next((name for name in names if version_of(name)), None)
    return {
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "cuda": cuda or None,
        "cublas": cublas_number(package) if cuda else None,
        "package": version_of(package) if package else None,
    }


if __name__ == "__main__":
    print(json.dumps(libraries()))
