"""One workload from its building to its end, told in events."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import IO, NoReturn

from .commands import QUIT, RUN, Commands
from .devices import open_device
from .loading import load
from .loops import Tell, as_requests_arrive, warm_up, without_pause

LACKS_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
)
"""What PyTorch, CUDA, cuBLAS and cuDNN say when memory is short; most of it in plain errors."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one workload as ``worker.py`` says, and end the process.

    After a failure it ends at once: a device in error makes orderly clearing up fail, too.
    """
    parser = argparse.ArgumentParser(prog="worker.py")
    parser.add_argument("workload", metavar="NAME_OR_FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--socket", metavar="PATH")
    options = parser.parse_args(arguments)
    tell = partial(_tell, _events(options.socket))
    try:
        serve(options, tell)
    except ConnectionError:  # nobody listens any more
        os._exit(1)
    except (Exception, SystemExit) as error:
        tell("failed", why=why(error), told=told(error))
        os._exit(1)
    sys.exit(0)


def serve(options: argparse.Namespace, tell: Tell) -> None:
    """Build the workload, tell that it is ready, and do as commands say until one is ``quit``."""
    workload = load(options.workload, options.size)
    commands = Commands()
    device = open_device(options.device)
    try:
        step = workload.prepare(options.device, options.size, options.seed)
        chunk = warm_up(step, device)
        tell(
            "ready",
            workload=options.workload,
            kind=workload.kind,
            family=workload.family,
            batch_size=workload.batch[options.size],
            torch=getattr(sys.modules.get("torch"), "__version__", None),
            memory_mib=device.memory_mib(),
            pid=os.getpid(),
            **device.about(),
        )
        while (command := commands.next()) != QUIT:
            if command == RUN and workload.gaps is not None:
                gaps = workload.gaps(random.Random(options.seed), options.size)
                as_requests_arrive(step, device, gaps, commands, tell)
            elif command == RUN:
                without_pause(step, device, chunk, commands, tell)
            else:
                tell("stopped", memory_mib=device.memory_mib())
    finally:  # also after a failure: MPS does not survive every client that ends at work
        with contextlib.suppress(RuntimeError):
            device.idle()


def why(error: BaseException) -> str:
    """Return what kind of failure an error is."""
    said = str(error)
    short = isinstance(error, MemoryError) or any(words in said for words in LACKS_MEMORY)
    return "out-of-memory" if short else "error"


def told(error: BaseException) -> str:
    """Return an error in one line: CUDA's errors go on with advice to programmers."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _events(path: str | None) -> IO[str]:
    """Return where events go: standard output, for them alone, or a socket.

    From a socket commands are read, too, as from standard input.
    """
    if path is None:
        events = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        return events
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        os.dup2(connection.fileno(), 0)
    return os.fdopen(os.dup(0), "w", encoding="utf-8")


def _tell(events: IO[str], event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), file=events, flush=True)
