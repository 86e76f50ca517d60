"""A made-up GPU and its driver: launched kernels run in the interpreter, in a thread a stream.

``install`` loads a made-up ``libcuda.so.1`` and registers the functions of ``MadeUpGpu`` there, so
that the process finds them as it would find those of NVIDIA's driver. Streams run their operations
in order and concurrently with each other; the program's own thread goes on meanwhile. Events have
times of a made-up clock, on which each block of a kernel takes ``block_us``.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import math
import os
import random
import struct
import subprocess
import threading
from collections import deque
from pathlib import Path

from dovetail.isolation.images import ptx_of
from dovetail.isolation.ptx import parse
from tests.isolation.interpreter import InterpreterError, Kernel, launch

INVALID_VALUE, OUT_OF_MEMORY, NOT_FOUND = 1, 2, 500
NOT_READY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 600, 700, 801
ATTRIBUTES = {16: 3, 75: 9, 76: 0, 97: 65536}
CONTEXT = 0x1000
_SIZE = 1 << 20
_FIRST = 256
_HOST_AT = 1 << 50


def build(folder: Path) -> Path:
    """Compile the library and return its folder."""
    source = Path(__file__).with_name("made_up_cuda.c")
    made = folder / "libcuda.so.1"
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-w", "-o", made, source], check=True)
    return folder


def install(gpu: MadeUpGpu) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    library.made_up_register.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    for name, method in inspect.getmembers(gpu, inspect.ismethod):
        if name.startswith("cu"):
            count = len(inspect.signature(method).parameters)
            made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * count)(gpu.guarded(method))
            gpu.kept.append(made)
            library.made_up_register(name.encode(), ctypes.cast(made, ctypes.c_void_p))


class Memory:
    """Memory visible to kernels: the GPU's, and mapped pages of the host."""

    def __init__(self) -> None:
        self.device = bytearray(_SIZE)
        self.mapped: dict[int, int] = {}

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, place: slice) -> bytes:
        if place.stop <= _SIZE:
            return bytes(self.device[place])
        return ctypes.string_at(self._host(place), place.stop - place.start)

    def __setitem__(self, place: slice, data: bytes) -> None:
        if place.start < _FIRST:
            raise InterpreterError(f"writes at {place.start}")
        if place.stop <= _SIZE:
            self.device[place] = data
        else:
            ctypes.c_uint32.from_address(self._host(place)).value = int.from_bytes(data, "little")

    def _host(self, place: slice) -> int:
        at = place.start - _HOST_AT
        if any(start <= at and place.stop - _HOST_AT <= end for start, end in self.mapped.items()):
            return at
        raise InterpreterError(f"no memory at {place.start}")


