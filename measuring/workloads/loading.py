"""Loading workloads by name or from a file."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import MODULES

KINDS = ("training", "inference")

Step = Callable[[], object]
Gaps = Callable[[random.Random, str], Iterator[float]]


class WorkloadError(Exception):
    """A workload does not exist, or is incomplete."""


class LoadedWorkload(NamedTuple):
    """A workload; ``workloads/__init__.py`` describes its parts."""

    kind: str
    family: str
    batch: dict[str, int]
    prepare: Callable[[str, str, int], Step]
    gaps: Gaps | None


_built_in: dict[str, LoadedWorkload] = {}


def built_in(
    full: int, tiny: int, gaps: Gaps | None = None, kind: str = "training"
) -> Callable[[Callable[[str, int, bool], Step]], Callable[[str, int, bool], Step]]:
    """Register a function as the built-in workload of its name, with these batch sizes.

    Its arguments are the device, the batch size, and whether the size is full.
    """
    batch = {"full": full, "tiny": tiny}

    def add(build: Callable[[str, int, bool], Step]) -> Callable[[str, int, bool], Step]:
        def prepare(device: str, size: str, seed: int) -> Step:
            import torch

            torch.manual_seed(seed)
            return build(device, batch[size], size == "full")

        _built_in[build.__name__] = LoadedWorkload(kind, build.__name__, batch, prepare, gaps)
        return build

    return add


def load(name_or_file: str, size: str) -> LoadedWorkload:
    """Import a built-in workload by name, or a user's workload by file.

    Raises
    ------
    WorkloadError
        If there is no such workload or file, or it lacks a part.
    """
    if name_or_file in MODULES:
        importlib.import_module(f"{__package__}.{MODULES[name_or_file]}")
        return _built_in[name_or_file]
    path = Path(name_or_file)
    if path.suffix != ".py" or not path.is_file():
        known = ", ".join(MODULES)
        raise WorkloadError(f"{name_or_file!r}: no built-in workload ({known}), nor a file NAME.py")
    try:
        return _own(path.resolve(), size)
    except WorkloadError as error:
        raise WorkloadError(f"{name_or_file}: {error}") from None


def _own(path: Path, size: str) -> LoadedWorkload:
    sys.path.insert(0, str(path.parent))  # like a script, it may import files of its folder
    spec = importlib.util.spec_from_file_location("own_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    def part(name: str, fits: Callable[[Any], bool]) -> Any:
        found = getattr(module, name, None)
        if not fits(found):
            raise WorkloadError(f"must have {name}, got {found!r}")
        return found

    kind = part("KIND", lambda found: isinstance(found, str))
    if kind not in KINDS:
        raise WorkloadError(f"KIND must be one of {', '.join(KINDS)}, got {kind!r}")
    batch = part("BATCH", lambda found: isinstance(found, dict))
    if not isinstance(batch.get(size), int) or batch[size] < 1:
        raise WorkloadError(f"BATCH[{size!r}] must be an integer >= 1, got {batch.get(size)!r}")
    gaps = getattr(module, "gaps", None)
    if gaps is not None and kind != "inference":
        raise WorkloadError("gaps is for inference only")
    family = part("FAMILY", lambda found: isinstance(found, str))
    return LoadedWorkload(kind, family, batch, part("prepare", callable), gaps)
