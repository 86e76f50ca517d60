"""Kernels run as they are, in slices, and preempted: the memory that each leaves behind."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from dovetail.isolation.ptx import Function, Module
from dovetail.isolation.transform import (
    STORAGE,
    STORAGE_BYTES,
    own_dynamic_bytes,
    slices,
    workers,
)
from tests.isolation.interpreter import Kernel, launch

COUNTER_AT, FLAG_AT, DATA_AT = 0, 8, 64


@dataclass(frozen=True)
class Case:
    """A launch: the dimensions, memory from ``DATA_AT`` on, and raw parameters."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    data: bytes
    arguments: tuple[int | bytes, ...]
    dynamic_shared: int = 0
    in_order: bool = False

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def memory(self) -> bytearray:
        return bytearray(DATA_AT) + bytearray(self.data)


def as_it_is(module: Module, kernel: Function, case: Case, rng: random.Random) -> bytes:
    memory = case.memory()
    _launch(Kernel(module, kernel), memory, case, case.arguments, case.grid, rng)
    return bytes(memory[DATA_AT:])


def in_slices(module: Module, kernel: Function, case: Case, rng: random.Random) -> bytes:
    memory, cut, first = case.memory(), Kernel(module, slices(kernel)), 0
    while first < case.blocks:
        count = min(rng.choice((1, 2, 3, 5)), case.blocks - first)
        arguments = (*case.arguments, *case.grid, first)
        _launch(cut, memory, case, arguments, (count, 1, 1), rng)
        first += count
    return bytes(memory[DATA_AT:])


def preempted(
    module: Module,
    kernel: Function,
    case: Case,
    rng: random.Random,
    *,
    unified: bool,
    made: Function | None = None,
) -> bytes:
    """Run workers whose flag goes up at random moments; resume them until all blocks are done."""
    memory = case.memory()
    runs = workers_of(module, made or workers(kernel, unified=unified))
    launches = 0
    while int.from_bytes(memory[COUNTER_AT : COUNTER_AT + 4], "little") < case.blocks:
        memory[FLAG_AT : FLAG_AT + 4] = bytes(4)
        stop_at = rng.randrange(1, 2000) if launches < 8 else None

        def host(done: int, stop_at: int | None = stop_at) -> None:
            if stop_at is not None and done >= stop_at:
                memory[FLAG_AT] = 1

        own = own_dynamic_bytes(case.dynamic_shared)
        chunk, grid = rng.choice((1, 1, 2, 3, 7)), (rng.choice((1, 2, 3)), 1, 1)
        arguments = (*case.arguments, *case.grid, COUNTER_AT, FLAG_AT, own, chunk)
        _launch(runs, memory, case, arguments, grid, rng, host, own + STORAGE_BYTES)
        launches += 1
    return bytes(memory[DATA_AT:])


def workers_of(module: Module, made: Function) -> Kernel:
    """Return a kernel as workers, ready to run, in its module with a declaration of ours."""
    return Kernel(replace(module, text=f"{module.text}\n{STORAGE}"), made)


def _launch(kernel, memory, case, arguments, grid, rng, host=None, dynamic=None) -> None:
    launch(
        kernel,
        memory,
        arguments,
        grid,
        case.block,
        rng,
        host=host,
        dynamic_shared=case.dynamic_shared if dynamic is None else dynamic,
        in_order=case.in_order,
    )
