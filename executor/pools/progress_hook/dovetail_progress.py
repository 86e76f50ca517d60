"""Reports to Dovetail how many iterations a job has done, and how long its requests took.

It can be imported in every Python (3.7 or later) that Dovetail starts, whether or not Dovetail is
installed there. Without Dovetail, or if the file cannot be written, the calls do nothing.

::

    from dovetail_progress import step
    for batch in batches:
        train(batch)
        step()

If a program calls `step` or `report`, its calls are counted, otherwise the steps of PyTorch's
optimizers. The file is rewritten at most ten times a second. It has 40 bytes, little-endian: the
magic ``DTPROG1`` and a newline, then as doubles the iterations done, the time of the last one in
seconds of CLOCK_BOOTTIME, and the total number of iterations (NaN if unknown), then a CRC-32 of
these 32 bytes and four zero bytes. A reader detects a partial write by a wrong CRC.

If a program calls `latency`, a histogram follows: the magic ``DTLATE1`` and a newline, 1024
counts of 64 bits, then a CRC-32 of these bytes and four zero bytes. Count k is the number of
latencies from 2^(k/32) to 2^((k+1)/32) microseconds, so a bucket is 2.2 % wide; the first and last
buckets also have all shorter and longer latencies. DDSketch uses such logarithmic buckets (Masson,
Rim and Lee, VLDB 2019).
"""

from __future__ import annotations

import atexit
import fcntl
import math
import os
import struct
import sys
import time
import zlib

TYPE_CHECKING = False  # instead of typing's, as importing typing would double the import time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Count = tuple[float, float, float | None]
    """Iterations done, the time of the last one, and the total number or None."""

VARIABLE = "DOVETAIL_PROGRESS"
"""The environment variable with the path of the file."""

INTERVAL_S = 0.1
"""The least number of seconds between two writes of the file."""

_MAGIC = b"DTPROG1\n"
_MOST = 1e15
_BODY = struct.Struct("<8sddd")
_CHECK = struct.Struct("<I4x")
SIZE = _BODY.size + _CHECK.size

BUCKETS = 1024
_BUCKETS_PER_DOUBLING = 32
_LATENCY_MAGIC = b"DTLATE1\n"
_LATENCIES = struct.Struct(f"<8s{BUCKETS}Q")
LATENCIES_SIZE = _LATENCIES.size + _CHECK.size
"""The size of the histogram that follows the first ``SIZE`` bytes."""


def encode(count: Count) -> bytes:
    """Return the content of the file."""
    iterations, at_s, total = count
    body = _BODY.pack(_MAGIC, iterations, at_s, math.nan if total is None else total)
    return body + _CHECK.pack(zlib.crc32(body))


def decode(data: bytes) -> Count | None:
    """Return the counts in the file, or None if they are incomplete or impossible."""
    body, check = data[: _BODY.size], data[_BODY.size :]
    if len(data) != SIZE or check != _CHECK.pack(zlib.crc32(body)):
        return None
    magic, iterations, at_s, total = _BODY.unpack(body)
    if magic != _MAGIC or not (0 <= iterations <= _MOST and 0 <= at_s <= _MOST):
        return None
    return iterations, at_s, total if 0 < total <= _MOST else None


def encode_latencies(counts: Sequence[int]) -> bytes:
    """Return the histogram in the format of the file."""
    body = _LATENCIES.pack(_LATENCY_MAGIC, *counts)
    return body + _CHECK.pack(zlib.crc32(body))


