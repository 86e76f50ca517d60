"""CUDA C to PTX, and PTX through NVIDIA's assembler, by the wheels of the extra ``isolation``."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

import pytest


def _folder(name: str) -> Path | None:
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) / name for place in (found.submodule_search_locations if found else [])]
    return next((folder for folder in folders if folder.is_dir()), None)


@functools.cache
def _library() -> ctypes.CDLL:
    folder = _folder("cuda_nvrtc")
    if folder is None:
        pytest.skip("needs NVRTC (extra isolation-tests)")
    return ctypes.CDLL(str(next(folder.glob("lib/libnvrtc.so.*"))))


@functools.cache
def compiled(source: str, target: str = "compute_70") -> str:
    """Return the PTX of a CUDA C source."""
    library = _library()
    program = ctypes.c_void_p()
    text = source.encode()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"k.cu", 0, None, None)
    options = [f"--gpu-architecture={target}".encode()]
    status = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(*options))
    if status:
        raise AssertionError(_text(program, "ProgramLog"))
    ptx = _text(program, "PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def _text(program: ctypes.c_void_p, what: str) -> str:
    library, size = _library(), ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()
