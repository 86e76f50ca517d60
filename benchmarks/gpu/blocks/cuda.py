"""The CUDA driver through ctypes: what the steps need of it.

Functions are found as programs find them, by ``cuGetProcAddress``, so the library that intercepts
launches finds them, too. Source of the calls and numbers: ``cuda.h``.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 12_000
"""The version of the driver's functions that are called."""

SMS, MAJOR, MINOR, MOST_SHARED, UNDER_MPS = 16, 75, 76, 97, 133
"""Attributes of a device."""

_NON_BLOCKING: Final = 1
_MAPPED_FOR_ALL: Final = 3
_GREATER_OR_EQUAL: Final = 0
_DYNAMIC_SHARED: Final = 8
_NOT_READY: Final = 600
_ERROR_LOG: Final = (5, 6)
_LOG_BYTES: Final = 1024
_PAGE_BYTES: Final = 4096
PATIENCE_S: Final = 5.0
"""Seconds after which a GPU that does not answer counts as hung."""


class CudaError(Exception):
    """A call of the driver failed."""


class HungError(Exception):
    """The GPU did not do in time what it was to do."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of a launch, and the dynamic shared memory of a block in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)


class Cuda:
    """The driver, and the primary context of device 0, as PyTorch has it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._known: dict[str, Callable[..., int]] = {}
        self._kept: list[object] = []
        self.call("cuInit", 0)
        self._device = self._number(ctypes.c_int, "cuDeviceGet", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        self.sms: Final = self.attribute(SMS)
        self.architecture: Final = 10 * self.attribute(MAJOR) + self.attribute(MINOR)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; a status that is not 0 is an error."""
        if status := self.function(name)(*arguments):
            raise CudaError(f"{name}: {status}")

    def function(self, name: str) -> Callable[..., int]:
        """Return a function of the driver, which returns its status."""
        if name not in self._known:
            at = ctypes.c_void_p()
            version, flags = ctypes.c_int(VERSION), ctypes.c_uint64(0)
            self._library.cuGetProcAddress_v2(name.encode(), ctypes.byref(at), version, flags, None)
            if not at.value:
                raise CudaError(f"the driver has no {name}")
            self._known[name] = ctypes.CFUNCTYPE(ctypes.c_int)(at.value)
        return self._known[name]

    def attribute(self, which: int) -> int:
        """Return an attribute of the device."""
        return self._number(ctypes.c_int, "cuDeviceGetAttribute", which, self._device)

    def about(self) -> dict[str, object]:
        """Return what identifies the GPU and its driver."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), self._device)
        return {
            "gpu": name.value.decode(),
            "architecture": self.architecture,
            "sms": self.sms,
            "cuda": self._number(ctypes.c_int, "cuDriverGetVersion"),
            "mps": self.attribute(UNDER_MPS) == 1,
        }

    # Memory.

    def allocate(self, size: int) -> int:
        """Return the address of memory on the GPU."""
        return self._number(ctypes.c_uint64, "cuMemAlloc", ctypes.c_size_t(max(size, 4)))

    def free(self, at: int) -> None:
        """Free memory."""
        self.call("cuMemFree", ctypes.c_uint64(at))

    def put(self, at: int, data: bytes) -> None:
        """Write bytes to the GPU."""
        self.call("cuMemcpyHtoD", ctypes.c_uint64(at), data, ctypes.c_size_t(len(data)))

    def get(self, at: int, size: int) -> bytes:
        """Read bytes from the GPU."""
        held = ctypes.create_string_buffer(max(size, 1))
        self.call("cuMemcpyDtoH", held, ctypes.c_uint64(at), ctypes.c_size_t(size))
        return held.raw[:size]

    def copy(self, to: int, at: int, size: int, stream: Stream) -> None:
        """Copy bytes on the GPU, in the order of a stream."""
        arguments = (ctypes.c_uint64(to), ctypes.c_uint64(at), ctypes.c_size_t(size))
        self.call("cuMemcpyDtoDAsync", *arguments, stream.handle)

    def page(self) -> Page:
        """Return memory of the host that the GPU reads and writes."""
        return Page(self)

    # Modules.

    def load(self, text: str) -> ctypes.c_void_p:
        """Load a module of PTX; what the driver's compiler says of a bad one is in the error."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(*_ERROR_LOG)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        given = (text.encode() + b"\0", 2, options, values)
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), *given)
        except CudaError as error:
            raise CudaError(f"{error}: {log.value.decode(errors='replace')}") from None
        return module

    def unload(self, module: ctypes.c_void_p) -> None:
        """Unload a module."""
        self.call("cuModuleUnload", module)

    def kernel(self, module: ctypes.c_void_p, name: str, shared: int = 0) -> ctypes.c_void_p:
        """Return a kernel, which may have so many bytes of dynamic shared memory."""
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        if shared:
            self.call("cuFuncSetAttribute", found, _DYNAMIC_SHARED, shared)
        return found

    def launch(
        self, kernel: ctypes.c_void_p, shape: Shape, arguments: Sequence[int], stream: Stream
    ) -> Launch:
        """Return a launch, to be made by calling it, any number of times."""
        return Launch(self, kernel, shape, arguments, stream)

    def finish(self) -> None:
        """Wait for everything."""
        self.call("cuCtxSynchronize")

    def _number(self, kind: type[Any], name: str, *arguments: object) -> int:
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return int(value.value)


class Launch:
    """A launch of a kernel with its arguments; each is an integer of at most 64 bits."""

    def __init__(
        self,
        cuda: Cuda,
        kernel: ctypes.c_void_p,
        shape: Shape,
        arguments: Sequence[int],
        stream: Stream,
    ) -> None:
        self._values = [ctypes.c_uint64(one) for one in arguments]
        places = (ctypes.c_void_p * max(1, len(self._values)))(*map(ctypes.addressof, self._values))
        numbers = map(ctypes.c_uint, (*shape.grid, *shape.block, shape.shared))
        self._given = (kernel, *numbers, stream.handle, places, None)
        self._function = cuda.function("cuLaunchKernel")

    def __call__(self) -> None:
        """Put it into its stream."""
        if status := self._function(*self._given):
            raise CudaError(f"cuLaunchKernel: {status}")


class Stream:
    """A stream that does not wait for the default one."""

    def __init__(self, cuda: Cuda) -> None:
        self.handle = ctypes.c_void_p()
        self._cuda = cuda
        cuda.call("cuStreamCreate", ctypes.byref(self.handle), _NON_BLOCKING)

    def write(self, at: int, value: int) -> None:
        """Let the GPU write a word, in order."""
        given = (ctypes.c_uint64(at), ctypes.c_uint32(value), 0)
        self._cuda.call("cuStreamWriteValue32", self.handle, *given)

    def wait_at_least(self, at: int, value: int) -> None:
        """Let what follows wait until a word has at least a value."""
        given = (ctypes.c_uint64(at), ctypes.c_uint32(value), _GREATER_OR_EQUAL)
        self._cuda.call("cuStreamWaitValue32", self.handle, *given)

    def is_done(self) -> bool:
        """Return whether all of it has ended."""
        status = self._cuda.function("cuStreamQuery")(self.handle)
        if status not in (0, _NOT_READY):
            raise CudaError(f"cuStreamQuery: {status}")
        return status == 0

    def finish(self, within_s: float = PATIENCE_S) -> None:
        """Wait until all of it has ended."""
        until_s = time.perf_counter() + within_s
        while not self.is_done():
            if time.perf_counter() > until_s:
                raise HungError(f"a stream had not ended after {within_s:g} s")


class Event:
    """A point in a stream whose time the GPU takes."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._handle = cuda, ctypes.c_void_p()
        cuda.call("cuEventCreate", ctypes.byref(self._handle), 0)

    def record(self, stream: Stream) -> None:
        """Take the time behind what the stream has."""
        self._cuda.call("cuEventRecord", self._handle, stream.handle)

    def wait(self) -> None:
        """Let the host wait until it has passed."""
        self._cuda.call("cuEventSynchronize", self._handle)

    def since_us(self, before: Event) -> float:
        """Return the microseconds since another event; both must have passed."""
        value = ctypes.c_float()
        given = (ctypes.byref(value), before._handle, self._handle)
        self._cuda.call("cuEventElapsedTime", *given)
        return 1e3 * value.value


class Page:
    """A page of the host's memory that the GPU sees.

    Attributes
    ----------
    words : array
        Its words, for the host.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._memory = mmap.mmap(-1, _PAGE_BYTES)
        self.words = (ctypes.c_uint32 * (_PAGE_BYTES // 4)).from_buffer(self._memory)
        start, at = ctypes.c_void_p(ctypes.addressof(self.words)), ctypes.c_uint64()
        cuda.call("cuMemHostRegister", start, ctypes.c_size_t(_PAGE_BYTES), _MAPPED_FOR_ALL)
        cuda.call("cuMemHostGetDevicePointer", ctypes.byref(at), start, 0)
        self._at = at.value

    def at(self, word: int) -> int:
        """Return the address of a word, for the GPU."""
        return self._at + 4 * word

    def await_word(self, word: int, value: int, within_s: float = PATIENCE_S) -> float:
        """Spin until a word has a value, and return the time (``perf_counter``)."""
        words, clock = self.words, time.perf_counter
        until_s = clock() + within_s
        while words[word] != value:
            if clock() > until_s:
                raise HungError(f"the GPU had not written a word after {within_s:g} s")
        return clock()


def spin(seconds: float) -> None:
    """Wait without sleeping."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass
