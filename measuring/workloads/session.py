"""The life of a workload process, from building the workload to the end."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, NoReturn

from .commands import PROFILE, QUIT, RUN, Commands, WorkerCommand
from .devices import open_device
from .loading import LoadedWorkload, load
from .loops import Report, as_requests_arrive, gaps_at, warm_up, without_pause
from .profiling import profile

LACKS_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
)
"""Messages of PyTorch, CUDA, cuBLAS and cuDNN when memory is short."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one workload as described in ``worker.py``, and end the process.

    After a failure it exits immediately, as an orderly end fails on a device in error.
    """
    parser = argparse.ArgumentParser(prog="worker.py")
    parser.add_argument("workload", metavar="NAME_OR_FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--socket", metavar="PATH")
    options = parser.parse_args(arguments)
    report = partial(_report, _events(options.socket))
    try:
        serve(options, report)
    except ConnectionError:  # the campaign has ended
        os._exit(1)
    except (Exception, SystemExit) as error:
        report("failed", why=why(error), text=text(error))
        os._exit(1)
    sys.exit(0)


def serve(options: argparse.Namespace, report: Report) -> None:
    """Build the workload, report that it is ready, and obey commands until ``quit``."""
    workload = load(options.workload, options.size)
    commands = Commands()
    device = open_device(options.device)
    try:
        step = workload.prepare(options.device, options.size, options.seed)
        chunk = warm_up(step, device)
        report(
            "ready",
            workload=options.workload,
            kind=workload.kind,
            family=workload.family,
            batch_size=workload.batch[options.size],
            chunk=chunk if workload.gaps is None else None,
            torch=getattr(sys.modules.get("torch"), "__version__", None),
            memory_mib=device.memory_mib(),
            pid=os.getpid(),
            **device.about(),
        )
        while (command := commands.next()).do != QUIT:
            if command.do == PROFILE:
                report("profiled", **_profiled(partial(profile, step, device, chunk), command))
            elif command.do == RUN:
                gaps = _gaps(workload, command, options)
                if gaps is None:
                    without_pause(step, device, chunk, commands, report)
                else:
                    as_requests_arrive(step, device, gaps, commands, report)
            else:
                report("stopped", memory_mib=device.memory_mib())
    finally:  # also after a failure: MPS does not survive every client that ends at work
        with contextlib.suppress(RuntimeError):
            device.idle()


def _gaps(
    workload: LoadedWorkload, command: WorkerCommand, options: argparse.Namespace
) -> Iterator[float] | None:
    """Return the gaps between requests, the same in every run; None if there are no requests."""
    draw = random.Random(options.seed)
    if command.requests_s:
        return gaps_at(draw, command)
    return None if workload.gaps is None else workload.gaps(draw, options.size)


def _profiled(run: Callable[[str], dict[str, object]], command: WorkerCommand) -> dict[str, object]:
    """Profile, and return why not after a failure: the workload itself has been measured."""
    try:
        return run(command.trace)
    except Exception as error:
        return {"text": text(error)}


def why(error: BaseException) -> str:
    """Return the kind of a failure."""
    message = str(error)
    short = isinstance(error, MemoryError) or any(words in message for words in LACKS_MEMORY)
    return "out-of-memory" if short else "error"


def text(error: BaseException) -> str:
    """Return an error in one line, without the advice in CUDA's errors."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _events(path: str | None) -> IO[str]:
    """Return the stream of events: standard output, reserved for events from now on, or a socket.

    Commands are read from standard input, which the socket replaces.
    """
    if path is None:
        events = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        return events
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        os.dup2(connection.fileno(), 0)
    return os.fdopen(os.dup(0), "w", encoding="utf-8")


def _report(events: IO[str], event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), file=events, flush=True)
