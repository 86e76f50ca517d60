"""Compare matrix products under this process's share of a GPU with a reference on the CPU.

A standalone program that needs PyTorch only, so it runs with the jobs' Python and cuBLAS::

    python products.py [cuda|cpu|count] [small] [wait]

It prints one line of JSON: the number of SMs that this client sees, whether it is a client of MPS,
the version of cuBLAS, and the largest error of each product over the error that rounding may cause.
``count`` prints the first two only, without PyTorch. ``cpu`` tries the program without a GPU,
``small`` with small products. ``wait`` draws the factors and computes the references, and then
waits until no other such program uses a GPU of this machine, so that one can prepare while another
uses it.

Factors lie in [0.5, 1.5), so an element that was not written (the output is filled with NaN before)
or not completely summed is off by far more than rounding: four units in the last place of the
output, which allows for partial sums rounded to half precision.
"""

import ctypes
import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Shape = tuple[int, int, int]
Result = tuple[str, str, int, int, int, float | None]

MULTIPROCESSOR_COUNT, MPS_ENABLED = 16, 133
"""Attributes of a device (``CU_DEVICE_ATTRIBUTE_*`` of cuda.h)."""

SHAPES = (
    (16, 1000, 2048),
    (16, 2048, 1000),
    (64, 4096, 4096),
    (1000, 512, 768),
    (2048, 2048, 2048),
    (4096, 1024, 4096),
    (8192, 768, 3072),
)
SMALL = ((16, 100, 64), (33, 65, 129))
KINDS = ("nn", "nt", "tn", "linear", "conv1x1")
ROUNDING_UNITS = 4
MOST = 1e15
"""Errors above this are reported as this, the largest number of a record."""


def worst(result: Any, reference: Any, unit: float) -> float | None:
    """Return the largest relative deviation in units of ``ROUNDING_UNITS * unit``.

    At most `MOST`, however wrong, and None if an element is NaN.

    ``result`` and ``reference`` are both arrays of NumPy or both of PyTorch, in single precision or
    better; ``unit`` is the relative rounding error of the output's type.
    """
    deviation = abs(result - reference) / (abs(reference) * ROUNDING_UNITS * unit)
    if bool((deviation != deviation).any()):
        return None
    return min(float(deviation.max()), MOST)


def product(torch: Any, kind: str, a: Any, b: Any) -> Any:
    """Multiply (m, k) by (k, n) in one of the ways that programs use."""
    functional = torch.nn.functional
    if kind == "nt":
        return torch.mm(a, b.t().contiguous().t())
    if kind == "tn":
        return torch.mm(a.t().contiguous().t(), b)
    if kind == "linear":
        return functional.linear(a, b.t().contiguous(), torch.zeros_like(b[0]))
    if kind == "conv1x1":
        image = a.t().contiguous()[None, :, :, None]
        return functional.conv2d(image, b.t().contiguous()[:, :, None, None])[0, :, :, 0].t()
    return torch.mm(a, b)


def drawn(torch: Any, dtype: Any, shape: Shape, seed: int) -> tuple[Any, Any, Any]:
    """Return two factors, and their product computed on the CPU in single precision."""
    m, n, k = shape
    draw = torch.Generator().manual_seed(seed)
    a = (torch.rand(m, k, generator=draw) + 0.5).to(dtype)
    b = (torch.rand(k, n, generator=draw) + 0.5).to(dtype)
    return a, b, a.float() @ b.float()


def compared(torch: Any, device: str, a: Any, b: Any, reference: Any) -> Iterator[Result]:
    """Compute a product on the device in every way into blocks of NaN, and yield the errors."""
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype
    unit, name = torch.finfo(dtype).eps / 2, str(dtype).removeprefix("torch.")
    a, b = a.to(device), b.to(device)
    for kind in KINDS:
        product(torch, kind, a, b)  # allocates memory and selects the kernel
        filled = torch.full((m, n), float("nan"), dtype=dtype, device=device)
        del filled  # the allocator reuses this block
        result = product(torch, kind, a, b).float().cpu()
        yield kind, name, m, n, k, worst(result, reference, unit)


def cublas_version() -> str | None:
    """Return the version of cuBLAS that this process has loaded, as cuBLAS numbers it."""
    with open("/proc/self/maps") as maps:
        paths = set(re.findall(r"\S*/libcublasLt\.so\S*", maps.read()))
    if not paths:
        return None
    library = ctypes.CDLL(sorted(paths)[0])
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return str(library.cublasLtGetVersion())


def asked(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of CUDA's driver, and raise OSError if it fails."""
    status = getattr(driver, name)(*arguments)
    if status != 0:
        raise OSError(f"{name} failed with CUDA error {status}")


def attribute(driver: ctypes.CDLL, number: int) -> int:
    """Return an attribute of device 0."""
    value = ctypes.c_int(0)
    asked(driver, "cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value


def under_mps() -> bool:
    """Return whether this process is a client of MPS; without MPS, shares have no effect."""
    return attribute(ctypes.CDLL("libcuda.so.1"), MPS_ENABLED) == 1


def counted() -> "dict[str, object]":
    """Return the number of SMs that a CUDA context sees, and whether it is a client of MPS."""
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    asked(driver, "cuInit", 0)
    asked(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    asked(driver, "cuCtxSetCurrent", context)
    try:
        return {"sms": attribute(driver, MULTIPROCESSOR_COUNT), "mps": under_mps()}
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(0)


def measure(device: str, shapes: Sequence[Shape], ready: Callable[[], object]) -> dict[str, object]:
    """Return the program's output; ``ready`` is called before the device is used."""
    import torch

    products = [
        drawn(torch, dtype, shape, seed)
        for dtype in (torch.float16, torch.bfloat16)
        for seed, shape in enumerate(shapes)
    ]
    ready()
    results = [result for one in products for result in compared(torch, device, *one)]
    on_gpu = device == "cuda"
    seen = torch.cuda.get_device_properties(0).multi_processor_count if on_gpu else None
    return {
        "torch": torch.__version__,
        "cublas": cublas_version(),
        "sms": seen,
        "mps": under_mps() if on_gpu else None,
        "products": results,
    }


def alone() -> None:
    """Wait for the lock that lets one such program at a time use a GPU, and hold it."""
    # Never closed: the kernel releases the lock when the process ends.
    fcntl.flock(os.open(__file__, os.O_RDONLY), fcntl.LOCK_EX)


if __name__ == "__main__":
    where, *words = sys.argv[1:] or ["cuda"]
    if where == "count":
        try:
            print(json.dumps(counted()))
        except OSError as error:
            raise SystemExit(str(error)) from None
    else:
        waiting: Callable[[], object] = alone if "wait" in words else str
        print(json.dumps(measure(where, SMALL if "small" in words else SHAPES, waiting)))
