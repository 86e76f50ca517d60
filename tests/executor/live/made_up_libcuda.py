"""A made-up libcuda that keeps caps to the percentage, for programs that count SMs."""

import shutil
import subprocess

import pytest

LIBCUDA = r"""
#include <stdlib.h>
static int share(void) {
  char *told = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  return told ? atoi(told) : 100;
}
static int made = 0;
int cuInit(unsigned flags) { return getenv("FAIL") ? 100 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &made; made = 1; return 0; }
int cuCtxSetCurrent(void *context) { return context == &made ? 0 : 201; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute == 133) { *value = getenv("NO_MPS") == NULL; return 0; }
  if (attribute != 16 || !made) return 1;
  *value = 132 * share() / 100;
  return 0;
}
"""


def made_up_libcuda(folder):
    """Compile it, and return the folder for ``LD_LIBRARY_PATH``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "cuda.c").write_text(LIBCUDA)
    target = str(folder / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, str(folder / "cuda.c")], check=True)
    return folder
