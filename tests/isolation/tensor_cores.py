"""Instructions of tensor cores and of asynchronous copies, with the addresses that they demand.

Layouts of fragments, descriptors and swizzles are those of the PTX ISA 9.0 (sections on ``mma``,
``wgmma``, ``ldmatrix``, ``mbarrier`` and ``cp.async.bulk``). A swizzle exchanges chunks of 16 bytes
by bits of the *address in shared memory*: a kernel that writes its operands by hand rests on where
they begin, although no declaration of PTX says so. What is asynchronous happens at a random moment
between its start and the wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dovetail.isolation.ptx import Statement
    from tests.isolation.interpreter import Block, Thread

WARP, WARP_GROUP = 32, 128
_SWIZZLES = {0: 16, 1: 128, 2: 64, 3: 32}
_K = 16


class InterpreterError(Exception):
    """A kernel broke a rule of CUDA or used an instruction unknown to this interpreter."""


class AddressError(InterpreterError):
    """An instruction got an address that it does not accept."""


def aligned(address: int, size: int, what: str) -> int:
    """Return an address, which must be a multiple of ``size``."""
    if address % size:
        raise AddressError(f"{what} at {address}: must be a multiple of {size}")
    return address


@dataclass
class MemoryBarrier:
    """An mbarrier: arrivals and bytes that its phase still expects."""

    count: int
    pending: int
    phase: int = 0
    bytes_left: int = 0

    def settle(self) -> None:
        if self.pending == 0 and self.bytes_left == 0:
            self.phase, self.pending = self.phase + 1, self.count


@dataclass
class InFlight:
    """What a block has started and not awaited: products by warp group, and bulk copies."""

    started: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    groups: dict[int, list[list[Callable[[], None]]]] = field(default_factory=dict)
    barriers: dict[int, MemoryBarrier] = field(default_factory=dict)
    copies: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class TensorMap:
    """A made-up encoding of a map for bulk copies of tiles; that of the driver is secret.

    ``extents`` and ``box`` are in elements, x first; ``pitches`` are the bytes from one y to the
    next, and so on.
    """

    at: int
    element_bytes: int
    extents: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 16

    def encoded(self) -> bytes:
        numbers = [self.at, self.element_bytes, self.swizzle_bytes, len(self.box)]
        numbers += [*self.extents, *self.pitches, *self.box]
        return np.array(numbers, np.int64).tobytes().ljust(128, b"\0")

    @classmethod
    def of(cls, data: bytes) -> TensorMap:
        at, size, swizzle, axes, *rest = np.frombuffer(data, np.int64).tolist()
        extents, pitches = rest[:axes], rest[axes : 2 * axes - 1]
        box = rest[2 * axes - 1 : 3 * axes - 1]
        return cls(at, size, tuple(extents), tuple(pitches), tuple(box), swizzle)


def swizzled(addresses: Any, width: int) -> Any:
    """Return where bytes at addresses are under a swizzle of ``width`` bytes."""
    return addresses ^ ((addresses >> 7 & (width // 16 - 1)) << 4)


@cache
def _offsets(extent: int, width: int, lead: int, step: int, transposed: bool) -> Any:
    """Return the offset of each element of a ``wgmma`` operand from its start, unswizzled."""
    if width == 16:
        raise InterpreterError("an operand of wgmma without a swizzle")
    mn, k = np.arange(extent)[:, None], np.arange(_K)[None, :]
    if transposed:
        across = width // 2
        return mn % across * 2 + mn // across * lead + k % 8 * width + k // 8 * step
    return mn % 8 * width + mn // 8 * step + k * 2


def operand(block: Block, descriptor: int, extent: int, transposed: bool, kind: str) -> Any:
    """Return the operand of ``wgmma`` that a descriptor names, extent x K."""
    width = _SWIZZLES[descriptor >> 62 & 3]
    start, lead, step = (((descriptor >> bit) & 0x3FFF) << 4 for bit in (0, 16, 32))
    if width > 16 and start >> 7 & (width // 16 - 1) != descriptor >> 49 & 7:
        raise AddressError(f"wgmma operand at {start}: not at the start of a swizzle of {width}")
    offsets = _offsets(extent, width, lead, step, transposed)
    places = swizzled(start + offsets, width)
    memory = np.frombuffer(block.shared, np.uint8)
    if places.max() + 2 > len(memory):
        raise AddressError(f"wgmma operand at {start}: ends beyond shared memory")
    gathered = memory[places[..., None] + np.arange(2)]
    return numbers(np.ascontiguousarray(gathered).reshape(extent, -1), kind)


def numbers(raw: Any, kind: str) -> Any:
    """Return the numbers that bytes stand for."""
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind != "f16":
        raise InterpreterError(f"a matrix of {kind}")
    return raw.view(np.float16).astype(np.float64)


@cache
def _fragment(registers: int, *, by_columns: bool) -> tuple[Any, Any]:
    """Return row and column of each element: lane x register x half of the register.

    ``by_columns`` is the second operand of ``mma``, K x 8; otherwise the first, 16 x K.
    """
    lane, register, half = np.ogrid[:WARP, :registers, :2]
    far, near = (register, 0) if by_columns else (register // 2, register % 2)
    along = 2 * (lane % 4) + 8 * far + half
    across, along = np.broadcast_arrays(lane // 4 + 8 * near + 0 * half, along)
    return (along, across) if by_columns else (across, along)


@cache
def _result(registers: int, halves: int) -> tuple[Any, Any]:
    """Return row and column of each element of a result of 16 rows."""
    lane, register, half = np.ogrid[:WARP, :registers, :halves]
    n = register * halves + half
    row, column = np.broadcast_arrays(
        lane // 4 + 8 * (n // 2 % 2), 8 * (n // 4) + 2 * (lane % 4) + n % 2
    )
    return row, column


def _halves(kind: str) -> int:
    """Return how many elements of a result a register holds."""
    return {"f32": 1, "f16": 2}[kind]


def _packed(values: Any, kind: str) -> Any:
    """Return the registers (lane x register) of elements (lane x register x element)."""
    made = np.ascontiguousarray(values.astype(np.float32 if kind == "f32" else np.float16))
    return made.view(np.uint32)[..., 0]


def _unpacked(raw: Any, kind: str) -> Any:
    held = np.ascontiguousarray(np.array(raw, np.uint64).astype(np.uint32)[..., None])
    if kind == "f32":
        return held.view(np.float32).astype(np.float64)
    return numbers(held.view(np.uint8), kind)


def _matrix(raw: Any, kind: str, shape: tuple[int, int], *, by_columns: bool) -> Any:
    made = np.zeros(shape)
    values = _unpacked(raw, kind)
    made[_fragment(values.shape[1], by_columns=by_columns)] = values
    return made


class TensorInstructions:
    """The instructions, as a part of ``interpreter.Kernel``."""

    _register: Callable[[str], int]
    _reader: Callable[..., Callable[[Thread], int]]
    _address: Callable[[str], Callable[[Thread], int]]
    _vector: Callable[[str], list[str]]

    def _all_of_warp(self, place: int, act: Callable[[Sequence[Thread]], None]) -> Any:
        def acting(there: Sequence[Thread]) -> None:
            if len(there) != WARP:
                raise InterpreterError("an instruction of a whole warp lacks threads")
            act(there)

        def wait(t: Thread) -> None:
            t.waits = ("warp", place, 0xFFFFFFFF, acting)

        return wait

    def _ldmatrix(self, one: Statement, place: int) -> Any:
        to = [self._register(name) for name in self._vector(one.operands[0])]
        address = self._address(one.operands[1])

        def act(there: Sequence[Thread]) -> None:
            block = there[0].block
            for k, register in enumerate(to):
                rows = [
                    block.load(t, "shared", aligned(address(t), 16, "ldmatrix"), 16)
                    for t in there[8 * k : 8 * k + 8]
                ]
                held = np.array([[row >> 16 * n & 0xFFFF for n in range(8)] for row in rows])
                held = held.T if one.has("trans") else held
                for t in there:
                    low, high = held[t.lane // 4, 2 * (t.lane % 4) :][:2].tolist()
                    t.registers[register] = high << 16 | low

        return self._all_of_warp(place, act)

    def _stmatrix(self, one: Statement, place: int) -> Any:
        given = [self._register(name) for name in self._vector(one.operands[1])]
        address = self._address(one.operands[0])

        def act(there: Sequence[Thread]) -> None:
            for k, register in enumerate(given):
                held = np.zeros((8, 8), np.int64)
                for t in there:
                    raw = t.registers[register]
                    held[t.lane // 4, 2 * (t.lane % 4) :][:2] = (raw & 0xFFFF, raw >> 16 & 0xFFFF)
                held = held.T if one.has("trans") else held
                for t, row in zip(there[8 * k : 8 * k + 8], held.tolist(), strict=True):
                    value = sum(half << 16 * n for n, half in enumerate(row))
                    at = aligned(address(t), 16, "stmatrix")
                    t.block.store(t, "shared", at, 16, value)

        return self._all_of_warp(place, act)

    def _mma(self, one: Statement, place: int) -> Any:
        to, a, b, c = (
            [self._register(name) for name in self._vector(text)] for text in one.operands[:4]
        )
        if not one.has("m16n8k16"):
            raise InterpreterError(f"unknown shape of {one.text}")
        of_d, of_a, of_b, of_c = one.opcode.split(".")[-4:]

        def act(there: Sequence[Thread]) -> None:
            def held(registers: Sequence[int]) -> list[list[int]]:
                return [[t.registers[r] & 0xFFFFFFFF for r in registers] for t in there]

            left = _matrix(held(a), of_a, (16, _K), by_columns=False)
            right = _matrix(held(b), of_b, (_K, 8), by_columns=True)
            added = _unpacked(held(c), of_c)
            place_of = _result(len(to), _halves(of_d))
            made = _packed((left @ right)[place_of] + added, of_d)
            for t, values in zip(there, made.tolist(), strict=True):
                for register, value in zip(to, values, strict=True):
                    t.registers[register] = value

        return self._all_of_warp(place, act)

    # Warp groups.

    def _wgmma(self, one: Statement, place: int) -> Any:
        if one.has("fence"):
            return lambda t: None
        if one.has("commit_group"):

            def commit(there: Sequence[Thread]) -> None:
                flight, group = there[0].block.flight, there[0].number // WARP_GROUP
                flight.groups.setdefault(group, []).append(flight.started.pop(group, []))

            return _of_group(place, commit)
        if one.has("wait_group"):
            keep = int(one.operands[0], 0)

            def wait(there: Sequence[Thread]) -> None:
                block = there[0].block
                groups = block.flight.groups.get(there[0].number // WARP_GROUP, [])
                while len(groups) > keep or (groups and block.launch.rng.random() < 0.5):
                    for perform in groups.pop(0):
                        perform()

            return _of_group(place, wait)
        return self._mma_async(one, place)

    def _mma_async(self, one: Statement, place: int) -> Any:
        *_, shape, of_d, of_a, of_b = one.opcode.split(".")
        across = int(shape[4:].partition("k")[0])
        to = [self._register(name) for name in self._vector(one.operands[0])]
        from_registers = one.operands[1].startswith("{")
        left = [self._reader(name) for name in self._vector(one.operands[1])]
        right, adds = self._reader(one.operands[2]), self._reader(one.operands[3], "pred")
        sign = int(one.operands[4]) * int(one.operands[5])
        turned = [bool(int(text)) for text in one.operands[6:]]
        turned_right = turned[-1] if turned else False
        turned_left = turned[0] if len(turned) > 1 else False

        def start(there: Sequence[Thread]) -> None:
            if len(there) != WARP_GROUP:
                raise InterpreterError("wgmma lacks threads of its warp group")
            block, first = there[0].block, there[0]
            at_right, accumulates = right(first), adds(first)
            given = [[read(t) for read in left] for t in there]

            def perform() -> None:
                b = operand(block, at_right, across, turned_right, of_b)
                if not from_registers:
                    a = operand(block, given[0][0], 64, turned_left, of_a)
                for warp in range(4):
                    of_warp = slice(WARP * warp, WARP * (warp + 1))
                    if from_registers:
                        raw = given[of_warp]
                        rows = _matrix(raw, of_a, (16, _K), by_columns=False)
                    else:
                        rows = a[16 * warp : 16 * warp + 16]
                    places = _result(len(to), _halves(of_d))
                    values = sign * (rows @ b.T)[places]
                    members = there[of_warp]
                    if accumulates:
                        before = [[t.registers[r] & 0xFFFFFFFF for r in to] for t in members]
                        values = values + _unpacked(before, of_d)
                    for t, row in zip(members, _packed(values, of_d).tolist(), strict=True):
                        for register, value in zip(to, row, strict=True):
                            t.registers[register] = value

            group = first.number // WARP_GROUP
            block.flight.started.setdefault(group, []).append(perform)

        return _of_group(place, start)

    # Barriers in shared memory, and bulk copies.

    def _mbarrier(self, one: Statement, place: int) -> Any:
        operands = [text for text in one.operands if text != "_"]
        brackets = next(k for k, text in enumerate(operands) if text.startswith("["))
        address = self._address(operands[brackets])
        given = [self._reader(text) for text in operands[brackets + 1 :]]
        to = self._register(operands[0]) if brackets else None
        waits = one.has("try_wait") or one.has("test_wait")

        def run(t: Thread) -> None:
            barriers, at = t.block.flight.barriers, aligned(address(t), 8, "mbarrier")
            at &= (1 << 40) - 1
            if one.has("init"):
                if at in barriers:
                    raise InterpreterError(f"mbarrier at {at} is initialised while it is one")
                barriers[at] = MemoryBarrier(given[0](t), given[0](t))
                return
            if at not in barriers:
                raise InterpreterError(f"mbarrier at {at} was not initialised")
            barrier = barriers[at]
            if one.has("inval"):
                del barriers[at]
            elif waits:
                _land_some(t.block)
                t.registers[to or 0] = int(barrier.phase & 1 != given[0](t) & 1)
            else:
                if one.has("expect_tx"):
                    barrier.bytes_left += given[0](t)
                if one.has("arrive"):
                    barrier.pending -= 1
                barrier.settle()

        return run

    def _bulk(self, one: Statement, place: int) -> Any:
        """Copy one piece, or a tile, from global to shared memory, and count its bytes."""
        to, at_barrier = self._address(one.operands[0]), self._address(one.operands[-1])
        tile = one.has("tensor")
        if not one.has("mbarrier::complete_tx::bytes"):
            raise InterpreterError(f"unknown copy {one.text}")
        if tile:
            of_map, coordinates = _map_and_coordinates(one.operands[1])
            read_map = self._reader(of_map)
            axes = [self._reader(text) for text in coordinates]
        else:
            source, size = self._address(one.operands[1]), self._reader(one.operands[2])

        def run(t: Thread) -> None:
            block, target = t.block, to(t) & ((1 << 40) - 1)
            barrier = block.flight.barriers[aligned(at_barrier(t) & ((1 << 40) - 1), 8, "mbarrier")]
            if tile:
                raw = block.load_bytes(t, read_map(t), 128)
                start = tuple(_signed(read(t)) for read in axes)
                pieces = _pieces(TensorMap.of(raw), start, aligned(target, 128, "bulk tensor copy"))
            else:
                count = aligned(size(t), 16, "size of a bulk copy")
                aligned(target, 16, "bulk copy")
                pieces = [(target, aligned(source(t), 16, "bulk copy from"), count)]

            def land() -> None:
                for place_to, place_from, length in pieces:
                    data = bytes(length)
                    if place_from is not None:
                        data = block.load_bytes(t, place_from, length)
                    block.shared[place_to : place_to + length] = data
                barrier.bytes_left -= sum(length for _, _, length in pieces)
                barrier.settle()

            block.flight.copies.append(land)

        return run


def _land_some(block: Block) -> None:
    """Let some of the bulk copies land, in any order."""
    rng, copies = block.launch.rng, block.flight.copies
    while copies and rng.random() < 0.5:
        copies.pop(rng.randrange(len(copies)))()


def _of_group(place: int, act: Callable[[Sequence[Thread]], None]) -> Any:
    def wait(t: Thread) -> None:
        t.waits = ("group", place, act)

    return wait


def _signed(raw: int) -> int:
    return (raw & 0xFFFFFFFF) - (1 << 32 if raw >> 31 & 1 else 0)


def _map_and_coordinates(text: str) -> tuple[str, list[str]]:
    name, _, rest = text.strip("[] ").partition(",")
    return name.strip(), [one.strip() for one in rest.strip(" {}").split(",")]


def _pieces(of: TensorMap, start: Sequence[int], target: int) -> list[tuple[int, int | None, int]]:
    """Return the pieces of 16 bytes of a tile: to, from (None where outside), bytes."""
    made: list[tuple[int, int | None, int]] = []
    row_bytes = of.box[0] * of.element_bytes
    rows = np.ndindex(*reversed(of.box[1:])) if len(of.box) > 1 else [()]
    for number, row in enumerate(rows):
        index = [begin + step for begin, step in zip(start[1:], reversed(row), strict=True)]
        inside = all(0 <= n < most for n, most in zip(index, of.extents[1:], strict=True))
        line = of.at + sum(n * pitch for n, pitch in zip(index, of.pitches, strict=True))
        for at in range(0, row_bytes, 16):
            x = start[0] + at // of.element_bytes
            there = inside and 0 <= x < of.extents[0]
            place = target + number * row_bytes + at
            if of.swizzle_bytes > 16:
                place = int(swizzled(place, of.swizzle_bytes))
            made.append((place, line + x * of.element_bytes if there else None, 16))
    return made
