"""Measure what the split gate asks for: run ``products.py`` as an MPS client at every share.

The program of the next share gets ready (it imports PyTorch, draws factors, computes references)
while that of this one has the GPU. Only one at a time has anything there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.live.splits import WHOLE, SmCount, SplitEvidence
from dovetail.instances.errors import DovetailError

PROGRAM: Final = Path(__file__).with_name("products.py")
COUNTER: Final = Path(__file__).with_name("sm_count.py")

_LIKELY: Final = (50, 10, 90, 100, 5, 95, 25)
CANDIDATES: Final = (*_LIKELY, *(share for share in range(5, WHOLE, 5) if share not in _LIKELY))
"""The shares that are tried, those first that others have seen to compute right on Hopper.

100 comes early: where the whole GPU computes wrong, it is not the share.
"""

EVERY_SHARE: Final = tuple(range(1, WHOLE + 1))

_PATIENCE_S: Final = 300.0
_COUNT_PATIENCE_S: Final = 60.0
_COUNTERS: Final = 4
"""Programs that count SMs at a time: they are small, and most of their time is CUDA's start."""


class GateError(DovetailError):
    """A share could not be measured; nothing is known of it."""


def _nothing(pid: int) -> None:
    """Do what has to be done for a process without MPS."""


class Measuring(NamedTuple):
    """Where shares are measured.

    Attributes
    ----------
    gpu_model, driver : str
        What the evidence holds for, beside the version of cuBLAS, which the program tells.
    sms : int or None
        SMs of the whole GPU, where that is known.
    python : str
        A Python with the PyTorch that jobs use.
    environment : callable
        From a share to the environment of an MPS client with that cap.
    terminate : callable
        Ends the GPU work of a process, as has to be done before it is killed.
    """

    gpu_model: str
    driver: str
    sms: int | None
    python: str
    environment: Callable[[int], Mapping[str, str]]
    terminate: Callable[[int], object] = _nothing


def measure_shares(
    measuring: Measuring, shares: Sequence[int]
) -> Generator[SplitEvidence, None, None]:
    """Measure shares one after the other; each result can be kept as soon as it is there.

    Raises
    ------
    GateError
        When the program cannot run or says what cannot be.
    """
    command = [measuring.python, "-I", str(PROGRAM), "cuda", "wait"]
    with ExitStack() as running:
        following: _Run | None = None
        for place, share in enumerate(shares):
            run = following or _Run.begun(command, measuring, share, running)
            if place + 1 < len(shares):
                following = _Run.begun(command, measuring, shares[place + 1], running)
            yield _evidence(measuring, share, run.told(_PATIENCE_S))


def count_sms(measuring: Measuring, shares: Sequence[int]) -> Generator[SmCount, None, None]:
    """Count the SMs that a client sees at each share; nothing is computed there.

    Raises
    ------
    GateError
        When the program cannot run or says what cannot be.
    """
    command = [sys.executable, "-I", "-S", str(COUNTER)]

    def counted(share: int) -> SmCount:
        with ExitStack() as running:
            run = _Run.begun(command, measuring, share, running)
            return _count(measuring, share, run.told(_COUNT_PATIENCE_S))

    with ThreadPoolExecutor(_COUNTERS) as counters:
        yield from counters.map(counted, shares)


class _Run(NamedTuple):
    """A program at a share; it has nothing on the GPU before it is asked."""

    program: str
    process: subprocess.Popen[str]

    @classmethod
    def begun(
        cls, command: Sequence[str], measuring: Measuring, share: int, running: ExitStack
    ) -> _Run:
        """Begin one; it is gone when ``running`` ends."""
        environment = {**os.environ, **measuring.environment(share)}
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C must not hit it while it computes under MPS
            )
        except OSError as error:
            raise GateError(f"{command[0]} cannot be run: {error.strerror}") from None
        running.callback(_end, process, measuring.terminate)
        return cls(command[0], process)

    def told(self, within_s: float) -> dict[str, object]:
        """Let it use the GPU, and return what it prints."""
        try:
            out, trouble = self.process.communicate("go\n", within_s)
        except subprocess.TimeoutExpired:
            raise GateError(f"{self.program} did not end within {within_s:.0f} s") from None
        if self.process.returncode:
            status = f"status {self.process.returncode}"
            last = (trouble.strip().splitlines() or [status])[-1]
            raise GateError(f"{self.program} could not compute: {last}")
        try:
            told = json.loads(out)
        except ValueError:
            raise GateError(f"{self.program} printed what is no JSON: {out[:60]!r}") from None
        if not isinstance(told, dict):
            raise GateError(f"{self.program} printed no mapping: {out[:60]!r}")
        return told


def _end(process: subprocess.Popen[str], terminate: Callable[[int], object]) -> None:
    """End a program that has not been asked, or does not answer."""
    if process.poll() is None:
        terminate(process.pid)
        process.kill()
    process.communicate()


def _check_mps(told: Mapping[str, object]) -> None:
    if told.get("mps") is not True:
        raise GateError("the program did not reach MPS: what it says, says nothing of a share")


def _check_cap(measuring: Measuring, share: int, sms: object) -> None:
    if measuring.sms is not None and share < WHOLE and sms == measuring.sms:
        raise GateError(f"at {share} % the program saw all {sms} SMs: the cap is not kept")


def _count(measuring: Measuring, share: int, told: Mapping[str, object]) -> SmCount:
    _check_mps(told)
    return SmCount.from_data(
        {
            "gpu_model": measuring.gpu_model,
            "driver": measuring.driver,
            "share": share,
            "sms": told.get("sms"),
            "date": _now(),
        },
        COUNTER.name,
    )


def _evidence(measuring: Measuring, share: int, told: Mapping[str, object]) -> SplitEvidence:
    if told.get("cublas") is None or told.get("sms") is None:
        raise GateError("the program saw no GPU, or its PyTorch uses no cuBLAS")
    _check_mps(told)
    _check_cap(measuring, share, told["sms"])
    products = told.get("products")
    fields = ("kind", "dtype", "m", "n", "k", "error")
    return SplitEvidence.from_data(
        {
            "gpu_model": measuring.gpu_model,
            "driver": measuring.driver,
            "cublas": told["cublas"],
            "share": share,
            "sms": told["sms"],
            "products": [
                dict(zip(fields, product, strict=True))
                for product in (products if isinstance(products, list) else [])
            ],
            "date": _now(),
        },
        PROGRAM.name,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