class MadeUpGpu:
    """The driver's functions, and the threads that run the operations they enqueue."""

    def __init__(self, seed: int) -> None:
        self.kept: list[object] = []
        self.memory = Memory()
        self.allocated: dict[int, int] = {}
        self.loaded: dict[int, dict[str, Kernel]] = {}
        # Called when a module was unloaded, whose handle the next gets.
        self.when_unloaded = lambda handle: None
        self._at_once: set[int] = set()
        self._free_modules: list[int] = []
        self.launches: list[str] = []
        self.waits: list[int] = []
        # What a test may want of it: memory mapped in pieces, bytes that others use, copies on the
        # GPU that fail, or do not end, waits that fail, and the time of a block.
        self.in_pieces = self.copies_fail = self.copies_wait = self.waits_fail = False
        self.block_us = 20.0
        self.used_by_others = 0
        self._kernels: dict[int, Kernel] = {}
        self._most_dynamic: dict[int, int] = {}
        self._functions: dict[tuple[int, str], int] = {}
        self._handles = itertools.count(0x10000, 16)
        self._top = _FIRST
        self._streams: dict[int, deque] = {}
        self._stream_ids: dict[int, int] = {}
        self._free_streams: list[int] = []
        self._running: list[threading.Thread] = []
        self._rng = random.Random(seed)
        self._change = threading.Condition()
        self._error = 0
        self._clock_us = 0.0
        self._events: dict[int, float | None] = {}

    def guarded(self, method):
        @functools.wraps(method)
        def call(*arguments: int) -> int:
            with self._change:
                try:
                    return self._error or method(*arguments) or 0
                except KeyError:
                    return INVALID_VALUE

        return call

    def alias(self, function: int) -> int:
        """Return another handle of a function, as a call that is not known here would."""
        with self._change:
            handle = next(self._handles)
            self._kernels[handle] = self._kernels[function]
            return handle

    # The GPU.

    def _run(self, queue: deque) -> None:
        while True:
            with self._change:
                while not queue:
                    self._change.wait()
                operation = queue[0]
            try:
                done = operation()
            except InterpreterError:
                done, self._error = None, ILLEGAL_ADDRESS
            with self._change:
                if self._error:
                    self._clear()
                elif done is not False and queue and queue[0] is operation:
                    queue.popleft()
                self._change.notify_all()
                if done is False:
                    self._change.wait(0.0005)

    def _clear(self) -> None:
        for queue in self._streams.values():
            queue.clear()

    def _enqueue(self, stream: int, operation) -> None:
        queue = self._streams.setdefault(stream or 1, deque())
        if len(self._running) < len(self._streams):
            self._running.append(threading.Thread(target=self._run, args=(queue,), daemon=True))
            self._running[-1].start()
        queue.append(operation)
        self._change.notify_all()

    def _wait(self, streams) -> int:
        while any(self._streams.get(stream) for stream in streams):
            self._change.wait()
        return self._error

    # Contexts, memory.

    def cuInit(self, flags):
        pass

    def cuCtxGetCurrent(self, to):
        _put(to, CONTEXT)

    def cuCtxSetCurrent(self, context):
        pass

    def cuCtxGetDevice(self, to):
        _put(to, 0, "i")

    def cuCtxDestroy(self, context):
        pass

    def cuDevicePrimaryCtxRelease(self, device):
        pass

    def cuDevicePrimaryCtxGetState(self, device, flags, active):
        _put(active, 1, "i")

    def cuDevicePrimaryCtxReset(self, device):
        self._clear()
        self.allocated.clear()
        self.memory.mapped.clear()

    def cuDeviceGetAttribute(self, to, attribute, device):
        _put(to, ATTRIBUTES[attribute & 0xFFFFFFFF], "i")

    def cuMemAlloc(self, to, size):
        # Once the end is reached, what was freed is used again.
        ends = (at + -(-held // 256) * 256 for at, held in self.allocated.items() if at < _SIZE)
        found = next((at for at in (self._top, _FIRST, *ends) if self._is_free(at, size)), None)
        if found is None:
            return OUT_OF_MEMORY
        self._top = found
        self.allocated[self._top] = size
        _put(to, self._top)
        self._top += -(-size // 256) * 256
        return 0

    def _is_free(self, at, size):
        spans = self.allocated.items()
        return at + size <= _SIZE and not any(
            start < at + size and at < start + held for start, held in spans
        )

    def cuMemAllocAsync(self, to, size, stream):
        error = self.cuMemAlloc(to, size)
        if not error:
            self._at_once.add(_word(to))
        return error

    def cuMemFree(self, at):
        if at in self._at_once:
            self._at_once.remove(at)
        else:
            self._wait([*self._streams])
        del self.allocated[at]

    def cuMemGetInfo(self, unused, total):
        _put(unused, max(_SIZE - sum(self.allocated.values()) - self.used_by_others, 0))
        _put(total, _SIZE)

    def cuMemRetainAllocationHandle(self, to, at):
        if not self.in_pieces or self._allocation(at) is None:
            return INVALID_VALUE
        handle = next(self._handles) | 1 << 40
        self.allocated[handle] = 0  # until it is released
        _put(to, handle)
        return 0

    def cuMemRelease(self, handle):
        del self.allocated[handle]

    def cuMemHostRegister(self, at, size, flags):
        self.memory.mapped[at] = at + size

    def cuMemHostGetDevicePointer(self, to, at, flags):
        _put(to, at + _HOST_AT)

    def cuMemcpyHtoD(self, to, at, size):
        self._wait([*self._streams])
        self.memory.device[to : to + size] = ctypes.string_at(at, size)

    def cuMemcpyDtoH(self, to, at, size):
        if error := self._wait([*self._streams]):
            return error
        ctypes.memmove(to, bytes(self.memory.device[at : at + size]), size)
        return 0

    def cuMemcpyDtoHAsync(self, to, at, size, stream):
        self._enqueue(
            stream,
            lambda: ctypes.memmove(to, bytes(self.memory.device[at : at + size]), size),
        )

    def cuMemcpyDtoDAsync(self, to, at, size, stream):
        if self.copies_fail:
            return INVALID_VALUE

        def copy():
            if self.copies_wait:
                return False
            self.memory.device[to : to + size] = self.memory.device[at : at + size]

            return True

        self._enqueue(stream, copy)
        return 0

    def cuMemGetAddressRange(self, to, size, at):
        found = self._allocation(at)
        if found is None:
            return INVALID_VALUE
        _put(to, found)
        _put(size, self.allocated[found])
        return 0

    def cuPointerGetAttribute(self, to, attribute, at):
        host = any(start <= at - _HOST_AT < end for start, end in self.memory.mapped.items())
        if not host and self._allocation(at) is None:
            return INVALID_VALUE
        _put(to, 1 if host else 2, "I")
        return 0

    def _allocation(self, at):
        """Return where the allocation of an address begins."""
        spans = self.allocated.items()
        return next((start for start, size in spans if start <= at < start + size), None)

    def cuMemsetD32Async(self, at, value, count, stream):
        data = struct.pack("=I", value & 0xFFFFFFFF) * count

        def write():
            self.memory.device[at : at + len(data)] = data

        self._enqueue(stream, write)

    # Streams.

    def cuStreamWriteValue32(self, stream, at, value, flags):
        data = struct.pack("=I", value & 0xFFFFFFFF)

        def write():
            self.memory[at : at + 4] = data

        self._enqueue(stream, write)

    def cuStreamWaitValue32(self, stream, at, value, flags):
        """Waits until a word is at least a value; flags are not looked at."""
        if self.waits_fail:
            return NOT_SUPPORTED
        least = value & 0xFFFFFFFF
        self.waits.append(least)
        self._enqueue(stream, lambda: int.from_bytes(self.memory[at : at + 4], "little") >= least)
        return 0

    def cuStreamCreate(self, to, flags):
        _put(to, self._free_streams.pop() if self._free_streams else next(self._handles))

    def cuStreamDestroy(self, stream):
        """What is in it goes on, and the next stream gets its handle."""
        self._streams[-next(self._handles)] = self._streams.pop(stream)
        self._stream_ids.pop(stream, None)
        self._free_streams.append(stream)

    def cuStreamGetId(self, stream, to):
        _put(to, self._stream_ids.setdefault(stream or 1, next(self._handles)))

    def cuEventCreate(self, to, flags):
        event = next(self._handles)
        self._events[event] = None
        _put(to, event)

    def cuEventRecord(self, event, stream):
        self._events[event] = None

        def record():
            self._events[event] = self._clock_us

        self._enqueue(stream, record)

    def cuEventQuery(self, event):
        return NOT_READY if self._events[event] is None else 0

    def cuEventElapsedTime(self, to, since, until):
        _put(to, (self._events[until] - self._events[since]) / 1000, "f")

    def cuStreamQuery(self, stream):
        return NOT_READY if self._streams.get(stream or 1) else 0

    def cuStreamSynchronize(self, stream):
        return self._wait([stream or 1])

    def cuStreamIsCapturing(self, stream, to):
        _put(to, 0, "i")

    def cuThreadExchangeStreamCaptureMode(self, mode):
        _put(mode, 0, "i")

    # Modules.

    def cuModuleLoadData(self, to, image):
        return self._load(to, _bytes_of(image))

    def cuModuleLoadDataEx(self, to, image, count, options, values):
        return self._load(to, _bytes_of(image))

    def cuModuleLoadFatBinary(self, to, image):
        return self._load(to, _bytes_of(image))

    def cuModuleLoad(self, to, path):
        return self._load(to, Path(ctypes.string_at(path).decode()).read_bytes())

    def cuLibraryLoadData(self, to, image, a, b, n, c, d, m):
        return self._load(to, _bytes_of(image))

    def cuLibraryLoadFromFile(self, to, path, a, b, n, c, d, m):
        return self.cuModuleLoad(to, path)

    def cuModuleUnload(self, handle):
        for name in self.loaded.pop(handle):
            self._kernels.pop(self._functions.pop((handle, name), 0), None)
        self._free_modules.append(handle)
        self.when_unloaded(handle)

    def cuLibraryUnload(self, handle):
        self.cuModuleUnload(handle)

    def cuModuleGetFunction(self, to, handle, name):
        wanted = ctypes.string_at(name).decode()
        if wanted not in self.loaded[handle]:
            return NOT_FOUND
        found = self._functions.setdefault((handle, wanted), next(self._handles))
        self._kernels[found] = self.loaded[handle][wanted]
        _put(to, found)
        return 0

    def cuLibraryGetKernel(self, to, handle, name):
        return self.cuModuleGetFunction(to, handle, name)

    def cuLibraryGetModule(self, to, library):
        handle = next(self._handles)
        self.loaded[handle] = self.loaded[library]
        _put(to, handle)

    def cuKernelGetFunction(self, to, kernel):
        handle = next(self._handles)
        self._kernels[handle] = self._kernels[kernel]
        _put(to, handle)

    def cuKernelSetAttribute(self, attribute, value, kernel, device):
        if attribute & 0xFFFFFFFF == 8:
            self._most_dynamic[kernel] = value & 0xFFFFFFFF

    def _load(self, to, image):
        try:
            kernels = kernels_of(image)
        except Exception:
            return INVALID_VALUE
        handle = self._free_modules.pop() if self._free_modules else next(self._handles)
        self.loaded[handle] = dict(kernels)
        _put(to, handle)
        return 0

    # Launches.

    def cuLaunchKernel(self, f, x, y, z, bx, by, bz, shared, stream, arguments, extra):
        kernel = self._kernels[f]
        grid, block = _numbers(x, y, z), _numbers(bx, by, bz)
        if shared & 0xFFFFFFFF > self._most_dynamic.get(f, 49152 - kernel.shared_size):
            return INVALID_VALUE
        given = [
            ctypes.string_at(_word(arguments + 8 * n), size)
            if arguments
            else ctypes.string_at(_word(extra + 8) + kernel.parameter_at[name], size)
            for n, (name, size) in enumerate(kernel.parameter_size.items())
        ]
        rng = random.Random(self._rng.random())
        self.launches.append(kernel.name)

        def run():
            launch(
                kernel,
                self.memory,
                given,
                grid,
                block,
                rng,
                dynamic_shared=shared & 0xFFFFFFFF,
                in_order=True,
            )
            self._clock_us += self.block_us * math.prod(grid)

        self._enqueue(stream, run)
        return 0

    def cuLaunchKernelEx(self, config, f, arguments, extra):
        numbers = struct.unpack("=7I", ctypes.string_at(config, 28))
        return self.cuLaunchKernel(f, *numbers, _word(config + 32), arguments, extra)

    def cuLaunchCooperativeKernel(self, f, x, y, z, bx, by, bz, shared, stream, arguments):
        return self.cuLaunchKernel(f, x, y, z, bx, by, bz, shared, stream, arguments, 0)

    def cuGraphLaunch(self, graph, stream):
        self.launches.append("graph")
        self._enqueue(stream, lambda: None)


@functools.lru_cache(64)
def kernels_of(image: bytes) -> dict[str, Kernel]:
    # What machine code does, this GPU reads in the PTX that it was assembled from.
    kept = Path(os.environ.get("MADE_UP_PTX", "/nowhere"))
    module = parse(ptx_of(image, 10 * ATTRIBUTES[75] + ATTRIBUTES[76], kept))
    return {one.name: Kernel(module, one) for one in module.kernels}


def _bytes_of(image: int) -> bytes:
    if _word(image) & 0xFFFFFFFF == 0x466243B1:
        image = _word(image + 8)
    if _word(image) & 0xFFFFFFFF == 0xBA55ED50:
        header, rest = struct.unpack(
            "=HQ", ctypes.string_at(image + 6, 2) + ctypes.string_at(image + 8, 8)
        )
        return ctypes.string_at(image, header + rest)
    if _word(image) & 0xFFFFFFFF == 0x464C457F:
        at, each, count = struct.unpack_from("=Q14xHH", ctypes.string_at(image, 64), 32)
        return ctypes.string_at(image, at + each * count)
    return ctypes.string_at(image)


def _numbers(*given):
    return tuple(one & 0xFFFFFFFF for one in given)


def _word(at):
    return ctypes.c_uint64.from_address(at).value


def _put(to, value, kind="Q"):
    ctypes.memmove(to, struct.pack("=" + kind, value), struct.calcsize("=" + kind))
