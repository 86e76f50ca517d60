"""What every step has: where it runs, where its results go, and processes of its own."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeVar

from blocks.cuda import Cuda
from blocks.prepared import Prepared, read

KERNELS: Final = "kernels.json.gz"
_PARENT_DIED: Final = 1
_ENDS_S: Final = 5.0
_End = tuple[str, str]
T = TypeVar("T")


class ApartError(Exception):
    """A process of its own failed, crashed, or did not answer in time."""


@dataclass(frozen=True)
class Setting:
    """Where a step runs.

    Attributes
    ----------
    out : Path
        The folder of results.
    stand_in : bool
        Whether the driver is a stand-in; everything is small and short then.
    """

    out: Path
    stand_in: bool

    def cuda(self) -> Cuda:
        """Return this process's GPU."""
        if self.stand_in:
            from blocks import stand_in

            stand_in.install()
        return Cuda()

    def kernels(self) -> list[Prepared]:
        """Return the prepared kernels; a few small ones for a stand-in."""
        found = read(self.out / KERNELS)
        if not self.stand_in:
            return found
        small = [one for one in found if not one.arrays and one.shape.blocks <= 12 and one.forms]
        return small[:2]

    def of(self, full: T, short: T) -> T:
        """Return a number of a GPU, or of a stand-in."""
        return short if self.stand_in else full

    def keep(self, step: str, results: object) -> None:
        """Write the results of a step so far, with what identifies the machine, to its file."""
        path = self.out / f"{step}.json"
        data = {"step": step, **self._machine(), "results": results}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1, allow_nan=False), "utf-8")
        part.replace(path)

    def mark(self) -> str:
        """Return the line that says what results come from."""
        one = self._machine()
        made_up = "STAND-IN, NO GPU: " if self.stand_in else ""
        return f"{made_up}{one['gpu']}, driver {one['driver']}, {one['date']}"

    def _machine(self) -> dict[str, object]:
        path = self.out / "machine.json"
        if not path.exists():
            found = next(apart(_about, self, within_s=60.0))
            path.write_text(json.dumps(found), "utf-8")
        machine: dict[str, object] = json.loads(path.read_text("utf-8"))
        return machine


def _about(setting: Setting) -> Iterator[dict[str, object]]:
    """Yield what identifies the GPU, its driver, and the day."""
    driver = "none"
    if not setting.stand_in:
        from dovetail.executor.gpus.nvml import Nvml

        with Nvml() as nvml:
            driver = nvml.driver()
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    yield {"stand_in": setting.stand_in, "driver": driver, "date": date, **setting.cuda().about()}


def apart(
    function: Callable[..., Iterator[T]],
    *arguments: object,
    within_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[T]:
    """Yield what a generator function yields in a process of its own.

    Parameters
    ----------
    function : callable
        On the top level of a module.
    *arguments
        Its arguments.
    within_s : float
        The limit for each of its results.
    environment : mapping of str to str, optional
        Variables to add, before the driver is loaded.

    Raises
    ------
    ApartError
        When it fails, crashes, or does not yield in time; what came before was yielded.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    told = (its, dict(environment or {}), function, arguments)
    process = context.Process(target=_run, args=told, daemon=True)
    process.start()
    its.close()
    try:
        while True:
            if not mine.poll(within_s):
                raise ApartError(f"hung: nothing within {within_s:g} s")
            try:
                kind, value = mine.recv()
            except EOFError:
                process.join(_ENDS_S)
                raise ApartError(f"crashed (exit {process.exitcode})") from None
            if kind == "end":
                return
            if kind == "failed":
                raise ApartError(value)
            yield value
    finally:
        process.kill()
        process.join(_ENDS_S)


def _run(
    to: Connection[Any, Any],
    environment: dict[str, str],
    function: Callable[..., Iterator[Any]],
    arguments: tuple[object, ...],
) -> None:
    end_with_parent()
    os.environ |= environment
    try:
        for value in function(*arguments):
            to.send(("value", value))
        to.send(("end", ""))
    except Exception as error:
        traceback.print_exc()
        to.send(("failed", f"{type(error).__name__}: {error}"))
    # The end of the interpreter would wait for threads in calls of a driver that hangs.
    os._exit(0)


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however it ends."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)
