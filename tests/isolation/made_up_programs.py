"""Programs with a made-up GPU that do more than launch one kernel after the other, as jobs do.

``python -m tests.isolation.made_up_programs NAME TASK`` prints ``right`` if the memory is
what it has to be.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace

from tests.isolation.made_up_client import Client


def threads(task):
    """Four threads launch to streams of their own, and to one that they share."""
    client, wrong = Client(1), []
    function = client.load(task.image)

    def run(stream):
        wrong.extend(n for n in range(6) if not client.run(function, task, stream))

    started = [threading.Thread(target=run, args=(n % 3 + 16,)) for n in range(4)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    return not wrong


def waiting(task):
    """A launch follows a wait in its stream that this thread ends after it has launched."""
    client = Client(1)
    function = client.load(task.image)
    word, at = _word(client)
    data = len(task.case.data)
    memory = ctypes.c_uint64()
    client.cu("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(data))
    client.cu("cuMemcpyHtoD", memory, task.case.data, ctypes.c_size_t(data))
    client.cu("cuStreamWaitValue32", ctypes.c_void_p(16), at, 1, 0)
    client.launch(function, task, memory.value, 16, "cuLaunchKernel")
    word.value = 1
    client.cu("cuStreamSynchronize", ctypes.c_void_p(16))
    left = ctypes.create_string_buffer(data)
    client.cu("cuMemcpyDtoH", left, memory, ctypes.c_size_t(data))
    return left.raw == task.expected and all(client.run(function, task, 16) for _ in range(3))


def _word(client):
    """Return a word that is 0, and where the GPU sees it."""
    word, at = ctypes.c_uint32(0), ctypes.c_uint64()
    size = ctypes.c_size_t(4)
    client.cu("cuMemHostRegister", ctypes.c_void_p(ctypes.addressof(word)), size, 3)
    client.cu("cuMemHostGetDevicePointer", ctypes.byref(at), ctypes.byref(word), 0)
    return word, at


def destroyed_stream(task):
    """A stream is destroyed while a launch is in it, and another one gets its handle."""
    client = Client(1)
    function = client.load(task.image)
    word, at = _word(client)
    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    client.cu("cuStreamCreate", ctypes.byref(first), 1)
    client.cu("cuStreamWaitValue32", first, at, 1, 0)
    memory = ctypes.c_uint64()
    client.cu("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(len(task.case.data)))
    client.launch(function, task, memory.value, first.value, "cuLaunchKernel")
    client.cu("cuStreamDestroy", first)
    client.cu("cuStreamCreate", ctypes.byref(second), 1)
    client.launch(function, task, memory.value, second.value, "cuLaunchKernel")
    client.cu("cuStreamSynchronize", second)
    word.value = 1
    client.cu("cuMemcpyDtoH", ctypes.create_string_buffer(1), memory, ctypes.c_size_t(1))
    return first.value == second.value


def slower(task):
    """A kernel that is not cut has more to do from some launch on, in the same sizes."""
    client = Client(1)
    function = client.load(task.image)
    call = "cuLaunchCooperativeKernel"
    client.gpu.block_us = 0.1
    right = all(client.run(function, task, 16, call) for _ in range(8))
    quick, client.gpu.block_us = client.gpu.waits[-1], 1e6
    right &= all(client.run(function, task, 16, call) for _ in range(160))
    return right and quick < 8 and client.gpu.waits[-1] >= 20


def reloaded(task):
    """A thread loads a module as soon as another has unloaded one, and is given its handle."""
    client, functions = Client(1), []
    client.load(task.image)
    before = client.module.value

    def load(handle):
        if handle == before and not functions:
            functions.append(client.load(task.image))

    client.gpu.when_unloaded = load
    client.cu("cuModuleUnload", client.module)
    right = all(client.run(functions[0], task) for _ in range(3))
    return right and client.module.value == before


def host_last(task):
    """A stream waits for this very thread, which launches a kernel to another one before."""
    client = Client(1)
    function = client.load(task.image)
    word, at = _word(client)
    data = len(task.case.data)
    memory, left = ctypes.c_uint64(), ctypes.create_string_buffer(data)
    client.cu("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(data))
    client.cu("cuMemcpyHtoD", memory, task.case.data, ctypes.c_size_t(data))
    client.cu("cuStreamWaitValue32", ctypes.c_void_p(32), at, 1, 0)
    client.launch(function, task, memory.value, 16, "cuLaunchKernel")
    word.value = 1
    client.cu("cuMemcpyDtoH", left, memory, ctypes.c_size_t(data))
    return left.raw == task.expected


def many_sizes(task):
    """A kernel is launched in more sizes than are known of one, and then in one of them."""
    client = Client(1)
    function, call = client.load(task.image), "cuLaunchCooperativeKernel"
    client.gpu.block_us, right = 0.1, True
    for number in [*range(1100), *[1099] * 8]:
        sized = replace(task, case=replace(task.case, dynamic_shared=number))
        right &= client.run(function, sized, 16, call)
    return right and client.gpu.waits[-1] < 8


def reset(task):
    """The context is reset, and all is loaded anew."""
    client = Client(1)
    function = client.load(task.image)
    right = all(client.run(function, task) for _ in range(3))
    client.cu("cuDevicePrimaryCtxReset", 0)
    function = client.load(task.image, "cuLibraryLoadData")
    return right and all(client.run(function, task) for _ in range(3))


def preparing(task):
    """While a module is loaded, which takes its scheduler long, another thread launches."""
    client, right = Client(1), True
    function = client.load(task.image)
    loading = threading.Thread(target=client.load, args=(task.image + b"\n// slow",))
    loading.start()
    number = 0
    while loading.is_alive():
        # Of each size, the scheduler is asked for the form.
        sized = replace(task, case=replace(task.case, dynamic_shared=number))
        right &= client.run(function, sized)
        number += 1
    return right and number > 3


def signals(task):
    """The program takes signals all the time, as of a profiler or of processes that end."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    client = Client(1)
    function = client.load(task.image)
    right = all(client.run(function, task) for _ in range(6))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return right


