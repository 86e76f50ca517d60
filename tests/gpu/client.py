"""A small CUDA program in one file that acts as a client of MPS and reports its view.

It needs Python and NVIDIA's driver, no toolkit and no packages: it calls ``libcuda.so.1`` through
``ctypes``, and its kernels are the PTX below (ISA 6.4 for sm_70 and newer; the driver compiles
them). It is a program of its own::

    python client.py report            SMs, whether under MPS, memory; then end
    python client.py idle              the same, then hold a context until input
    python client.py busy [work=N] [ms=N] [blocks=N] [pause=N]
                                       run kernels of a fixed amount of work until input, with
                                       a pause of so many milliseconds after every few
    python client.py allocate mib=N [step=N]
                                       take N MiB by pieces of ``step``, then hold them until input
    python client.py illegal           on input, store to an address that is not mapped
    python client.py trap              on input, run into a trap

It prints one JSON object a line. ``{"event": "ready", ...}`` comes first, ``at`` is
CLOCK_MONOTONIC. An error of CUDA is ``{"event": "error", "call", "number", "name"}``, and the
program then waits for input, like a job that keeps its broken context.
The end of input means ``quit``. Source of the calls and numbers: ``cuda.h``.
"""

import ctypes
import json
import os
import select
import sys
import time

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
    """A call of the driver failed: the call, the error's number, and its name."""


class Cuda:
    """The driver, and the primary context of device 0, as PyTorch has it."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = self.number("cuDeviceGet", ctypes.c_int, 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self._module = None

    def call(self, name, *arguments):
        """Call a function that returns nothing but its status."""
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise CudaError(name, status, (text.value or b"unknown").decode())

    def number(self, name, kind, *arguments):
        """Call a function that returns a number through its first argument."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return int(value.value)

    def attribute(self, which):
        return self.number("cuDeviceGetAttribute", ctypes.c_int, which, self.device)

    def memory(self):
        """Return free and total memory in MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free_mib": free.value / MIB, "total_mib": total.value / MIB}

    def allocate(self, size):
        return self.number("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size))

    def launch(self, kernel, blocks, *arguments):
        """Queue a kernel whose parameters are 64-bit numbers."""
        if self._module is None:
            self._module = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(self._module), PTX)
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self._module, kernel.encode())
        values = [ctypes.c_uint64(argument) for argument in arguments]
        places = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        sizes = map(ctypes.c_uint, (blocks, 1, 1, THREADS, 1, 1, 0))
        self.call("cuLaunchKernel", function, *sizes, None, places, None)

    def finish(self):
        """Wait for all that was queued."""
        self.call("cuCtxSynchronize")


def say(event, **fields):
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def order(within_s=None):
    """Wait for input and return it: empty at its end, None where none came."""
    if not select.select([0], [], [], within_s)[0]:
        return None
    return os.read(0, 4096)


def report(cuda):
    """Report the devices and limits that the process sees."""
    name = ctypes.create_string_buffer(256)
    cuda.call("cuDeviceGetName", name, len(name), cuda.device)
    say(
        "ready",
        pid=os.getpid(),
        device=name.value.decode(),
        sms=cuda.attribute(SMS),
        mps=cuda.attribute(MPS_ENABLED) == 1,
        driver=cuda.number("cuDriverGetVersion", ctypes.c_int),
        **cuda.memory(),
    )


def idle(cuda):
    """Hold the context; ask the driver now and then, so that errors show."""
    while order(0.05) is None:
        cuda.finish()


def busy(cuda, work=0, ms=5, blocks=0, pause=0):
    """Run kernels until input; all do the same work, whatever the share."""
    out = cuda.allocate(4 * THREADS)
    blocks = blocks or 8 * cuda.attribute(SMS)
    work = work or calibrated(cuda, out, blocks, ms)
    say("begun", work=work, blocks=blocks)
    done, reported_s = 0, time.monotonic()
    while order(0) is None:
        for _ in range(QUEUED):
            cuda.launch("work", blocks, out, work)
        cuda.finish()
        time.sleep(pause / 1000)
        done += QUEUED
        if time.monotonic() - reported_s > 0.1:
            reported_s = time.monotonic()
            say("steps", n=done)
    say("stopped", n=done)


def calibrated(cuda, out, blocks, ms):
    """Return the rounds that take so many milliseconds now."""
    for _ in range(2):  # the first launch also loads the kernel
        begun = time.monotonic()
        cuda.launch("work", blocks, out, CALIBRATION_WORK)
        cuda.finish()
        taken = time.monotonic() - begun
    return max(1, round(CALIBRATION_WORK * ms / 1000 / taken))


def allocate(cuda, mib, step=64):
    """Take memory by pieces, say how far that went, and hold it."""
    taken = 0
    try:
        while taken < mib:
            size = min(step, mib - taken)
            address = ctypes.c_uint64(cuda.allocate(size * MIB))
            cuda.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size * MIB))
            taken += size
        cuda.finish()
    finally:
        say("taken", mib=taken)
    say("memory", **cuda.memory())
    order()


def illegal(cuda):
    """Store to an unmapped address."""
    fail(cuda, "store", UNMAPPED)


def trap(cuda):
    """Run into a trap."""
    fail(cuda, "stop")


def fail(cuda, kernel, *arguments):
    """Run a kernel that breaks the context, on input; the end of input does not count."""
    if order():
        say("launching")
        cuda.launch(kernel, 1, *arguments)
        cuda.finish()


def main():
    """Run the command line, and return the exit status."""
    mode, *options = sys.argv[1:]
    say("started", pid=os.getpid())
    try:
        cuda = Cuda()
        report(cuda)
        if mode != "report":
            run = {one.__name__: one for one in (idle, busy, allocate, illegal, trap)}[mode]
            run(cuda, **{name: int(value) for name, value in (one.split("=") for one in options)})
    except CudaError as error:
        call, number, name = error.args
        say("error", call=call, number=number, name=name)
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
