"""Kernels: functions on arrays that run compiled by numba or as plain Python.

One source serves both. Compiled, the engine solves a thousand jobs in tens of milliseconds, but
numba has to be imported (and, once after installation, to compile: the machine code is cached
beside the source or in the user's cache folder). As plain Python a round of a few dozen jobs is
solved before that import would be over, and everything works where numba is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_KERNELS: set[Callable[..., Any]] = set()

_THREADED_CELLS = 200_000
"""Matrix cells below which handing a pass over them to threads costs more than it saves."""

_CHUNKS_PER_THREAD = 8
"""So that threads end together although rows of a triangle differ in length."""


class Run(Protocol):
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


@cache
def can_compile() -> bool:
    """Tell whether numba is installed (without importing it)."""
    return find_spec("numba") is not None


def is_compiled() -> bool:
    """Tell whether this process has compiled kernels already."""
    return _compiled.cache_info().currsize > 0


@cache
def _compiled(function: FunctionType) -> Any:  # noqa: ANN401 - numba has no types
    """Compile a twin of the function that sees compiled twins of the kernels it calls."""
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        callee = scope.get(name)
        if isinstance(callee, FunctionType) and callee in _KERNELS:
            scope[name] = _compiled(callee)
    twin = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    twin.__module__ = function.__module__
    twin.__qualname__ = function.__qualname__
    numba = import_module("numba")
    try:
        return numba.njit(cache=True, nogil=True)(twin)
    except RuntimeError:  # no folder to keep the machine code in: compile in every process
        return numba.njit(nogil=True)(twin)


def over_rows(
    run: Run, function: Callable[..., None], rows: int, columns: int, *arrays: object
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