def forking(task):
    """A process is forked that lives as long as the scheduler's socket is there."""
    client = Client(1)
    right = client.run(client.load(task.image), task)
    if not os.fork():
        for file in (1, 2):
            os.close(file)
        while os.path.exists(os.environ["DOVETAIL_ISOLATION_SOCKET"]):
            time.sleep(0.05)
        os._exit(0)
    return right


def late_copies(task):
    """Copies of a kernel's memory do not end in time; they are freed once they have."""
    client = Client(1)
    function = client.load(task.image)
    data = len(task.case.data)
    memory, left = ctypes.c_uint64(), ctypes.create_string_buffer(data)
    client.cu("cuMemAlloc", ctypes.byref(memory), ctypes.c_size_t(data))
    client.cu("cuMemcpyHtoD", memory, task.case.data, ctypes.c_size_t(data))
    client.gpu.copies_wait = True
    client.launch(function, task, memory.value, 16, "cuLaunchKernel")
    # The page's counters, the memory, and the copies, which the GPU still uses.
    kept = len(client.gpu.allocated)
    client.gpu.copies_wait = False
    client.cu("cuMemcpyDtoH", left, memory, ctypes.c_size_t(data))
    right = left.raw == task.expected and client.run(function, task, 16)
    return right and (kept, len(client.gpu.allocated)) == (3, 2)


def escapes(task):
    """Launches that cannot be cut up."""
    client = Client(1)
    function = client.load(task.image)
    right = client.run(function, task, 16, "cuLaunchCooperativeKernel")
    client.cu("cuGraphLaunch", ctypes.c_void_p(0x99), ctypes.c_void_p(16))
    right &= client.run(function, task, 16, "attributes")
    right &= client.run(function, task, 16, "buffer")
    other = ctypes.c_void_p(client.gpu.alias(function.value))
    return right & client.run(other, task, 16)


def main() -> None:
    with open(sys.argv[2], "rb") as file:
        task = pickle.load(file)
    print("right" if globals()[sys.argv[1]](task) else "wrong")


if __name__ == "__main__":
    main()
