"""Kernels: functions on arrays that run compiled by numba or as plain Python.

One source serves both. Compiled, the engine solves a thousand jobs in tens of milliseconds, but
numba has to be imported and its machine code loaded (half a second). The code is compiled once
after installation (ten seconds or more) and cached next to the source or in the user's cache
folder. As plain Python a round of some dozens of jobs is solved before the code would be loaded,
and one of some hundreds before it would be compiled. ``quickest`` chooses;
``matching.compile_kernels`` compiles ahead of the first round.

numba takes cached code for that of a function while the function's own file is unchanged, although
code of other files is compiled into it and types of other files are pickled with it. So the code of
each state of all sources is in a folder of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from dovetail.formulations.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])

_KERNELS: set[Callable[..., Any]] = set()

_THREADED_CELLS = 200_000
"""Number of matrix cells below which threads cost more than they save."""

_CHUNKS_PER_THREAD = 8
"""Chunks per thread, so that threads end together although a triangle's rows differ."""


_QUICKER_THAN_LOADING = 100
"""Number of jobs up to which plain Python is faster than loading numba and its cached code."""

_QUICKER_THAN_COMPILING = 600
"""Number of jobs up to which plain Python is faster than compiling the kernels."""

_READ_BEFORE_COMPILED = 1200
"""Number of jobs up to which plain Python has a usable answer before that."""

_COMPILING_S = 20.0
"""Seconds that compiling may take: with a shorter time limit it is not started."""

_LOADING_S, _PLAIN_S = 1.0, 10.0
"""Seconds in plain Python after which a process loads cached code, or compiles: many small rounds
are like a large one."""

_plain_s = 0.0
"""Seconds that this process has spent on rounds in plain Python."""

_BEGAN_NS = time.time_ns()
"""When this process read its sources, or shortly before."""

_NUMBA_CONFIGURED = Lock()
"""Held while numba is told another folder for machine code."""


class KernelCompiler(Protocol):
    """Returns a kernel itself or its compiled form."""

    def __call__(self, kernel: F, /) -> F:
        """Return the form of the kernel to call."""
        ...


def kernel(function: F) -> F:
    """Mark a function that numba can compile, with the kernels it calls."""
    _KERNELS.add(function)
    return function


def interpreted(function: F, /) -> F:
    """Return the kernel itself, to run as plain Python."""
    return function


def compiled(function: F, /) -> F:
    """Return the compiled kernel; it is compiled, or read from the cache, at its first call."""
    return cast("F", _compiled(function))


def can_compile() -> bool:
    """Return whether numba's compiler is enabled (without importing it)."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def is_compiled() -> bool:
    """Return whether this process has already compiled kernels."""
    return _compiled.cache_info().currsize > 0


def is_kept() -> bool:
    """Return whether all kernels in their present form are cached for this machine."""
    mark = _mark()
    return mark is not None and mark.exists()


def keep() -> None:
    """Record that all kernels are compiled and cached."""
    mark = _mark()
    if mark is not None:
        mark.touch()


def is_worth_compiling(jobs: int) -> bool:
    """Return whether rounds of this size need compiled code that is not cached yet."""
    if not can_compile() or jobs <= _QUICKER_THAN_LOADING:
        return False
    mark = _mark()
    return mark is not None and not mark.exists()


def _mark() -> Path | None:
    """Return the file that marks that all machine code is cached, or None without a cache."""
    folder = _folder(frozenset(function.__code__.co_filename for function in _KERNELS))
    return folder and folder / "compiled"


@cache
def _folder(sources: frozenset[str]) -> Path | None:
    """Return the folder for machine code of the sources as they are, or None without a cache.

    Its name depends on all that the code is made from, and on Python, numba and processor. The code
    of other states of the sources is removed when it is made. Their folders stay: a process that
    began with them may still write there.
    """
    within, made_for = _compiler()
    if within is None:
        return None
    digest = sha256()
    try:
        for source in sorted({*sources, *map(str, Path(__file__).parent.glob("*.py"))}):
            content = Path(source).read_bytes()
            if os.stat(source).st_ctime_ns > _BEGAN_NS:
                return None  # changed since this process read it
            digest.update(f"{source} {len(content)} ".encode() + content)
        kind = f"dovetail-{sha256(made_for.encode()).hexdigest()[:8]}"
        folder = within / f"{kind}-{digest.hexdigest()[:16]}"
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            earlier = (one for one in within.glob(f"{kind}-*") if one != folder)
            old = [path for one in earlier for path in one.rglob("*") if path.is_file()]
            # Before there were such folders, code was beside them.
            for path in [*old, *within.glob("*.nb[ci]")]:
                path.unlink(missing_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@cache
def _compiler() -> tuple[Path | None, str]:
    """Return numba's folder for machine code, if any, and what code depends on beside sources."""
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
    """Return how to run kernels so that they end first or keep the time limit best.

    Without cached code, ``compiled`` is returned only if a round is so large, or the rounds so far
    in this process took so long, that plain Python is not faster than compiling.
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


def ready(jobs: int) -> KernelCompiler | None:
    """Return ``compiled`` if it needs no compilation and a queue is so long that it pays."""
    if is_compiled() or (jobs > _QUICKER_THAN_LOADING and can_compile() and is_kept()):
        return compiled
    return None


@cache
def _compiled(function: FunctionType) -> Any:  # noqa: ANN401 - numba has no types
    """Compile a copy of the function that calls compiled copies of the kernels it uses."""
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
    mark = _mark()
    if mark is None:  # compile in every process
        return numba.njit(nogil=True)(twin)
    with _NUMBA_CONFIGURED:
        config: Any = import_module("numba.core.config")
        before, config.CACHE_DIR = config.CACHE_DIR, str(mark.parent)
        try:
            return numba.njit(cache=True, nogil=True)(twin)
        finally:
            config.CACHE_DIR = before


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
