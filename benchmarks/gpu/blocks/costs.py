"""What the gate and the flag cost, one call or wait at a time, and what waits behind a closed gate.

A gate is a word that a stream waits at (``cuStreamWaitValue32``). Each measurement has a process of
its own. Times are microseconds; on the host they are those of a Python program.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from blocks.cuda import CudaError, Event, Page, Stream, spin
from blocks.prepared import LONG_BLOCKS
from blocks.programs import Programs
from blocks.right import Loaded, quantiles
from blocks.setting import ApartError, Setting, apart
from blocks.sharing import WAYS, Machine
from dovetail.instances.errors import DovetailError

GATE, SAID, SEEN, FLAG, START = 0, 16, 32, 80, 96
"""Words of a page, each in a line of its own."""

_OPENS_S: Final = 0.2
"""Seconds after which a gate opens that was closed to see who waits."""

_STREAMS: Final = 32
_QUIET_S: Final = 3e-4
_LONG_US: Final = 10.0
FLAGS: Final = ("device", "host", "poller")


class _Bench:
    """A GPU with its small kernels, a page of the host's memory, a stream, and two events."""

    def __init__(self, setting: Setting) -> None:
        self.cuda = setting.cuda()
        short = {"threads": 2, "blocks": 2} if setting.stand_in else {}
        self.programs = Programs(self.cuda, **short)
        self.page = self.cuda.page()
        self.stream, self.other = Stream(self.cuda), Stream(self.cuda)
        self.begin, self.end = Event(self.cuda), Event(self.cuda)
        # A kernel may be loaded at its first launch, and the host may wait for all streams then.
        self.programs.nothing(self.stream)()
        self.programs.mark(self.page.at(SEEN), 0, self.stream)()
        self.stream.finish()

    def rounds(self, setting: Setting, us: float) -> int:
        """Return the rounds of work that take so long."""
        if setting.stand_in:
            return 2
        return max(1, round(us * self.programs.rounds_a_us(self.stream)))

    def behind_gate(self, put: Callable[[], object], count: int) -> float:
        """Put something into a stream as often behind a closed gate; return its time on the GPU."""
        put()
        self.stream.finish()
        self.page.words[GATE] = 0
        self.stream.wait_at_least(self.page.at(GATE), 1)
        self.begin.record(self.stream)
        for _ in range(count):
            put()
        self.end.record(self.stream)
        self.page.words[GATE] = 1
        self.stream.finish()
        return self.end.since_us(self.begin)


