"""Kernels: functions on arrays that run compiled by numba or as plain Python.

One source serves both. Compiled, the engine solves a thousand jobs in tens of milliseconds, but
numba has to be imported and its machine code loaded (half a second), which is compiled once
after installation (ten seconds and more) and kept next to the source or in the user's cache
folder. As plain Python a round of some dozens of jobs is solved before that load would be over,
and one of some hundreds before the compilation would. ``quickest`` chooses;
``matching.compile_kernels`` compiles ahead of the first round.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from dovetail.formulations.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])

_KERNELS: set[Callable[..., Any]] = set()

_THREADED_CELLS = 200_000
"""Matrix cells below which handing a pass over them to threads costs more than it saves."""

_CHUNKS_PER_THREAD = 8
"""So that threads end together although rows of a triangle differ in length."""


_QUICKER_THAN_LOADING = 100
"""Jobs up to which plain Python is done sooner than numba and its kept code are loaded."""

_QUICKER_THAN_COMPILING = 600
"""Jobs up to which plain Python is done sooner than the kernels are compiled."""

_READ_BEFORE_COMPILED = 1200
"""Jobs up to which plain Python has an answer of some quality sooner than that."""

_COMPILING_S = 20.0
"""Seconds that compiling may take: a time limit below this cannot wait for it."""

_LOADING_S, _PLAIN_S = 1.0, 10.0
"""Seconds in plain Python after which a process loads kept code, or compiles: many small rounds
are a large one."""

_plain_s = 0.0
"""Seconds that this process has spent on rounds in plain Python."""


class KernelCompiler(Protocol):
    """Turns a kernel into what is called: itself, or its compiled form."""

    def __call__(self, kernel: F, /) -> F:
        """Return the form of the kernel to be called."""
        ...


def kernel(function: F) -> F:
    """Mark a function that numba can compile, with the kernels it calls."""
    _KERNELS.add(function)
    return function


def interpreted(function: F, /) -> F:
    """Run a kernel as plain Python."""
    return function


def compiled(function: F, /) -> F:
    """Run a kernel compiled; it is compiled, or read from the cache, at its first call."""
    return cast("F", _compiled(function))


def can_compile() -> bool:
    """Tell whether numba's compiler is switched on (without importing it)."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def is_compiled() -> bool:
    """Tell whether this process has compiled kernels already."""
    return _compiled.cache_info().currsize > 0


def is_kept() -> bool:
    """Tell whether an earlier process has compiled all kernels as they are now for this machine."""
    mark = _mark()
    return mark is not None and mark.exists()


def keep() -> None:
    """Note that all kernels are compiled, and their code kept."""
    mark = _mark()
    if mark is not None:
        mark.touch()


def is_worth_compiling(jobs: int) -> bool:
    """Tell whether rounds of so many jobs would be solved by code still to be compiled and kept."""
    if not can_compile() or jobs <= _QUICKER_THAN_LOADING:
        return False
    mark = _mark()
    return mark is not None and not mark.exists()


def _mark() -> Path | None:
    """Return the file with the machine code of these sources, None if none is kept.

    Its name tells the sources, Python, numba and processor that the code is for.
    """
    folder, made_for = _compiler()
    if folder is None:
        return None
    sources = sorted({function.__code__.co_filename for function in _KERNELS})
    stats = [os.stat(source) for source in sources]
    stamps = [(one.st_mtime_ns, one.st_size) for one in stats]
    digest = sha256(repr((made_for, stamps)).encode()).hexdigest()[:16]
    return folder / f"compiled-{digest}"


@cache
def _compiler() -> tuple[Path | None, str]:
    """Return the folder for machine code, if any, and what else than its sources it depends on."""
    numba, binding = import_module("numba"), import_module("llvmlite.binding")
    made_for = f"{sys.version} {numba.__version__} {binding.get_host_cpu_name()}"
    try:
        return Path(numba.njit(cache=True)(is_kept).stats.cache_path), made_for
    except RuntimeError:
        return None, made_for


def note_plain(seconds: float) -> None:
    """Count the time that a round took in plain Python."""
    global _plain_s
    _plain_s += seconds


def quickest(jobs: int, budget: Budget) -> KernelCompiler:
    """Return the way to run that is done first, or that keeps the time limit best.

    ``compiled`` is returned before the kernels are compiled only where a round is so large, or
    the rounds so far in this process took so long, that plain Python is no gain over compiling.
    """
    if not can_compile():
        return interpreted
    if is_compiled():
        return compiled
    if jobs <= _QUICKER_THAN_LOADING and _plain_s < _LOADING_S:
        return interpreted
    if is_kept():
        return compiled
    hurried = not budget.counts_work and budget.left_s < _COMPILING_S
    if hurried:
        return interpreted if jobs <= _READ_BEFORE_COMPILED else compiled
    plain = jobs <= _QUICKER_THAN_COMPILING and _plain_s < _PLAIN_S
    return interpreted if plain else compiled


@cache
def _compiled(function: FunctionType) -> Any:  # noqa: ANN401 - numba has no types
    """Compile a twin of the function that sees compiled twins of the kernels it calls."""
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        used = scope.get(name)
        if isinstance(used, FunctionType) and used in _KERNELS:
            scope[name] = _compiled(used)
        elif type(used) is int:  # without a type, a callee is compiled for each value
            scope[name] = np.int64(used)
    twin = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    twin.__module__ = function.__module__
    twin.__qualname__ = function.__qualname__
    numba = import_module("numba")
    try:
        return numba.njit(cache=True, nogil=True)(twin)
    except RuntimeError:  # no folder to keep the machine code in: compile in every process
        return numba.njit(nogil=True)(twin)


def over_rows(
    run: KernelCompiler, function: Callable[..., None], rows: int, columns: int, *arrays: object
) -> None:
    """Call ``function(first, last, *arrays)`` for all rows, on all cores if that pays.

    Every row writes to its own part of the arrays, so the result does not depend on the order.
    """
    call = run(function)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if run is interpreted or not threads or threads == 1 or rows * columns < _THREADED_CELLS:
        call(0, rows, *arrays)
        return
    chunks = min(rows, threads * _CHUNKS_PER_THREAD)
    edges = [rows * k // chunks for k in range(chunks + 1)]
    pool = _pool(threads)
    for done in [pool.submit(call, a, b, *arrays) for a, b in pairwise(edges)]:
        done.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="dovetail-pairing")
