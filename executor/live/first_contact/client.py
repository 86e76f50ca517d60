"""A small CUDA program in one file: what a client of MPS sees, does, and is told.

It needs Python and NVIDIA's driver, no toolkit and no packages: it calls ``libcuda.so.1`` through
``ctypes``, and its kernels are the PTX below (ISA 6.4 for sm_70 and newer; the driver compiles
them). It is a program of its own::

    python client.py report            SMs, whether under MPS, memory; then end
    python client.py idle              the same, then hold a context until told
    python client.py busy [work=N] [ms=N] [blocks=N]
                                       run kernels of a fixed amount of work until told
    python client.py allocate mib=N [step=N]
                                       take N MiB by pieces of ``step``, then hold them until told
    python client.py illegal           once told to, store to an address that is not mapped
    python client.py trap              once told to, run into a trap

It prints one JSON object a line. ``{"event": "ready", ...}`` comes first, ``at`` is
CLOCK_MONOTONIC. An error of CUDA is ``{"event": "error", "call", "number", "name"}``, and the
program then waits, as a job that holds on to its broken context would, until it is told anything.
The end of input means ``quit``. Source of the calls and numbers: ``cuda.h``.
"""

import ctypes
import json
import os
import select
import sys
import time
from typing import Any

SMS, MPS_ENABLED = 16, 133
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and _MPS_ENABLED."""

MIB = 2**20
THREADS = 256
UNMAPPED = 0x10
CALIBRATION_WORK = 20_000
QUEUED = 4

PTX = b"""
.version 6.4
.target sm_70
.address_size 64

.visible .entry work(.param .u64 out, .param .u64 rounds)
{
    .reg .pred %p;
    .reg .b32 %i<4>;
    .reg .f32 %f<4>;
    .reg .b64 %l<6>;
    ld.param.u64 %l1, [out];
    ld.param.u64 %l2, [rounds];
    mov.u64 %l3, 0;
    mov.u32 %i1, %tid.x;
    cvt.rn.f32.u32 %f1, %i1;
    mov.f32 %f2, 0f3F7FFFEF;
    mov.f32 %f3, 0f3727C5AC;
again:
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    add.u64 %l3, %l3, 1;
    setp.lt.u64 %p, %l3, %l2;
    @%p bra again;
    cvta.to.global.u64 %l4, %l1;
    mul.wide.u32 %l5, %i1, 4;
    add.u64 %l4, %l4, %l5;
    st.global.f32 [%l4], %f1;
    ret;
}

.visible .entry store(.param .u64 out)
{
    .reg .b32 %i<2>;
    .reg .b64 %l<2>;
    ld.param.u64 %l1, [out];
    mov.u32 %i1, 1;
    st.global.u32 [%l1], %i1;
    ret;
}

