"""A latency-critical and a best-effort program, who do what lines of JSON on their input ask.

``python -m blocks.clients ROLE [--stand-in]``, where ROLE is ``requests``, ``training`` or
``pytorch``. Each says ``{"ready": ...}``, then answers each line. They launch through the CUDA
driver, and the library that intercepts launches is loaded into them as into any job. ``pytorch`` is
a training that knows nothing of all this.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from blocks.cuda import Cuda, Event, Launch, Stream
from blocks.programs import Programs
from blocks.right import quantiles
from blocks.setting import Setting, end_with_parent

_AHEAD: Final = 2
"""Iterations that a training's host is ahead of its GPU."""

_LATE_S: Final = 5.0
"""Seconds behind the last arrival after which a service counts as overloaded."""

_SLEEPS_S: Final = 3e-4
_SERVICES: Final = 30

Answer = dict[str, Any]


def programs(cuda: Cuda, stand_in: bool) -> Programs:
    """Return the small kernels, in small for a stand-in."""
    return Programs(cuda, 2, 2) if stand_in else Programs(cuda)


class Requests:
    """Requests of some kernels each, which arrive whether or not the last ones have ended."""

    def __init__(self, cuda: Cuda, stand_in: bool) -> None:
        self._programs, self._stream = programs(cuda, stand_in), Stream(cuda)
        self._rng = random.Random(1)

    def answer(self, asked: Mapping[str, Any]) -> Answer:
        """Serve requests: ``kernels`` of ``rounds`` each, at ``rate`` a second for ``seconds``.

        Without a rate, some are served one after the other, and their median time is the answer.
        """
        launches = [self._programs.work(asked["rounds"], self._stream)] * asked["kernels"]
        if "rate" not in asked:
            return {"service": statistics.median(self._serve(launches) for _ in range(_SERVICES))}
        clock, latencies, overloaded = time.perf_counter, [], False
        due = clock()
        end = due + asked["seconds"]
        while (due := due + self._rng.expovariate(asked["rate"])) < end:
            if (left := due - clock()) > _SLEEPS_S:
                time.sleep(left - _SLEEPS_S)
            while clock() < due:
                pass
            self._serve(launches)
            latencies.append(1e6 * (clock() - due))
            if overloaded := clock() > end + _LATE_S:
                break
        told = quantiles(latencies) if latencies else {}
        return {"requests": len(latencies), "overloaded": overloaded, **told}

    def _serve(self, launches: Sequence[Launch]) -> float:
        began = time.perf_counter()
        for launch in launches:
            launch()
        self._stream.finish()
        return time.perf_counter() - began


class _Work(Protocol):
    """Iterations: puts one, and returns what waits for its end."""

    def __call__(self) -> Callable[[], object]: ...


class Training:
    """Iterations, one after the other; the host is ahead of the GPU."""

    def __init__(self, work: Callable[[Mapping[str, Any]], _Work]) -> None:
        self._make = work
        self._work: _Work | None = None
        self._left: list[Callable[[], object]] = []
        self._done = 0

    @property
    def is_busy(self) -> bool:
        """Whether it iterates."""
        return self._work is not None

    def answer(self, asked: Mapping[str, Any]) -> Answer:
        """Begin other iterations, or none (``iterate``); always say how many have ended."""
        if "iterate" in asked:
            self._drain(0)
            self._work = self._make(asked["iterate"]) if asked["iterate"] else None
        return {"done": self._done, "at": time.monotonic()}

    def iterate(self) -> None:
        """Put an iteration, and wait for one before it."""
        assert self._work is not None
        self._left.append(self._work())
        self._drain(_AHEAD)

    def _drain(self, most: int) -> None:
        while len(self._left) > most:
            self._left.pop(0)()
            self._done += 1


class _Kernels:
    """An iteration: kernels, each launched or all as a graph."""

    def __init__(self, cuda: Cuda, made: Programs, asked: Mapping[str, Any]) -> None:
        self._cuda, self._stream = cuda, Stream(cuda)
        self._launches = [
            made.work(rounds, self._stream, waves) for rounds, waves in asked["kernels"]
        ]
        self._events = [Event(cuda) for _ in range(_AHEAD + 1)]
        self._graph = self._captured() if asked["graph"] else None

    def __call__(self) -> Callable[[], object]:
        """Put the iteration, and return what waits for its end."""
        if self._graph is not None:
            self._cuda.call("cuGraphLaunch", self._graph, self._stream.handle)
        else:
            for launch in self._launches:
                launch()
        event = self._events.pop(0)
        self._events.append(event)
        event.record(self._stream)
        return event.wait

    def _captured(self) -> ctypes.c_void_p:
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        # A kernel may be loaded at its first launch, which a capture does not allow.
        self._launches[0]()
        self._stream.finish()
        self._cuda.call("cuStreamBeginCapture", self._stream.handle, 0)
        for launch in self._launches:
            launch()
        self._cuda.call("cuStreamEndCapture", self._stream.handle, ctypes.byref(graph))
        no_flags = ctypes.c_uint64(0)
        self._cuda.call("cuGraphInstantiate", ctypes.byref(made), graph, no_flags)
        return made


class _PyTorch:
    """A training of a transformer as PyTorch's manual has it."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
        self._model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
        self._batch = torch.randn(16, 512, 1024, device="cuda")
        self()()

    def __call__(self) -> Callable[[], object]:
        """Put an iteration, and return what waits for its end."""
        torch = self._torch
        with torch.autocast("cuda", torch.bfloat16):
            loss = self._model(self._batch).float().square().mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        event = torch.cuda.Event()
        event.record()
        wait: Callable[[], object] = event.synchronize
        return wait


def _role(name: str, stand_in: bool) -> Requests | Training:
    if name == "pytorch":
        training = _PyTorch()
        return Training(lambda asked: training)
    cuda = Setting(Path(), stand_in).cuda()
    if name == "requests":
        return Requests(cuda, stand_in)
    made = programs(cuda, stand_in)
    return Training(lambda asked: _Kernels(cuda, made, asked))


def main() -> None:
    """Answer lines until the input ends."""
    end_with_parent()
    role = _role(sys.argv[1], "--stand-in" in sys.argv)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    while True:
        if isinstance(role, Training) and role.is_busy and lines.empty():
            role.iterate()
        else:
            print(json.dumps(role.answer(json.loads(lines.get()))), flush=True)


def _listen(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