def decode_latencies(data: bytes) -> Sequence[int] | None:
    """Return the counts of a histogram, empty if there is none, or None if it is incomplete."""
    if not data.startswith(_LATENCY_MAGIC):
        return ()
    body, check = data[: _LATENCIES.size], data[_LATENCIES.size :]
    if len(data) != LATENCIES_SIZE or check != _CHECK.pack(zlib.crc32(body)):
        return None
    return _LATENCIES.unpack(body)[1:]


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that a latency belongs to."""
    bucket = int(_BUCKETS_PER_DOUBLING * math.log2(max(seconds * 1e6, 1.0)))
    return min(bucket, BUCKETS - 1)


def latency_at(bucket: float) -> float:
    """Return the latency in seconds at which a bucket begins, or at a point within it."""
    return math.pow(2.0, bucket / _BUCKETS_PER_DOUBLING) * 1e-6


class Counter:
    """Counts iterations and latencies of this process and keeps the file up to date.

    If several processes have the same file, one at a time writes it: the first, and when that has
    ended another, which continues its counts.

    Parameters
    ----------
    path : str
        The file; created if it is missing. For a rank, it is a page of memory of exactly the size
        described above.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._done = 0.0
        self._total: float | None = None
        self._next_s = 0.0
        self._fd = -1
        self._writer = 0
        self._before = 0.0
        self._latencies: list[int] = []
        atexit.register(self.flush)

    def add(self, iterations: float) -> None:
        """Count iterations that were just done."""
        self._done += iterations
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            self._write(now_s)

    def set(self, iterations: float, total: float | None) -> None:
        """Set the count to one that the program keeps itself."""
        self._total = total
        self.add(iterations - self._done)

    def add_latency(self, seconds: float) -> None:
        """Count a latency; it is written with the next iteration."""
        if not self._latencies:
            self._latencies = [0] * BUCKETS
        if 0 <= seconds <= _MOST:
            self._latencies[bucket_of(seconds)] += 1

    def flush(self) -> None:
        """Write iterations that have not been written yet."""
        if self._done:
            self._write(time.clock_gettime(time.CLOCK_BOOTTIME))

    def _write(self, at_s: float) -> None:
        try:
            if self._writer == os.getpid() or self._become_writer():
                data = encode((self._before + self._done, at_s, self._total))
                if self._latencies:
                    data += encode_latencies(self._latencies)
                os.pwrite(self._fd, data, 0)
        except OSError:
            # For example a full disk: the job matters more than its progress.
            pass

    def _become_writer(self) -> bool:
        """Take the file's lock, which is held until the process ends and not inherited by forks."""
        if self._fd < 0:
            # Dovetail's file is a link in /proc to a page of memory.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        data = os.pread(self._fd, SIZE + LATENCIES_SIZE, 0)
        found = decode(data[:SIZE])
        self._before = found[0] - self._done if found else 0.0
        self._latencies = list(decode_latencies(data[SIZE:]) or self._latencies)
        self._writer = os.getpid()
        return True


class _CountedProcess:
    """The counter of this process, if it was started by Dovetail, and its source."""

    counter = Counter(os.environ[VARIABLE]) if VARIABLE in os.environ else None
    by_hand = False


def step(iterations: float = 1) -> None:
    """Count iterations that were just done."""
    counter = _by_hand()
    if counter is not None:
        counter.add(iterations)


def report(iterations: float, total: float | None = None) -> None:
    """Report the number of iterations done so far, and the total number."""
    counter = _by_hand()
    if counter is not None:
        counter.set(iterations, total)


def latency(seconds: float) -> None:
    """Report how many seconds a request took, including waiting; it is sent with the next `step`.

    Negative and infinite values are ignored.
    """
    if _CountedProcess.counter is not None:
        _CountedProcess.counter.add_latency(seconds)


def _by_hand() -> Counter | None:
    if not _CountedProcess.by_hand and _CountedProcess.counter is not None:
        _CountedProcess.counter.set(0.0, None)
    _CountedProcess.by_hand = True
    return _CountedProcess.counter


def count_optimizer_steps() -> None:
    """Count the steps of PyTorch's optimizers once the program imports PyTorch."""
    if _CountedProcess.counter is not None:
        sys.meta_path.insert(0, _AfterImport("torch.optim.optimizer", _register))


def _register(optimizer_module: ModuleType) -> None:
    """Register with a newly imported ``torch.optim.optimizer``; impossible before PyTorch 2.0."""
    register = getattr(optimizer_module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_after_step)


def _after_step(*_: object) -> None:
    # If torch.compile traced this, it would recompile at every step, as the count changes.
    if _compiling() or _CountedProcess.by_hand or _CountedProcess.counter is None:
        return
    _CountedProcess.counter.add(1)


def _compiling() -> bool:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    ask = getattr(compiler, "is_compiling", None)
    return bool(ask()) if ask is not None else False


class _AfterImport:
    """A module finder for one module, which calls a function once that has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the awaited module, with a loader that then calls ``then``."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def run_and_react(module: ModuleType) -> None:
                run(module)
                self._then(module)

            loader.exec_module = run_and_react
        return spec
