"""Measurements for the split gate: ``products.py`` as an MPS client at every share.

Each run is a submission to a pool. While the program of one share uses the GPU, the next one
prepares (imports PyTorch, draws factors, computes references) and waits for a lock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.gpus.splits import WHOLE, SmCount, SplitEvidence
from dovetail.executor.jobs.specs import Seat
from dovetail.executor.pools.runs.submissions import PoolSubmissions, Submission
from dovetail.executor.pools.share_gate import TriedShare
from dovetail.instances.errors import DovetailError

PROGRAM: Final = Path(__file__).with_name("workloads") / "products.py"

_LIKELY: Final = (50, 10, 90, 100, 5, 95, 25)
CANDIDATES: Final = (*_LIKELY, *(share for share in range(5, WHOLE, 5) if share not in _LIKELY))
"""The shares that are tried, beginning with those reported to compute correctly on Hopper.

100 comes early: if the whole GPU computes incorrectly, the share is not the cause.
"""

EVERY_SHARE: Final = tuple(range(1, WHOLE + 1))

_PATIENCE_S: Final = 300.0
_COUNT_PATIENCE_S: Final = 60.0
_AHEAD: Final = 2
"""Programs that run at once to compare products: one uses the GPU, the other prepares."""

_COUNTERS: Final = 4
"""Programs that run at once to count SMs; they mostly wait for CUDA to start."""


class ProductsProgram:
    """Compares matrix products under a share, as a run of the live service (a ``ShareProgram``)."""

    patience_s = _PATIENCE_S

    def command(self, python: str) -> Sequence[str]:
        """Return program and arguments; the Python has the jobs' PyTorch."""
        return (python, "-I", str(PROGRAM), "cuda")

    def evidence(self, tried: TriedShare, lines: Sequence[str]) -> SplitEvidence:
        """Return the products that the program has compared.

        Raises
        ------
        GateError
            If its last line is something else, or it ran without MPS or cap.
        """
        return _evidence(tried, _read(lines, PROGRAM.name))


class GateError(DovetailError):
    """A share could not be measured."""


class Probe(NamedTuple):
    """A GPU on which shares are measured, and how.

    Attributes
    ----------
    gpu_model, driver : str
        Conditions of the measurement; the program reports the version of cuBLAS.
    sms : int or None
        Number of SMs of the whole GPU, if known.
    python : str
        A Python with the jobs' PyTorch.
    submissions : PoolSubmissions
        Starts programs on the GPU's pool, under MPS.
    gpu : str
        The GPU's id in the pool.
    """

    gpu_model: str
    driver: str
    sms: int | None
    python: str
    submissions: PoolSubmissions
    gpu: str

    def tried(self, share: int) -> TriedShare:
        """Return a share as tried here."""
        return TriedShare(self.gpu_model, self.driver, share, self.sms)


def measure_shares(probe: Probe, shares: Sequence[int]) -> Generator[SplitEvidence, None, None]:
    """Measure shares, and yield each result immediately.

    Raises
    ------
    GateError
        If the program cannot run, or its output is invalid.
    """
    command = (probe.python, "-I", str(PROGRAM), "cuda", "wait")
    for share, output in _answers(probe, command, shares, _AHEAD, _PATIENCE_S):
        yield _evidence(probe.tried(share), output)


def count_sms(probe: Probe, shares: Sequence[int]) -> Generator[SmCount, None, None]:
    """Count the SMs that a client sees at each share, without computing anything.

    Raises
    ------
    GateError
        If the program cannot run, or its output is invalid.
    """
    command = (sys.executable, "-I", "-S", str(PROGRAM), "count")
    for share, output in _answers(probe, command, shares, _COUNTERS, _COUNT_PATIENCE_S):
        yield SmCount.from_data(_facts(probe.tried(share), output), PROGRAM.name)


def _answers(
    probe: Probe, command: Sequence[str], shares: Sequence[int], at_once: int, within_s: float
) -> Generator[tuple[int, Mapping[str, object]], None, None]:
    """Run a program at each share, some at once, and yield their outputs in order."""
    way, running = probe.submissions, list[Submission]()
    try:
        for place, share in enumerate(shares):
            for following in shares[place + len(running) : place + at_once]:
                cap = None if following == WHOLE else following
                running.append(way.submit(command, Seat(gpu=probe.gpu, share=cap)))
            first = running[0]
            if not way.wait(partial(getattr, first, "over"), time.monotonic() + within_s):
                raise GateError(f"{command[0]} did not end within {within_s:.0f} s")
            yield share, _answer(way, first, command[0])
            way.end([running.pop(0)], 0.0)
    finally:
        way.end(running, 0.0)


def _answer(way: PoolSubmissions, one: Submission, program: str) -> Mapping[str, object]:
    lines = way.last_words(one)
    if one.status != 0:
        last = lines[-1] if one.status is not None and one.status > 0 and lines else one.over
        raise GateError(f"{program} could not compute: {last}")
    return _read(lines, program)


def _read(lines: Sequence[str], program: str) -> Mapping[str, object]:
    try:
        output = json.loads(lines[-1] if lines else "")
    except ValueError:
        raise GateError(f"{program} printed something other than JSON: {lines[-1:]!r}") from None
    if not isinstance(output, dict):
        raise GateError(f"{program} printed no mapping: {lines[-1][:60]!r}")
    return output


def _facts(tried: TriedShare, output: Mapping[str, object]) -> dict[str, object]:
    if output.get("mps") is not True:
        raise GateError("the program did not reach MPS, so its output says nothing about a share")
    return {
        "gpu_model": tried.gpu_model,
        "driver": tried.driver,
        "share": tried.share,
        "sms": output.get("sms"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _evidence(tried: TriedShare, output: Mapping[str, object]) -> SplitEvidence:
    if output.get("cublas") is None or output.get("sms") is None:
        raise GateError("the program saw no GPU, or its PyTorch uses no cuBLAS")
    facts, sms, products = _facts(tried, output), output["sms"], output.get("products")
    if tried.sms is not None and tried.share < WHOLE and sms == tried.sms:
        raise GateError(f"at {tried.share} % the program saw all {sms} SMs: the cap has no effect")
    fields = ("kind", "dtype", "m", "n", "k", "error")
    compared = [
        dict(zip(fields, product, strict=True))
        for product in (products if isinstance(products, list) else [])
    ]
    found = {**facts, "cublas": output["cublas"], "products": compared}
    return SplitEvidence.from_data(found, PROGRAM.name)
