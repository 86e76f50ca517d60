"""Whether forms of kernels leave the same bits as the whole kernel.

Whole launches are compared with slices of several sizes, with workers (1 to 8 an SM, in chunks of 1
to 16 blocks), and with workers that a flag stops at random moments until all blocks are done.
"""

from __future__ import annotations

import random
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from blocks.cuda import Cuda, CudaError, Event, HungError, Launch, Shape, Stream, spin
from blocks.prepared import Prepared
from blocks.setting import ApartError, Setting, apart
from dovetail.isolation.proven import PROVEN
from dovetail.isolation.transform import SLICES, STORAGE_BYTES, WORKERS, own_dynamic_bytes

AN_SM: Final = (1, 2, 4, 8)
CHUNKS: Final = (1, 4, 16)
_PARTS: Final = (0.02, 0.05, 0.2, 0.5)
_THREADS_AN_SM: Final = 2048
_MOST_STOPS: Final = 12
_LONGEST_S: Final = 0.02
"""Stopped runs of a kernel that is longer are few."""

KINDS: Final = ("slices", "workers", "stopped")
_KERNEL_S: Final = 60.0


def step(setting: Setting) -> Iterator[str]:
    """Try all kernels, and yield the lines of a table.

    One process tries many; after an error another goes on with the next kernel.
    """
    kernels = setting.kernels()
    records: list[dict[str, Any]] = []
    yield HEADING
    while len(records) < len(kernels):
        at = len(records)
        try:
            for record in apart(_tried, setting, at, within_s=_KERNEL_S):
                records.append(record)
                setting.keep("right", records)
                yield row(record)
        except ApartError as error:
            if len(records) < len(kernels):
                records.append(_described(kernels[len(records)]) | {"failed": str(error)})
                setting.keep("right", records)
                yield row(records[-1])
    yield from summary(records)
    if not setting.stand_in:
        architectures = {one["architecture"] for one in records if "architecture" in one}
        for architecture in architectures:
            for line in entries(records, architecture):
                yield from textwrap.wrap(line, 80, subsequent_indent="    ")


def _tried(setting: Setting, at: int) -> Iterator[dict[str, Any]]:
    """Yield the records of the kernels from one on, up to the first error of the GPU."""
    cuda = setting.cuda()
    for kernel in setting.kernels()[at:]:
        record = tried(cuda, kernel, seed=at)
        yield record
        if record["is_over"]:
            return


def tried(cuda: Cuda, kernel: Prepared, seed: int) -> dict[str, Any]:
    """Return what a kernel left in each form; an error of the GPU is named by the form.

    After an error the process has no use of the GPU any more: ``is_over`` is true then.
    """
    found = _described(kernel) | {"architecture": cuda.architecture}
    doing = "begin"
    try:
        one = Loaded(cuda, kernel, seed)
        doing = "whole"
        found |= one.whole()
        for doing, name, try_it in one.forms():
            found.setdefault(doing.partition(" ")[0], {})[name] = try_it()
        one.close()
    except (CudaError, HungError) as error:
        found |= {"failed": f"{doing}: {error}", "is_over": True}
    return found


def _described(kernel: Prepared) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "blocks": kernel.shape.blocks,
        "features": kernel.features,
        "refused": kernel.refused,
        "is_over": False,
    }