.visible .entry stop()
{
    trap;
    ret;
}
\0"""


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, number: int, name: str) -> None:
        self.told = {"call": call, "number": number, "name": name}
        super().__init__(f"{call}: {name} ({number})")


class Cuda:
    """The driver's functions; a failed one raises ``CudaError``."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns nothing but its status."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(name, status, self._name(status))

    def number(self, name: str, kind: Any, *arguments: Any) -> int:
        """Call a function that returns a number through its first argument."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return int(value.value)

    def _name(self, status: int) -> str:
        told = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(told))
        return (told.value or b"unknown").decode()


class Context:
    """The primary context of device 0, as PyTorch has it, and the kernels above."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        cuda.call("cuInit", 0)
        self.device = cuda.number("cuDeviceGet", ctypes.c_int, 0)
        self._context = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)
        cuda.call("cuCtxSetCurrent", self._context)
        self._module: Any = None

    def attribute(self, which: int) -> int:
        """Return an attribute of the device."""
        return self.cuda.number("cuDeviceGetAttribute", ctypes.c_int, which, self.device)

    def name(self) -> str:
        """Return the device's name."""
        text = ctypes.create_string_buffer(256)
        self.cuda.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def memory_mib(self) -> tuple[float, float]:
        """Return what is free and what there is in all, as ``cuMemGetInfo`` says."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value / MIB, total.value / MIB

    def allocate(self, size: int) -> int:
        """Take memory and return its address."""
        return self.cuda.number("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size))

    def fill(self, address: int, size: int) -> None:
        """Write to all of it."""
        self.cuda.call(
            "cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(1), ctypes.c_size_t(size)
        )

    def launch(self, kernel: str, blocks: int, *arguments: int) -> None:
        """Queue a kernel whose parameters are 64-bit numbers."""
        if self._module is None:
            self._module = ctypes.c_void_p()
            self.cuda.call("cuModuleLoadData", ctypes.byref(self._module), PTX)
        function = ctypes.c_void_p()
        name = kernel.encode()
        self.cuda.call("cuModuleGetFunction", ctypes.byref(function), self._module, name)
        values = [ctypes.c_uint64(argument) for argument in arguments]
        places = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        one = ctypes.c_uint(1)
        grid = (ctypes.c_uint(blocks), one, one)
        block = (ctypes.c_uint(THREADS), one, one)
        none = (ctypes.c_uint(0), None)
        self.cuda.call("cuLaunchKernel", function, *grid, *block, *none, places, None)

    def finish(self) -> None:
        """Wait for all that was queued."""
        self.cuda.call("cuCtxSynchronize")


def say(event: str, **told: object) -> None:
    """Print an event."""
    print(json.dumps({"event": event, "at": time.monotonic(), **told}), flush=True)


def order(within_s: float | None = None) -> bytes | None:
    """Wait for input and return it: empty at its end, None where none came."""
    if not select.select([0], [], [], within_s)[0]:
        return None
    return os.read(0, 4096)


def ready(context: Context, started: float) -> None:
    """Say what the process sees."""
    free, total = context.memory_mib()
    say(
        "ready",
        pid=os.getpid(),
        device=context.name(),
        sms=context.attribute(SMS),
        mps=context.attribute(MPS_ENABLED) == 1,
        free_mib=free,
        total_mib=total,
        driver=context.cuda.number("cuDriverGetVersion", ctypes.c_int),
        seconds=time.monotonic() - started,
    )


def busy(context: Context, options: dict[str, int]) -> None:
    """Run kernels until told to quit; each has the same work, whatever share it is given."""
    out = context.allocate(4 * THREADS)
    blocks = options.get("blocks", 8 * context.attribute(SMS))
    work = options.get("work") or calibrated(context, out, blocks, options.get("ms", 5))
    say("begun", work=work, blocks=blocks)
    iterations, told = 0, time.monotonic()
    while order(0) is None:
        for _ in range(QUEUED):
            context.launch("work", blocks, out, work)
        context.finish()
        iterations += QUEUED
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            say("steps", n=iterations)
    say("stopped", n=iterations)


def calibrated(context: Context, out: int, blocks: int, ms: int) -> int:
    """Return the rounds that take so many milliseconds now."""
    taken = 0.0
    for _ in range(2):  # the first launch also loads the kernel
        begun = time.monotonic()
        context.launch("work", blocks, out, CALIBRATION_WORK)
        context.finish()
        taken = time.monotonic() - begun
    return max(1, round(CALIBRATION_WORK * ms / 1000 / taken))


def allocate(context: Context, options: dict[str, int]) -> None:
    """Take memory by pieces and say how far that went."""
    step, taken, wanted = options.get("step", 64), 0, options["mib"]
    try:
        while taken < wanted:
            size = min(step, wanted - taken)
            context.fill(context.allocate(size * MIB), size * MIB)
            taken += size
        context.finish()
    finally:
        say("taken", mib=taken)
    free, total = context.memory_mib()
    say("memory", free_mib=free, total_mib=total)
    order()


def illegal(context: Context, options: dict[str, int]) -> None:
    """Store where nothing is mapped."""
    fail(context, "store", UNMAPPED)


def trap(context: Context, options: dict[str, int]) -> None:
    """Run into a trap."""
    fail(context, "stop")


def fail(context: Context, kernel: str, *arguments: int) -> None:
    """Run a kernel that breaks the context, once told to; the end of input is no such order."""
    if order():
        say("launching")
        context.launch(kernel, 1, *arguments)
        context.finish()


def idle(context: Context, options: dict[str, int]) -> None:
    """Hold the context; ask the driver now and then, to be told of trouble."""
    while order(0.05) is None:
        context.finish()


def report(context: Context, options: dict[str, int]) -> None:
    """Nothing more."""


MODES = {mode.__name__: mode for mode in (report, idle, busy, allocate, illegal, trap)}


def main() -> int:
    """Run as the command line says, and return the exit status."""
    mode = MODES[sys.argv[1]]
    options = {name: int(value) for name, value in (word.split("=") for word in sys.argv[2:])}
    started = time.monotonic()
    say("started", pid=os.getpid())
    try:
        context = Context(Cuda())
        ready(context, started)
        mode(context, options)
    except CudaError as error:
        say("error", **error.told)
        order()
        return 1
    except OSError as error:
        say("error", call="dlopen", number=-1, name=str(error))
        return 1
    return 0


if __name__ == "__main__":
    # What CUDA does at exit in a broken context may hang: leave at once.
    status = main()
    sys.stdout.flush()
    os._exit(status)
