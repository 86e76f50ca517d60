"""Which PyTorch, CUDA and cuBLAS a Python has: printed as a line of JSON.

A program of its own: it runs under the Python that jobs use, imports nothing of it and needs no
GPU. cuBLAS is asked by loading its library, which takes a second at most.
"""

import ctypes
import json
import platform
import re
import sys
from importlib import metadata, util
from pathlib import Path

_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)

_LIBRARY = "libcublasLt.so"


def torch_cuda() -> "str | None":
    """Return the version of CUDA that PyTorch was built for."""
    found = util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        told = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = _CUDA.search(told)
    return version[1] if version else None


def version_of(package: str) -> "str | None":
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cublas_package(major: str) -> "str | None":
    """Return the name of the installed package that cuBLAS came in."""
    names = (f"nvidia-cublas-cu{major}", "nvidia-cublas")
    return next((name for name in names if version_of(name) is not None), None)


def cublas_file(package: "str | None") -> "Path | None":
    """Return the library of a package; without one, what lies where Conda puts it."""
    files = (metadata.files(package) or []) if package else []
    packed = [Path(str(file.locate())) for file in files if file.name.startswith(_LIBRARY)]
    return next(iter(packed or sorted(Path(sys.prefix, "lib").glob(f"{_LIBRARY}*"))), None)


def cublas_number(path: "Path | None") -> "str | None":
    """Return the version that a library gives itself."""
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        return str(library.cublasLtGetVersion())
    except (OSError, AttributeError):
        return None


def libraries() -> "dict[str, str | None]":
    """Return what the program prints."""
    cuda = torch_cuda()
    package = cublas_package(cuda.partition(".")[0]) if cuda else None
    return {
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "cuda": cuda,
        "cublas": cublas_number(cublas_file(package)) if cuda else None,
        "package": version_of(package) if package else None,
    }


if __name__ == "__main__":
    print(json.dumps(libraries()))