def calls_of_host(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield the host's time for each call; the stream is emptied after every 50."""
    bench = _Bench(setting)
    stream, page, event = bench.stream, bench.page, bench.begin
    word, context = bench.cuda.allocate(4), ctypes.c_void_p()
    page.words[GATE] = 1
    calls: dict[str, Callable[[], object]] = {
        "nothing (Python's own time)": lambda: bench.cuda.call(
            "cuCtxGetCurrent", ctypes.byref(context)
        ),
        "cuLaunchKernel": bench.programs.nothing(stream),
        "cuStreamWaitValue32": lambda: stream.wait_at_least(page.at(GATE), 1),
        "cuStreamWriteValue32, device": lambda: stream.write(word, 1),
        "cuStreamWriteValue32, host": lambda: stream.write(page.at(SEEN), 1),
        "cuEventRecord": lambda: event.record(stream),
        "cuStreamQuery": stream.is_done,
    }
    for name, call in calls.items():
        times = []
        for k in range(setting.of(2000, 10)):
            began = time.perf_counter()
            call()
            times.append(1e6 * (time.perf_counter() - began))
            if k % 50 == 49:
                stream.finish()
        stream.finish()
        yield {"what": name, **quantiles(times)}


def on_the_gpu(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield what is added to each kernel, on the GPU, where the host is ahead."""
    bench = _Bench(setting)
    stream, page, word = bench.stream, bench.page, bench.cuda.allocate(4)
    kernels = {
        "empty": bench.programs.nothing(stream),
        f"{_LONG_US:g} us": bench.programs.work(bench.rounds(setting, _LONG_US), stream),
    }
    events = [Event(bench.cuda), Event(bench.cuda)]

    def wait() -> None:
        stream.wait_at_least(page.at(GATE), 1)

    page.words[GATE] = 1
    for name, kernel in kernels.items():
        ways: dict[str, tuple[Callable[[], object], ...]] = {
            "alone": (kernel,),
            "wait at an open gate": (wait, kernel),
            "event before": (lambda: events[0].record(stream), kernel),
            "wait, event, kernel, event": (
                wait,
                lambda: events[0].record(stream),
                kernel,
                lambda: events[1].record(stream),
            ),
            "write to device behind": (kernel, lambda: stream.write(word, 1)),
            "write to host behind": (kernel, lambda: stream.write(page.at(SEEN), 1)),
        }
        alone = 0.0
        for way, parts in ways.items():

            def put(parts: tuple[Callable[[], object], ...] = parts) -> None:
                for part in parts:
                    part()

            count = setting.of(100, 3)
            times = [bench.behind_gate(put, count) / count for _ in range(setting.of(15, 2))]
            each = statistics.median(times)
            alone = alone or each
            added = {} if parts == (kernel,) else {"added": round(each - alone, 3)}
            yield {"what": f"{name}: {way}", **quantiles(times), **added}


def first_blocks(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield times from what the host does to a block that it sees begin, and what it sees later."""
    bench = _Bench(setting)
    page, stream, rng = bench.page, bench.stream, random.Random(1)
    words, seen, clock = page.words, page.at(SEEN), time.perf_counter
    times = setting.of(300, 5)

    bench.programs.echo(page.at(FLAG), page.at(SAID), times, stream)()
    echoed = []
    for k in range(1, times + 1):
        spin(rng.uniform(5e-6, 5e-5))
        began = clock()
        words[FLAG] = k
        echoed.append(1e6 * (page.await_word(SAID, k) - began))
    stream.finish()
    yield {"what": "a running kernel answers a store", **quantiles(echoed)}

    launched, opened, by_gpu, written = [], [], [], []
    gate = bench.cuda.allocate(4)
    bench.cuda.put(gate, bytes(4))
    for k in range(1, times + 1):
        began = clock()
        bench.programs.mark(seen, 4 * k, stream)()
        launched.append(1e6 * (page.await_word(SEEN, 4 * k) - began))
        stream.finish()

        stream.wait_at_least(page.at(GATE), k)
        bench.programs.mark(seen, 4 * k + 1, stream)()
        spin(rng.uniform(2e-5, 2e-4))
        began = clock()
        words[GATE] = k
        opened.append(1e6 * (page.await_word(SEEN, 4 * k + 1) - began))
        stream.finish()

        stream.wait_at_least(gate, k)
        bench.programs.mark(seen, 4 * k + 2, stream)()
        spin(rng.uniform(2e-5, 2e-4))
        began = clock()
        bench.other.write(gate, k)
        by_gpu.append(1e6 * (page.await_word(SEEN, 4 * k + 2) - began))
        stream.finish()

        bench.programs.mark(seen, 4 * k + 3, stream)()
        stream.write(page.at(SAID), 4 * k)
        before = page.await_word(SEEN, 4 * k + 3)
        written.append(1e6 * (page.await_word(SAID, 4 * k) - before))
        stream.finish()
    yield {"what": "launch to its first block, no gate", **quantiles(launched)}
    yield {"what": "gate opened by host to first block", **quantiles(opened)}
    yield {"what": "gate opened by GPU to first block", **quantiles(by_gpu)}
    yield {"what": "kernel's last store to the write behind", **quantiles(written)}
    closed = [_closing(bench, rng, setting.of(200, 10)) for _ in range(setting.of(50, 2))]
    yield {"what": "gate closed to the last block begun", **quantiles(closed)}


def _closing(bench: _Bench, rng: random.Random, count: int) -> float:
    """Return how long after the closing of a gate the host sees kernels begin that wait there."""
    page, stream, words = bench.page, bench.stream, bench.page.words
    words[START] = words[SEEN] = 0
    words[GATE] = 1
    stream.wait_at_least(page.at(START), 1)
    for k in range(1, count + 1):
        stream.wait_at_least(page.at(GATE), 1)
        bench.programs.mark(page.at(SEEN), k, stream)()
    words[START] = 1
    closes_at = rng.randrange(count // 4, count // 2)
    while words[SEEN] < closes_at:
        pass
    before, clock = words[SEEN], time.perf_counter
    words[GATE] = 0
    began = last = clock()
    while clock() - last < _QUIET_S:
        if words[SEEN] != before:
            before, last = words[SEEN], clock()
    words[GATE] = 1
    stream.finish()
    return 1e6 * (last - began)


def reads_of_flag(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield the time of a read of a flag by blocks that all read one after the other."""
    bench = _Bench(setting)
    sms = bench.cuda.sms
    places = {"device": bench.cuda.allocate(4), "host": bench.page.at(FLAG)}
    bench.cuda.put(places["device"], bytes(4))
    for blocks in setting.of((1, sms, 4 * sms, 8 * sms), (1, 2)):
        for name, at in places.items():
            count = setting.of(max(2, (100_000 if name == "device" else 4_000) // blocks), 2)
            launch = bench.programs.reads(at, count, blocks, bench.stream)
            times = [bench.behind_gate(launch, 1) / count for _ in range(setting.of(7, 2))]
            yield {"what": f"{name} memory, {blocks} blocks at once", **quantiles(times)}


def stops_of_workers(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield the times of workers, and from a raised flag until they have ended, by the flag's way.

    A flag in device memory is raised by a stream; one in host memory by a store; with a poller, a
    block of its own copies the host's word to device memory each microsecond.
    """
    bench = _Bench(setting)
    names = (LONG_BLOCKS, "large short blocks", "large product in tiles")
    chosen = [one for one in setting.kernels() if one.name in names or setting.stand_in]
    polling = Stream(bench.cuda)
    for kernel in chosen[: setting.of(3, 1)]:
        one = Loaded(bench.cuda, kernel, 1)
        whole_us = min(one.timed(one.launch_whole)[1] for _ in range(5))
        yield {"what": f"{_short(kernel.name)}: whole", **quantiles([whole_us])}
        counts = [one for one in (1, 4, 8) if one * kernel.shape.threads <= 2048]
        for each in counts[: setting.of(3, 1)]:
            count = min(each * bench.cuda.sms, kernel.shape.blocks)
            for chunk in setting.of((1, 16), (1,)):
                for way in FLAGS:
                    stopping = _Stopping(bench, one, way, polling, setting)
                    what = f"{_short(kernel.name)}: {count}x{chunk}, {way}"
                    yield stopping.run(what, count, chunk, whole_us)
        one.close()


def _short(name: str) -> str:
    return name.removeprefix("large ")[:18]


class _Stopping:
    """Runs workers of one kernel that a flag stops, raised in one way."""

    def __init__(
        self, bench: _Bench, one: Loaded, way: str, polling: Stream, setting: Setting
    ) -> None:
        self._bench, self._one, self._way, self._polling = bench, one, way, polling
        self._setting = setting
        self._flag = bench.page.at(FLAG) if way == "host" else one.flag
        self._rng = random.Random(1)

    def run(self, what: str, count: int, chunk: int, whole_us: float) -> dict[str, Any]:
        """Return how long all blocks take, and how long workers go on after the flag is raised."""
        bench, one, page = self._bench, self._one, self._bench.page
        launch = one.workers(count, chunk, self._flag)
        page.words[FLAG] = 0
        self._poll()
        _, all_us = one.timed(launch)
        self._end_poll()
        found: dict[str, Any] = {"what": what, "all": round(all_us, 1)}
        ends, stopped = [], 0
        # Workers whose reads take that much longer say all they have to say in a few runs.
        tries = self._setting.of(30 if all_us < 2e4 else 5, 2)
        for k in range(1, tries + 1):
            page.words[FLAG] = page.words[SEEN] = 0
            one.freshen()
            self._poll()
            launch()
            one.stream.write(page.at(SEEN), k)
            spin(1e-6 * self._rng.uniform(5, 5 + 0.8 * min(all_us, 2 * whole_us)))
            began = time.perf_counter()
            self._raise()
            ended = page.await_word(SEEN, k)
            self._end_poll()
            one.stream.finish()
            if one.done() < one.shape.blocks:
                stopped += 1
                ends.append(1e6 * (ended - began))
        bench.cuda.finish()
        return found | ({"stopped": stopped, **quantiles(ends)} if ends else {"stopped": 0})

    def _raise(self) -> None:
        if self._way == "device":
            self._bench.other.write(self._flag, 1)
        else:
            self._bench.page.words[FLAG] = 1

    def _poll(self) -> None:
        if self._way == "poller":
            most = self._setting.of(1 << 20, 2)
            self._bench.programs.poll(self._bench.page.at(FLAG), self._flag, most, self._polling)()

    def _end_poll(self) -> None:
        if self._way == "poller":
            self._bench.page.words[FLAG] = 2
            self._polling.finish()


def streams_beside(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield how many streams do not run while others of the process wait at a closed gate."""
    bench = _Bench(setting)
    page = bench.page
    streams = [Stream(bench.cuda) for _ in range(setting.of(_STREAMS, 5))]
    for level, gated in enumerate(setting.of((1, 2, 4, 8, 16), (1, 2)), 1):
        page.words[GATE] = level - 1
        for stream in streams[:gated]:
            stream.wait_at_least(page.at(GATE), level)
            bench.programs.nothing(stream)()
        free, waits = streams[gated:], []
        for k, stream in enumerate(free):
            page.words[SEEN + k] = 0
            bench.programs.mark(page.at(SEEN + k), level, stream)()
        until_s = time.perf_counter() + _OPENS_S
        while time.perf_counter() < until_s:
            waits = [k for k in range(len(free)) if page.words[SEEN + k] != level]
            if not waits:
                break
        page.words[GATE] = level
        for stream in streams:
            stream.finish()
        yield {"what": f"{gated} of its streams", "others": len(free), "stand": len(waits)}


_OPEN: Final = "open"
_HOLDS_S: Final = 20.0
_HELD: Final = 4


def gates_held(setting: Setting) -> Iterator[dict[str, Any]]:
    """Hold streams at a closed gate until a file says that it may open."""
    bench, may_open = _Bench(setting), setting.out / _OPEN
    may_open.unlink(missing_ok=True)
    streams = [Stream(bench.cuda) for _ in range(_HELD)]
    bench.page.words[GATE] = 0
    for stream in streams:
        stream.wait_at_least(bench.page.at(GATE), 1)
        bench.programs.nothing(stream)()
    yield {"held": _HELD}
    until_s = time.monotonic() + _HOLDS_S
    while not may_open.exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    bench.page.words[GATE] = 1
    for stream in streams:
        stream.finish()


def launches_seen(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield the time from a launch to its first block; another process may be at a closed gate."""
    bench, times = _Bench(setting), []
    for k in range(1, setting.of(1000, 5) + 1):
        began = time.perf_counter()
        bench.programs.mark(bench.page.at(SEEN), k, bench.stream)()
        times.append(1e6 * (bench.page.await_word(SEEN, k) - began))
        bench.stream.finish()
    yield {"what": "launch to its first block", **quantiles(times)}


def most_behind(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield how many launches find room in a stream behind a closed gate."""
    bench = _Bench(setting)
    stream, page = bench.stream, bench.page
    nothing = bench.programs.nothing(stream)
    most = setting.of(20_000, 20)
    for what, waits in (("until the host waits", 0), ("the same, a wait before each", 1)):
        page.words[GATE] = 0
        state = {"put": 0, "blocked": 0}
        stream.wait_at_least(page.at(GATE), 1)
        opener = threading.Thread(target=_open_when_stuck, args=(page, state))
        opener.start()
        while state["put"] < most and not state["blocked"]:
            for _ in range(waits):
                stream.wait_at_least(page.at(GATE), 1)
            nothing()
            state["put"] += 1
        found = state["blocked"] or state["put"]
        page.words[GATE] = 1
        opener.join()
        stream.finish()
        yield {"what": what, "most": found, "tried": most}


def _open_when_stuck(page: Page, state: dict[str, int]) -> None:
    """Open the gate, and note how much was put, once nothing more is."""
    before = -1
    while page.words[GATE] == 0:
        now = state["put"]
        if now == before:
            state["blocked"] = max(now, 1)
            page.words[GATE] = 1
        before = now
        time.sleep(_OPENS_S)


def waits_behind(setting: Setting) -> Iterator[dict[str, Any]]:
    """Yield which calls of the host wait while a stream stands at a closed gate."""
    bench = _Bench(setting)
    for name, make in _calls(bench, setting).items():
        try:
            call = make()
            page, stream = bench.page, bench.stream
            page.words[GATE] = 0
            stream.wait_at_least(page.at(GATE), 1)
            bench.programs.nothing(stream)()
            opening = threading.Timer(_OPENS_S, page.words.__setitem__, (GATE, 1))
            opening.start()
            began = time.perf_counter()
            try:
                call()
            finally:
                took = time.perf_counter() - began
                opening.join()
                stream.finish()
                bench.other.finish()
            yield {"what": name, "us": round(1e6 * took, 1), "waits": took > 0.8 * _OPENS_S}
        except CudaError as error:
            yield {"what": name, "failed": str(error)}


def _calls(bench: _Bench, setting: Setting) -> Mapping[str, Callable[[], Callable[[], object]]]:
    """Return by name what makes a call ready."""
    cuda, gated, other = bench.cuda, bench.stream, bench.other
    small, large = setting.of((1 << 10, 1 << 24), (64, 256))
    pageable = ctypes.create_string_buffer(large)
    at, to = cuda.allocate(large), ctypes.c_uint64()
    event, passed = Event(cuda), Event(cuda)
    null, held = ctypes.c_void_p(), ctypes.c_void_p()

    def copies(call: str, size: int, stream: ctypes.c_void_p) -> Callable[[], Callable[[], object]]:
        device = ctypes.c_uint64(at)
        ends = (device, pageable) if "HtoD" in call else (pageable, device)
        return lambda: lambda: cuda.call(call, *ends, ctypes.c_size_t(size), stream)

    def now(name: str, *arguments: object) -> Callable[[], Callable[[], object]]:
        return lambda: lambda: cuda.call(name, *arguments)

    def freeing() -> Callable[[], object]:
        held = cuda.allocate(large)
        return lambda: cuda.free(held)

    def passing() -> Callable[[], object]:
        passed.record(other)
        return lambda: passed.wait()

    return {
        "pageable to GPU, 1 KiB, gated stream": copies("cuMemcpyHtoDAsync", small, gated.handle),
        "pageable to GPU, 16 MiB, gated stream": copies("cuMemcpyHtoDAsync", large, gated.handle),
        "pageable to GPU, 16 MiB, other stream": copies("cuMemcpyHtoDAsync", large, other.handle),
        "pageable from GPU, 1 KiB, gated stream": copies("cuMemcpyDtoHAsync", small, gated.handle),
        "pageable from GPU, 1 KiB, other stream": copies("cuMemcpyDtoHAsync", small, other.handle),
        "pageable to GPU, 16 MiB, default stream": copies("cuMemcpyHtoDAsync", large, null),
        "cuMemcpyHtoD, 1 KiB": lambda: lambda: cuda.put(at, bytes(small)),
        "cuMemcpyDtoH, 1 KiB": lambda: lambda: cuda.get(at, small),
        "cuMemAlloc": now("cuMemAlloc", ctypes.byref(to), ctypes.c_size_t(large)),
        "cuMemFree": freeing,
        "cuMemAllocAsync, other stream": now(
            "cuMemAllocAsync", ctypes.byref(to), ctypes.c_size_t(large), other.handle
        ),
        "cuMemHostAlloc": now("cuMemHostAlloc", ctypes.byref(held), ctypes.c_size_t(large), 0),
        "cuModuleLoadData, and a first launch": lambda: (
            lambda: Programs(
                cuda, **({"threads": 2, "blocks": 2} if setting.stand_in else {})
            ).nothing(other)()
        ),
        "cuStreamCreate": lambda: lambda: Stream(cuda),
        "cuEventRecord, gated stream": lambda: lambda: event.record(gated),
        "cuEventSynchronize, other stream": passing,
        "cuStreamQuery, gated stream": lambda: gated.is_done,
        "launch, other stream": lambda: bench.programs.nothing(other),
        "launch and its end, other stream": lambda: (
            lambda: (
                bench.programs.nothing(other)(),
                other.finish(),
            )
        ),
        "cuStreamSynchronize, gated stream": now("cuStreamSynchronize", gated.handle),
    }


class _Part(NamedTuple):
    """A measurement.

    Attributes
    ----------
    title : str
        Its heading.
    function : callable
        Yields its records, in a process of its own.
    columns : tuple of str
        What is printed of each.
    most_s : float
        Seconds within which a record has to come.
    mps : bool
        Whether it runs under MPS.
    queues : str
        ``CUDA_DEVICE_MAX_CONNECTIONS``; empty for the driver's default.
    beside : callable, optional
        Runs in another process meanwhile.
    """

    title: str
    function: Callable[[Setting], Iterator[dict[str, Any]]]
    columns: tuple[str, ...] = ("p50", "p99", "max")
    most_s: float = 20.0
    mps: bool = False
    queues: str = ""
    beside: Callable[[Setting], Iterator[dict[str, Any]]] | None = None


_ALONE: Final = {
    "calls": _Part("host's time of a call", calls_of_host),
    "gpu": _Part("GPU's time of a kernel", on_the_gpu, ("p50", "max", "added")),
    "first blocks": _Part("seen by the host after", first_blocks),
    "reads": _Part("a read of a flag, of each block", reads_of_flag),
    "stops": _Part(
        "workers: all, and end after the flag",
        stops_of_workers,
        ("p50", "max", "all", "stopped"),
        30.0,
    ),
    "waits": _Part("call while a stream is at a gate", waits_behind, ("us", "waits")),
    "room": _Part("launches behind a closed gate", most_behind, ("most", "tried")),
    "streams": _Part("streams at a closed gate", streams_beside, ("others", "stand")),
    "processes": _Part("a process at a closed gate beside", launches_seen, beside=gates_held),
}
_ALSO_UNDER_MPS: Final = ("gpu", "first blocks", "waits", "room", "streams", "processes")
_QUEUES: Final = ("1", "32")
PARTS: Final[Mapping[str, _Part]] = {
    **_ALONE,
    **{
        f"streams, {queues} queues": _ALONE["streams"]._replace(
            title=f"streams at a gate, {queues} queues", queues=queues
        )
        for queues in _QUEUES
    },
    **{
        f"{name}, MPS": _ALONE[name]._replace(title=f"MPS: {_ALONE[name].title}", mps=True)
        for name in _ALSO_UNDER_MPS
    },
}


def step(setting: Setting) -> Iterator[str]:
    """Measure all of them, and yield the lines of a table; microseconds."""
    found: dict[str, list[dict[str, Any]]] = {}
    machine = Machine(setting)
    try:
        for name, part in PARTS.items():
            if setting.stand_in and (part.mps or part.queues):
                continue
            yield "".join([f"{part.title[:40]:40}", *(f"{one:>10}" for one in part.columns)])
            found[name] = []
            try:
                for record in _measured(setting, machine, part):
                    found[name].append(record)
                    setting.keep("costs", found)
                    yield _row(record, part.columns)
            except (ApartError, DovetailError) as error:
                found[name].append({"failed": str(error)})
                setting.keep("costs", found)
                yield f"  failed: {error}"[:80]
    finally:
        machine.close()


def _measured(setting: Setting, machine: Machine, part: _Part) -> Iterator[dict[str, Any]]:
    """Yield the records of a measurement."""
    environment = machine.environment(WAYS["MPS" if part.mps else "turns"])
    environment |= {"CUDA_DEVICE_MAX_CONNECTIONS": part.queues} if part.queues else {}

    def running(function: Callable[[Setting], Iterator[dict[str, Any]]]) -> Iterator[Any]:
        return apart(function, setting, within_s=part.most_s, environment=environment)

    if part.beside is None:
        yield from running(part.function)
        return
    beside = running(part.beside)
    next(beside)
    yield from running(part.function)
    (setting.out / _OPEN).touch()
    for _ in beside:
        pass
    (setting.out / _OPEN).unlink()


def _row(one: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """Return the line of a record."""
    what = f"  {one['what'][:38]:38}"
    if "failed" in one:
        return f"{what} {one['failed'][:39]}"
    return what + "".join(f"{_cell(one.get(name)):>10}" for name in columns)


def _cell(value: float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)
