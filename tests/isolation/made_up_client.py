"""A program that launches kernels by the CUDA driver, on a made-up GPU of its own.

``python -m tests.isolation.made_up_client WORK`` reads ``Work`` from a file, does it, and
prints ``Done``. The interception library is preloaded, as into any job.
"""

from __future__ import annotations

import collections
import ctypes
import json
import pickle
import random
import struct
import sys
import time
from dataclasses import dataclass, field

from tests.isolation.made_up_gpu import MadeUpGpu, install
from tests.isolation.running import DATA_AT, Case

CONTAINER, _WRAPPER = 0xBA55ED50, 0x466243B1


@dataclass(frozen=True)
class Task:
    """A kernel to launch: its image, its arguments, and the memory expected after it."""

    name: str
    image: bytes
    case: Case
    pointers: tuple[bool, ...]
    expected: bytes


@dataclass(frozen=True)
class Work:
    """A client's work: its tasks in random order, ``runs`` times each, with pauses.

    ``way`` is how it finds functions: by ``address``, by ``dlsym``, or ``linked``; ``streams`` how
    many it launches to in turn; ``gpu`` what it sets of its made-up GPU.
    """

    tasks: tuple[Task, ...]
    runs: int = 1
    seed: int = 0
    pause_s: float = 0.0
    way: str = "address"
    streams: int = 1
    call: str = "cuLaunchKernel"
    gpu: tuple[tuple[str, object], ...] = ()


@dataclass
class Done:
    """The outcome."""

    wrong: list[str] = field(default_factory=list)
    launches: dict[str, int] = field(default_factory=dict)
    allocated: int = 0
    loaded: int = 0


class CudaError(Exception):
    """A call of the driver failed."""


class Driver:
    """The driver's functions as a program finds them."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._library = ctypes.CDLL(None if way == "linked" else "libcuda.so.1")
        self._direct = ctypes.CDLL("libcuda.so.1")
        self._known: dict[str, object] = {}

    def __call__(self, name: str, *arguments: object) -> None:
        if name not in self._known:
            self._known[name] = self._find(name)
        status = self._known[name](*arguments)
        if status:
            raise CudaError(f"{name}: {status}")

    def _find(self, name: str):
        if self._way != "address":
            try:
                return getattr(self._library, name)
            except AttributeError:
                pass
        found = ctypes.c_void_p()
        self._direct.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), 12000, 0, None)
        return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)


class Client:
    """A process with a GPU."""

    def __init__(self, seed: int, way: str = "address") -> None:
        self.gpu = MadeUpGpu(seed)
        install(self.gpu)
        self.cu = Driver(way)
        self.cu("cuInit", 0)

    def load(self, image: bytes, loader: str = "cuModuleLoadData") -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        if image[:4] == struct.pack("=I", CONTAINER):
            held = ctypes.create_string_buffer(image)
            image = struct.pack("=IIQQ", _WRAPPER, 1, ctypes.addressof(held), 0)
        if loader == "cuLibraryLoadData":
            rest = (None, None, 0, None, None, 0)
            self.cu(loader, ctypes.byref(module), image + b"\0", *rest)
            self.cu("cuLibraryGetKernel", ctypes.byref(function), module, b"k")
        else:
            self.cu(loader, ctypes.byref(module), image + b"\0")
            self.cu("cuModuleGetFunction", ctypes.byref(function), module, b"k")
        self.module = module
        return function

    def run(self, function, task: Task, stream: int = 0, call: str = "cuLaunchKernel") -> bool:
        """Launch a kernel on fresh memory and return whether it leaves the expected contents."""
        at, size = ctypes.c_uint64(), len(task.case.data)
        self.cu("cuMemAlloc", ctypes.byref(at), ctypes.c_size_t(max(size, 1)))
        self.cu("cuMemcpyHtoD", at, task.case.data, ctypes.c_size_t(size))
        self.launch(function, task, at.value, stream, call)
        left = ctypes.create_string_buffer(size)
        self.cu("cuMemcpyDtoH", left, at, ctypes.c_size_t(size))
        self.cu("cuMemFree", at)
        return left.raw == task.expected

    def launch(self, function, task: Task, at: int, stream: int, call: str) -> None:
        values = [
            ctypes.create_string_buffer(one, len(one))
            if isinstance(one, bytes)
            else ctypes.c_uint64(one - DATA_AT + at if pointer else one)
            for one, pointer in zip(task.case.arguments, task.pointers, strict=True)
        ]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        case = task.case
        numbers = (*case.grid, *case.block, case.dynamic_shared)
        if call in ("cuLaunchKernelEx", "attributes"):
            attributes = ctypes.create_string_buffer(64)
            config = struct.pack(
                "=7IxxxxQQQ",
                *numbers,
                stream,
                ctypes.addressof(attributes),
                call == "attributes",
            )
            self.cu("cuLaunchKernelEx", config, function, places, None)
        elif call == "buffer":
            held = b"".join(struct.pack("=Q", value.value) for value in values)
            size = ctypes.c_size_t(len(held))
            parts = (ctypes.c_void_p * 5)(1, _address(held), 2, ctypes.addressof(size), 0)
            on = ctypes.c_void_p(stream)
            self.cu("cuLaunchKernel", function, *numbers, on, None, parts)
        else:
            extra = () if call == "cuLaunchCooperativeKernel" else (None,)
            self.cu(call, function, *numbers, ctypes.c_void_p(stream), places, *extra)


def _address(data: bytes) -> int:
    return ctypes.cast(data, ctypes.c_void_p).value


def work(given: Work) -> Done:
    client, rng = Client(given.seed, given.way), random.Random(given.seed)
    for name, value in given.gpu:
        setattr(client.gpu, name, value)
    functions = [(client.load(task.image), client.module) for task in given.tasks]
    done = Done()
    todo = [k for k in range(len(given.tasks)) for _ in range(given.runs)]
    rng.shuffle(todo)
    for turn, k in enumerate(todo):
        stream = 0 if given.streams == 1 else 0x100 + turn % given.streams
        if not client.run(functions[k][0], given.tasks[k], stream, given.call):
            done.wrong.append(given.tasks[k].name)
        time.sleep(rng.random() * 2 * given.pause_s)
    for _, module in functions:
        client.cu("cuModuleUnload", module)
    done.launches = dict(collections.Counter(client.gpu.launches))
    done.allocated, done.loaded = len(client.gpu.allocated), len(client.gpu.loaded)
    return done


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        given = pickle.load(file)
    print(json.dumps(vars(work(given))))


if __name__ == "__main__":
    main()
