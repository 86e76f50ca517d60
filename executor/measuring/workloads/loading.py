"""From the name of a workload, or a file, to what can be run."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from . import BUILT_IN

KINDS = ("training", "inference")

Step = Callable[[], object]


class WorkloadError(Exception):
    """A workload that is not there, or does not say what it is."""


class Workload(NamedTuple):
    """A workload in one size; ``workloads/__init__.py`` says what its parts mean."""

    kind: str
    family: str
    batch_size: int
    prepare: Callable[[str, str, int], Step]
    gaps: Callable[[random.Random, str], Iterator[float]] | None


def load(name_or_file: str, size: str) -> Workload:
    """Import a workload: one of the built-in names, or else a file.

    Raises
    ------
    WorkloadError
        Neither is there, or it lacks a part.
    """
    module = _module(name_or_file)
    try:
        return _workload(module, size)
    except WorkloadError as error:
        raise WorkloadError(f"{name_or_file}: {error}") from None


def _module(name_or_file: str) -> ModuleType:
    if name_or_file in BUILT_IN:
        return importlib.import_module(f"{__package__}.{name_or_file}")
    path = Path(name_or_file)
    if path.suffix != ".py" or not path.is_file():
        known = ", ".join(BUILT_IN)
        raise WorkloadError(f"{name_or_file!r}: no built-in workload ({known}), nor a file NAME.py")
    return _own_module(path.resolve())


def _own_module(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))  # as for a program: it may import what lies beside it
    spec = importlib.util.spec_from_file_location("own_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _workload(module: ModuleType, size: str) -> Workload:
    kind = _part(module, "KIND", lambda found: isinstance(found, str))
    if kind not in KINDS:
        raise WorkloadError(f"KIND must be one of {', '.join(KINDS)}, got {kind!r}")
    batch = _part(module, "BATCH", lambda found: isinstance(found, dict)).get(size)
    if not isinstance(batch, int) or batch < 1:
        raise WorkloadError(f"BATCH[{size!r}] must be an integer >= 1, got {batch!r}")
    gaps = getattr(module, "gaps", None)
    if gaps is not None and kind != "inference":
        raise WorkloadError("gaps is for inference only")
    family = _part(module, "FAMILY", lambda found: isinstance(found, str))
    return Workload(kind, family, batch, _part(module, "prepare", callable), gaps)


def _part(module: ModuleType, name: str, fits: Callable[[Any], bool]) -> Any:
    found = getattr(module, name, None)
    if not fits(found):
        raise WorkloadError(f"must have {name}, got {found!r}")
    return found