class Loaded:
    """A loaded kernel, its memory as it is at the begin, and memory for a launch."""

    def __init__(self, cuda: Cuda, kernel: Prepared, seed: int) -> None:
        self._cuda, self._kernel, self._rng = cuda, kernel, random.Random(seed)
        self.shape: Final = kernel.shape
        self._module = cuda.load(kernel.text)
        memory = kernel.memory()
        self._size = len(memory)
        self._first, self._now = cuda.allocate(self._size), cuda.allocate(self._size)
        self._counter = cuda.allocate(8)
        self.flag: Final = self._counter + 4
        cuda.put(self._first, memory)
        self.stream: Final = Stream(cuda)
        self._beside = Stream(cuda)
        self._begin, self._end = Event(cuda), Event(cuda)
        self._left, self._whole_us = b"", 0.0
        self.launch_whole: Final = self._launch("", self.shape, ())

    def close(self) -> None:
        """Free what it has."""
        for at in (self._first, self._now, self._counter):
            self._cuda.free(at)
        self._cuda.unload(self._module)

    def whole(self) -> dict[str, Any]:
        """Launch it as it is, three times, and keep what it leaves."""
        launch = self.launch_whole
        self._left, _ = self.timed(launch)
        again = [self.timed(launch) for _ in range(2)]
        self._whole_us = min(us for _, us in again)
        varies = any(left != self._left for left, _ in again)
        return {"whole_us": round(self._whole_us, 2), "varies": varies}

    def forms(self) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
        """Yield what is done, the name of the result, and a function that does it."""
        blocks = self.shape.blocks
        if "slices" in self._kernel.forms:
            for size in sorted({-int(-part * blocks // 1) for part in _PARTS} | {1}):
                if size < blocks and blocks / size <= 256:
                    yield f"slices of {size}", str(size), lambda size=size: self._slices(size)
        if "workers" in self._kernel.forms:
            for count in self._worker_counts():
                for chunk in CHUNKS:
                    name = f"{count}x{chunk}"
                    launch = self.workers(count, chunk, self.flag)
                    yield f"workers {name}", name, lambda run=launch: self._compared(run)
                    yield f"stopped {name}", name, lambda run=launch: self._stopped(run)

    def _worker_counts(self) -> Sequence[int]:
        blocks, sms = self.shape.blocks, self._cuda.sms
        x, y, z = self.shape.block
        if blocks <= sms:
            return (1, 2, 3)
        each = [one for one in AN_SM if one == 1 or one * x * y * z <= _THREADS_AN_SM]
        return sorted({min(one * sms, blocks) for one in each})

    def _slices(self, size: int) -> dict[str, Any]:
        shape = self.shape
        launches = [
            self._launch(
                SLICES,
                replace(shape, grid=(min(size, shape.blocks - first), 1, 1)),
                (*shape.grid, first),
            )
            for first in range(0, shape.blocks, size)
        ]
        return self._compared(lambda: [launch() for launch in launches])

    def workers(self, count: int, chunk: int, flag: int) -> Launch:
        """Return a launch of workers, who begin where the counter says and look at a flag."""
        shape = self.shape
        own = own_dynamic_bytes(shape.shared)
        return self._launch(
            WORKERS,
            Shape((count, 1, 1), shape.block, own + STORAGE_BYTES),
            (*shape.grid, self._counter, flag, own, chunk),
        )

    def _launch(self, ending: str, shape: Shape, more: Sequence[int]) -> Launch:
        name = self._kernel.entry + ending
        found = self._cuda.kernel(self._module, name, shape.shared)
        arguments = [*self._kernel.arguments_at(self._now), *more]
        return self._cuda.launch(found, shape, arguments, self.stream)

    def timed(self, run: Callable[[], object]) -> tuple[bytes, float]:
        """Run something on fresh memory; return what it leaves, and microseconds."""
        self.freshen()
        self._begin.record(self.stream)
        run()
        self._end.record(self.stream)
        self.stream.finish()
        return self._cuda.get(self._now, self._size), self._end.since_us(self._begin)

    def _compared(self, run: Callable[[], object]) -> dict[str, Any]:
        left, us = self.timed(run)
        return {"right": left == self._left, "us": round(us, 2)}

    def _stopped(self, run: Callable[[], object]) -> dict[str, Any]:
        """Stop workers at random moments, and let others go on where they stopped."""
        self.freshen()
        most = 2 if self._whole_us > 1e6 * _LONGEST_S else _MOST_STOPS
        blocks, done, midway, stops = self.shape.blocks, 0, 0, 0
        while done < blocks:
            self.stream.write(self.flag, 0)
            run()
            if stops < most:
                spin(1e-6 * self._rng.uniform(5, 10 + 1.5 * self._whole_us))
                self._beside.write(self.flag, 1)
                self._beside.finish()
                stops += 1
            self.stream.finish()
            before, done = done, self.done()
            midway += before < done < blocks
        left = self._cuda.get(self._now, self._size)
        return {"right": left == self._left, "midway": midway}

    def done(self) -> int:
        """Return how many blocks workers have begun, more than all if they found no more."""
        return int.from_bytes(self._cuda.get(self._counter, 4), "little")

    def freshen(self) -> None:
        """Let the memory, the counter and the flag be as at the begin."""
        self._cuda.copy(self._now, self._first, self._size, self.stream)
        self.stream.write(self._counter, 0)
        self.stream.write(self.flag, 0)
        self.stream.finish()


# What was found.


HEADING: Final = f"{'kernel':30} {'whole us':>9} {'slices':>10} {'workers':>10} {'stopped':>15}"


def row(one: Mapping[str, Any]) -> str:
    """Return the row of a kernel: by form, runs that were right, and the time of the fastest.

    Behind the runs that were stopped is how often workers were stopped before their last block.
    """
    cells = [_cell(one.get(kind, {}), one.get("whole_us", 0.0)) for kind in KINDS]
    midway = sum(run["midway"] for run in _runs(one, "stopped"))
    whole = f"{one['whole_us']:9.1f}" if "whole_us" in one else f"{'-':>9}"
    stopped = f"{cells[2]} ({midway})"
    remarks = [one["failed"]] if "failed" in one else []
    remarks += ["varies by itself"] if one.get("varies") else []
    text = f"{one['kernel'][:30]:30} {whole} {cells[0]:>10} {cells[1]:>10} {stopped:>15}"
    return "\n".join([text, *(f"    {remark[:76]}" for remark in remarks)])


def summary(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many runs were wrong, and how many kernels failed or lack a form."""
    runs = [run for one in records for kind in KINDS for run in _runs(one, kind)]
    wrong = sum(not run["right"] for run in runs)
    failed = sum("failed" in one for one in records)
    lacking = sum(bool(one["refused"]) for one in records)
    yield f"{wrong} of {len(runs)} runs wrong; {failed} of {len(records)} kernels failed"
    yield f"{lacking} kernels lack a form (why: right.json)"


def entries(records: Sequence[Mapping[str, Any]], architecture: int) -> Iterator[str]:
    """Yield what `PROVEN` in ``isolation/proven.py`` may become, and why some features may not.

    A feature counts if a kernel that has it was right in all runs of a form, and no kernel that has
    it was wrong; kernels that vary by themselves say nothing.
    """
    for form in ("slices", "workers"):
        kinds = ("slices",) if form == "slices" else ("workers", "stopped")
        right: set[str] = set()
        wrong: dict[str, set[str]] = {}
        for one in records:
            runs = [run for kind in kinds for run in _runs(one, kind)]
            failed = one.get("failed", "").startswith(kinds)
            if failed or not all(run["right"] for run in runs):
                if not one.get("varies"):
                    wrong[one["kernel"]] = set(one["features"])
            elif runs and not one.get("varies") and "failed" not in one:
                right |= set(one["features"])
        doubtful = set().union(*wrong.values()) if wrong else set()
        known = PROVEN.get((architecture, form), frozenset())  # type: ignore[call-overload]
        made = sorted((right | known) - doubtful)
        listed = ", ".join(f'"{name}"' for name in made)
        yield (
            f'({architecture}, "{form}"): frozenset({{{listed}}}),'
            if right
            else (f"({architecture}, {form}): nothing was right")
        )
        for kernel, features in wrong.items():
            yield f"  left out, since {kernel} was wrong: {', '.join(sorted(features)) or 'all'}"


def _runs(one: Mapping[str, Any], kind: str) -> Iterable[Mapping[str, Any]]:
    return one.get(kind, {}).values()


def _cell(runs: Mapping[str, Mapping[str, Any]], whole_us: float) -> str:
    if not runs:
        return "-"
    right = f"{sum(run['right'] for run in runs.values())}/{len(runs)}"
    times = [run["us"] for run in runs.values() if "us" in run]
    if not times or not whole_us:
        return right
    return f"{right} {min(times) / whole_us:.2f}x"


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum, rounded to 0.01."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "p50": round(statistics.median(ordered), 2),
        "p99": round(p99, 2),
        "max": round(ordered[-1], 2),
    }
