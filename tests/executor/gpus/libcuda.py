"""The stand-in for libcuda (``standin_gpu/cuda.c``), compiled."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("standin_gpu") / "cuda.c"


def standin_libcuda(folder):
    """Compile it, and return the folder for ``LD_LIBRARY_PATH``."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in for libcuda")
    options = ["-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *options, "-o", folder / "libcuda.so.1", SOURCE], check=True)
    return folder
