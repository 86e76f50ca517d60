"""How many SMs this process's share of a GPU has: a program of its own, without PyTorch.

It prints one line of JSON: the SMs that CUDA tells a client in a context (attribute 16), and
whether it is a client of MPS at all (attribute 133). Numbers and calls are cuda.h's.
"""

import ctypes
import json

MULTIPROCESSOR_COUNT = 16
MPS_ENABLED = 133


class CudaError(Exception):
    """A call of the driver's library failed."""


def called(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of the library, and see that it succeeded."""
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise CudaError(f"{name} failed with CUDA error {status}")


def attribute(library: ctypes.CDLL, number: int) -> int:
    """Return an attribute of device 0."""
    value = ctypes.c_int(0)
    called(library, "cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value


def count(library: ctypes.CDLL) -> "dict[str, object]":
    """Return what the program prints."""
    context = ctypes.c_void_p()
    called(library, "cuInit", 0)
    called(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    called(library, "cuCtxSetCurrent", context)
    try:
        return {
            "sms": attribute(library, MULTIPROCESSOR_COUNT),
            "mps": attribute(library, MPS_ENABLED) == 1,
        }
    finally:
        library.cuDevicePrimaryCtxRelease_v2(0)


if __name__ == "__main__":
    try:
        print(json.dumps(count(ctypes.CDLL("libcuda.so.1"))))
    except (CudaError, OSError) as error:
        raise SystemExit(str(error)) from None
