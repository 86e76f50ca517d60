"""Measured times of kernels in a file, so that a scheduler that begins knows their final forms.

There is one file for each model of GPU, number of its SMs, and driver. It is replaced as a whole,
and holds a limited number of kernels; those that were measured last stay.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from dovetail.instances.errors import DovetailError
from dovetail.isolation.scheduler import MOST_SIZES, Kind, LaunchForm, Size

Times = Mapping[Size, Mapping[LaunchForm, float]]
"""Seconds of measured kernels by form, in the order of the measurements."""

DRIVER: Final = Path("/proc/driver/nvidia")
"""Where the driver says what it and its GPUs are."""

_FORMAT: Final = "dovetail-kernel-times/1"
_MOST_BYTES: Final = 1 << 23
_MOST_FORMS: Final = 16
_LONGEST_NAME: Final = 100
_VERSION: Final = re.compile(r"Module\s+(?:for \S+\s+)?([\d.]+)")
_MODEL: Final = re.compile(r"^Model:\s*(.*\S)", re.MULTILINE)


class TimesError(DovetailError):
    """A file of times is damaged, or is none."""


def file_name(sms: int, driver: Path) -> str | None:
    """Return the name of the file of this machine's GPUs, or None if the driver does not say.

    Parameters
    ----------
    sms : int
        Streaming multiprocessors of the GPU.
    driver : Path
        The folder in which the driver describes itself (``DRIVER``).
    """
    try:
        version = _VERSION.search((driver / "version").read_text())
        told = [one.read_text() for one in sorted(driver.glob("gpus/*/information"))]
    except (OSError, ValueError):
        return None
    models = sorted({found[1] for text in told if (found := _MODEL.search(text))})
    if version is None or not models:
        return None
    plain = re.sub(r"[^A-Za-z0-9.]+", "_", f"{'_'.join(models)[:_LONGEST_NAME]} {sms} {version[1]}")
    return f"times-{plain}.json"


def load(path: Path) -> Times:
    """Return the times in a file, none if it does not exist.

    Raises
    ------
    TimesError
        If it cannot be read, or is not such a file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ValueError("another format")
        return dict(map(_kernel, found["kernels"]))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TimesError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise TimesError(f"{path}: must be {_FORMAT}, is nested too deeply") from None
    except (KeyError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:_LONGEST_NAME]
        raise TimesError(f"{path}: must be {_FORMAT}, got something else: {why}") from None


def save(path: Path, times: Times) -> None:
    """Add times to a file; what else it has stays, unless it is damaged.

    Raises
    ------
    TimesError
        If it cannot be written.
    """
    try:
        others = {size: forms for size, forms in load(path).items() if size not in times}
    except TimesError:
        others = {}
    kept = list({**others, **times}.items())[-MOST_SIZES:]
    rows = [[*size, [[*form, seconds] for form, seconds in forms.items()]] for size, forms in kept]
    text = ",\n".join(map(json.dumps, rows))
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(f'{{"format": "{_FORMAT}", "kernels": [\n{text}\n]}}\n')
        beside.replace(path)
    except OSError as error:
        raise TimesError(f"{path}: cannot be written: {error.strerror}") from None


def _kernel(row: list[Any]) -> tuple[Size, dict[LaunchForm, float]]:
    """Return a kernel and its times, validated."""
    name, blocks, threads, shared_bytes, forms = row
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or len(forms) > _MOST_FORMS:
        raise ValueError("no kernel")
    size = Size(name, _whole(blocks, 1), _whole(threads, 1), _whole(shared_bytes, 0))
    return size, dict(map(_form, forms))


def _form(row: list[Any]) -> tuple[LaunchForm, float]:
    kind, size, chunk, seconds = row
    if kind not in get_args(Kind) or not isinstance(seconds, float) or not 0 < seconds < math.inf:
        raise ValueError("no time of a form")
    return LaunchForm(kind, _whole(size, int(kind != "whole")), _whole(chunk, 1)), seconds


def _whole(number: object, least: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 1 << 32:
        raise ValueError("no whole number of 32 bits")
    return number
