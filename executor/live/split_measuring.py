"""Measure what the split gate asks for: run ``products.py`` as an MPS client at every share."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from dovetail.executor.live.splits import WHOLE, SplitEvidence
from dovetail.instances.errors import DovetailError

PROGRAM: Final = Path(__file__).with_name("products.py")

CANDIDATES: Final = (50, 10, 90, *(share for share in range(5, WHOLE, 5) if share % 40 != 10), 100)
"""The shares that are tried, those first that others have seen to compute right on Hopper."""

_PATIENCE_S = 300.0


class GateError(DovetailError):
    """A share could not be measured; nothing is known of it."""


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
    """

    gpu_model: str
    driver: str
    sms: int | None
    python: str
    environment: Callable[[int], Mapping[str, str]]


def measure_shares(measuring: Measuring, shares: Sequence[int]) -> Iterator[SplitEvidence]:
    """Measure shares one after the other; each result can be kept as soon as it is there.

    Raises
    ------
    GateError
        When the program cannot run or says what cannot be.
    """
    for share in shares:
        environment = {**os.environ, **measuring.environment(share)}
        told = _run([measuring.python, "-I", str(PROGRAM), "cuda"], environment)
        yield _evidence(measuring, share, told)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GateError(f"{command[0]} did not end within {_PATIENCE_S:.0f} s") from None
    except OSError as error:
        raise GateError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise GateError(f"{command[0]} could not compute: {last}")
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise GateError(f"{command[0]} printed what is no JSON: {done.stdout[:60]!r}") from None
    if not isinstance(told, dict):
        raise GateError(f"{command[0]} printed no mapping: {done.stdout[:60]!r}")
    return told


def _evidence(measuring: Measuring, share: int, told: Mapping[str, object]) -> SplitEvidence:
    if told.get("cublas") is None or told.get("sms") is None:
        raise GateError("the program saw no GPU, or its PyTorch uses no cuBLAS")
    if told.get("mps") is not True:
        raise GateError("the program did not reach MPS: what it computed says nothing of a share")
    sms = told["sms"]
    if measuring.sms is not None and share < WHOLE and sms == measuring.sms:
        raise GateError(f"at {share} % the program saw all {sms} SMs: the cap is not kept")
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
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        },
        str(PROGRAM.name),
    )
